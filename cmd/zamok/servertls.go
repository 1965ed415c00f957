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
	"zamok/raftnode/peer"
)

// tlsVersions are the values of --tls-min-version.
var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// secure configures TLS, and returns the certificate files.
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

// peersAreLocal reports whether peers must be on this machine, because without TLS they are not authenticated.
func (v *serverCommand) peersAreLocal() bool { return v.peerTLS == (tlsFiles{}) && !v.insecurePeers }

// checkPeersAreSecured refuses peers on other machines without TLS. Otherwise the nodes would listen on loopback and wait
// for each other without end.
func (v *serverCommand) checkPeersAreSecured() error {
	if !v.peersAreLocal() {
		return nil
	}
	addresses := map[string][]string{"--peer": {v.peerListenAddress()}}
	for flag, list := range map[string]peer.List{"--cluster": v.list, "--join": v.joinList} {
		for _, n := range list.Nodes() {
			addresses[flag] = append(addresses[flag], n.Address)
		}
	}
	for _, flag := range []string{"--peer", "--cluster", "--join"} {
		far := func(address string) bool { return !isLoopbackAddress(address) }
		if i := slices.IndexFunc(addresses[flag], far); i >= 0 {
			return fmt.Errorf("%s: %s is not a loopback address, and without TLS every program that can connect to the peer port can "+
				"change the state of the cluster: give --peer-cert, --peer-key and --peer-ca, or --insecure-peers if only nodes can connect",
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
			log.Warn("HTTP is open to other machines without access rules (--insecure-http): every program that can connect may take and end every lock, and "+
				"change members; restrict the port to trusted programs, or give --rules", "http", v.http)
		}
		if v.clientTLS.cert == "" {
			log.Warn("HTTP is open to other machines without TLS: session secrets and tokens can be read on the network; give "+
				"--tls-cert and --tls-key, or put a proxy in front of a loopback address", "http", v.http)
		}
	}
	switch {
	case v.peersAreLocal():
		log.Info("peer TLS is off: only nodes on this machine can be peers", "peer", v.peerListenAddress())
	case v.peerTLS == (tlsFiles{}):
		log.Warn("peer TLS is off (--insecure-peers): every program that can connect to the peer port can destroy the cluster and change its locks; "+
			"restrict the port to nodes", "peer", v.peerListenAddress())
	}
}

// peerListenAddress is the address to listen on for the other nodes: all interfaces where that is secure, since the address
// in the list may be that of a router in front of this node.
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
