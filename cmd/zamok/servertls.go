package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"zamok/api"
	"zamok/raftnode"
)

// tlsVersions are the values of --tls-min-version.
var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// secure configures TLS, and returns the files with certificates.
func (v *serverCommand) secure(cfg *api.NodeConfig, log *slog.Logger) (all []*reloaded[certificates], err error) {
	use := func(files tlsFiles, flag, what string, minVersion uint16) (func() *tls.Config, error) {
		if files == (tlsFiles{}) {
			return nil, nil
		}
		warnOfOpenKey(log, files.key)
		current, err := files.reload(log, what, minVersion)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		all = append(all, current)
		return func() *tls.Config { return current.get().config }, nil
	}
	if cfg.ClientTLS, err = use(v.clientTLS, "--tls-cert", "TLS of clients", tlsVersions[v.tlsMinVersion]); err != nil {
		return nil, err
	}
	peers := v.peerTLS
	if peers != (tlsFiles{}) {
		peers.node = v.id
	}
	cfg.Peers.TLS, err = use(peers, "--peer-cert", "TLS of peers", tls.VersionTLS13)
	return all, err
}

// peersAreLocal reports whether only nodes of this machine may be peers: nothing shows who a peer is.
func (v *serverCommand) peersAreLocal() bool { return v.peerTLS == (tlsFiles{}) && !v.insecurePeers }

// checkPeersAreSecured refuses peers on other machines that have no TLS, rather than let nodes wait for each other that are
// bound to loopback.
func (v *serverCommand) checkPeersAreSecured() error {
	if !v.peersAreLocal() {
		return nil
	}
	addresses := map[string][]string{"--peer": {v.peerListenAddress()}, "--join": nil, "--cluster": nil}
	if v.join != "" {
		addresses["--join"] = strings.Split(v.join, ",")
	}
	for _, n := range v.list.Nodes() {
		addresses["--cluster"] = append(addresses["--cluster"], n.Address)
	}
	for _, flag := range []string{"--peer", "--cluster", "--join"} {
		far := func(address string) bool { return !isLoopbackAddress(address) }
		if i := slices.IndexFunc(addresses[flag], far); i >= 0 {
			return fmt.Errorf("%s: %s is reached over a network, and without TLS everything that reaches the port of the peers can "+
				"change what the cluster knows: give --peer-cert, --peer-key and --peer-ca, or --insecure-peers if only nodes can reach it",
				flag, addresses[flag][i])
		}
	}
	return nil
}

// checkMembersAreLocal refuses the same of the members in a node's data, if no --cluster names them.
func (v *serverCommand) checkMembersAreLocal(members []raftnode.Server) error {
	if !v.peersAreLocal() {
		return nil
	}
	for _, m := range members {
		if !isLoopbackAddress(m.Peer) {
			return fmt.Errorf("%s, a member by the data in %s, is reached over a network at %s, and without TLS this node listens for peers on "+
				"loopback only: give --peer-cert, --peer-key and --peer-ca, or --insecure-peers if only nodes can reach the port",
				m.ID, v.data, m.Peer)
		}
	}
	return nil
}

// logSecurity says what is open.
func (v *serverCommand) logSecurity(log *slog.Logger) {
	if v.http != "" && !isLoopbackAddress(v.http) {
		if v.access.rules == "" {
			log.Warn("HTTP is reachable from other machines (--insecure-http): whatever reaches it may take, release and end every lock, and "+
				"change members; let only trusted programs reach it", "http", v.http)
		}
		if v.clientTLS.cert == "" {
			log.Warn("HTTP is reachable from other machines without TLS: secrets of sessions, and tokens, can be read on the way; give "+
				"--tls-cert and --tls-key, or put a proxy in front of a loopback address", "http", v.http)
		}
	}
	switch {
	case v.peersAreLocal():
		log.Info("without TLS between nodes only those on this machine can be peers", "peer", v.peerListenAddress())
	case v.peerTLS == (tlsFiles{}):
		log.Warn("peers have no TLS (--insecure-peers): whatever reaches their port can end the cluster and change its locks; let only "+
			"nodes reach it", "peer", v.peerListenAddress())
	}
}

// peerListenAddress is where to listen for the others. It is every address where that is secure, since the one in the list
// may be that of a router in front of us.
func (v *serverCommand) peerListenAddress() string {
	if v.peer != "" {
		return v.peer
	}
	host, port := "", defaultPeerPort
	if v.peersAreLocal() {
		host = "127.0.0.1"
	}
	for _, n := range v.list.Nodes() {
		listed, listedPort, err := net.SplitHostPort(n.Address)
		if err != nil || n.ID != v.id {
			continue
		}
		port = listedPort
		if v.peersAreLocal() && isLoopback(listed) {
			host = listed
		}
	}
	return net.JoinHostPort(host, port)
}

func isLoopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return isLoopback(host)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
