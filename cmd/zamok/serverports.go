package main

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"

	"zamok/raftnode"
)

// A port listens on loopback unless its callers are authenticated and authorized. Flags that would
// only seem to do that are refused. --insecure-clients and --insecure-peers allow what is refused,
// and each start logs a warning then.

// exposure is a way in which programs may do more than they should.
type exposure struct {
	flags       string // the flags that expose a port, and why
	consequence string // who may do what
	fix         string // the flags to give
}

// clientExposures are what --insecure-clients allows.
func (v *serverCommand) clientExposures() (all []exposure) {
	tokens, remote := v.access.tokenFlags(), v.remoteClientPorts()
	if v.access.rules == "" {
		consequence := v.clients(tokens) +
			" may acquire and release every lock, change the members and read a backup"
		for _, port := range remote {
			flags := port + " is not a loopback address, and --rules is missing"
			all = append(all, exposure{flags, consequence, "--rules"})
		}
		if tokens != "" {
			all = append(all, exposure{tokens + " is given without --rules", consequence,
				"--rules"})
		}
	}
	if v.clientTLS.cert == "" && tokens != "" {
		for _, port := range remote {
			flags := port + " is not a loopback address, and " + tokens + " is given without TLS"
			consequence := "whoever can read on the network can use the tokens"
			all = append(all, exposure{flags, consequence, "--tls-cert and --tls-key"})
		}
	}
	return all
}

// clients describes the programs that are served without rules.
func (v *serverCommand) clients(tokens string) string {
	switch {
	case v.clientTLS.clientCA == "":
		return "every program that can connect"
	case tokens == "":
		return "every program with a certificate of --tls-client-ca"
	}
	return "every program with a certificate of --tls-client-ca or a token"
}

// remoteClientPorts are the flags, with their addresses, of the ports for clients beyond loopback.
func (v *serverCommand) remoteClientPorts() (remote []string) {
	for _, p := range v.clientPorts() {
		if p.address != "" && !isLoopbackAddress(p.address) {
			remote = append(remote, p.flag+": "+p.address)
		}
	}
	return remote
}

// peerExposures are what --insecure-peers allows. Nodes on other machines are among them: a node
// that listens on loopback would wait for them forever.
func (v *serverCommand) peerExposures() (all []exposure) {
	if v.peerTLS != (tlsFiles{}) {
		return nil
	}
	const (
		fix = "--peer-cert, --peer-key and --peer-ca"
		who = "every program that can connect to the peer port"
	)
	addRemote := func(flag, address string) {
		if !isLoopbackAddress(address) {
			flags := flag + ": " + address + " is not a loopback address, and peer TLS is off"
			all = append(all, exposure{flags,
				who + " can change the state of the cluster, or destroy it", fix})
		}
	}
	addRemote("--peer", v.peerListenAddress())
	for _, n := range v.list.Nodes() {
		addRemote("--cluster", n.Address)
	}
	for _, n := range v.joinList.Nodes() {
		addRemote("--join", n.Address)
	}
	if v.access.rules != "" {
		consequence := who + ", also from this machine, can act as every identity"
		all = append(all, exposure{"--rules is given without peer TLS", consequence, fix})
	}
	return all
}

// checkPorts refuses exposures that no --insecure flag allows.
func (v *serverCommand) checkPorts() error {
	for _, p := range append(v.clientPorts(), portFlag{"--peer", v.peerListenAddress()}) {
		if _, _, err := net.SplitHostPort(p.address); p.address != "" && err != nil {
			return fmt.Errorf("%s is %q: it must be HOST:PORT or a port", p.flag, p.address)
		}
	}
	if exposures := v.clientExposures(); len(exposures) > 0 && !v.insecureClients {
		return fmt.Errorf(
			"%s, so %s: give %s, or --insecure-clients if only trusted programs can connect",
			exposures[0].flags, exposures[0].consequence, exposures[0].fix)
	}
	if exposures := v.peerExposures(); len(exposures) > 0 && !v.insecurePeers {
		return fmt.Errorf("%s, so %s: give %s, or --insecure-peers if only nodes can connect",
			exposures[0].flags, exposures[0].consequence, exposures[0].fix)
	}
	return nil
}

// checkMembersAreLocal refuses members on other machines that only the data contains.
func (v *serverCommand) checkMembersAreLocal(members []raftnode.Server) error {
	if !v.peersAreLocal() {
		return nil
	}
	for _, m := range members {
		if !isLoopbackAddress(m.Peer) {
			return fmt.Errorf(
				"%s, a member according to the data in %s, has the address %s on another "+
					"machine, but without TLS this node listens for peers on loopback only: give "+
					"--peer-cert, --peer-key and --peer-ca, or --insecure-peers if only nodes "+
					"can connect", m.ID, v.data, m.Peer)
		}
	}
	return nil
}

// logPorts logs who can connect to the ports.
func (v *serverCommand) logPorts(log *slog.Logger) {
	clients := []any{"listen", v.clientListenAddress(), "http", v.httpListenAddress()}
	switch exposures := v.clientExposures(); {
	case len(exposures) > 0:
		log.Warn(warning("clients", "programs", exposures), clients...)
	case v.clientsAreLocal():
		log.Info("without --rules, only programs on this machine can be clients", clients...)
	case v.clientTLS.cert == "" && len(v.remoteClientPorts()) > 0:
		log.Warn(
			"clients on other machines have no TLS: whoever can read on the network can use "+
				"their sessions; give --tls-cert and --tls-key, or put a proxy in front of "+
				"loopback addresses", clients...)
	}
	peers := []any{"peer", v.peerListenAddress()}
	switch exposures := v.peerExposures(); {
	case len(exposures) > 0:
		log.Warn(warning("peers", "nodes", exposures), peers...)
	case v.peerTLS == (tlsFiles{}):
		log.Info("peer TLS is off: only nodes on this machine can be peers", peers...)
	}
}

// warning describes all exposures of a port.
func warning(port, trusted string, exposures []exposure) string {
	var consequences, fixes []string
	for _, o := range exposures {
		if !slices.Contains(consequences, o.consequence) {
			consequences, fixes = append(consequences, o.consequence), append(fixes, o.fix)
		}
	}
	slices.Sort(fixes)
	return fmt.Sprintf("--insecure-%s is in force: %s; give %s, or let only trusted %s connect",
		port, strings.Join(consequences, "; "), strings.Join(slices.Compact(fixes), ", "), trusted)
}

// clientsAreLocal reports whether clients must be on this machine, since every client may do
// everything.
func (v *serverCommand) clientsAreLocal() bool { return v.access.rules == "" && !v.insecureClients }

// peersAreLocal reports whether peers must be on this machine, since without TLS they are not
// authenticated.
func (v *serverCommand) peersAreLocal() bool {
	return v.peerTLS == (tlsFiles{}) && !v.insecurePeers
}

// portFlag is a flag with its listen address.
type portFlag struct{ flag, address string }

func (v *serverCommand) clientPorts() []portFlag {
	return []portFlag{{"--listen", v.clientListenAddress()}, {"--http", v.httpListenAddress()}}
}

func (v *serverCommand) clientListenAddress() string {
	return listenAddress(v.listen, v.clientsAreLocal())
}

func (v *serverCommand) httpListenAddress() string {
	return listenAddress(v.http, v.clientsAreLocal())
}

// listenAddress completes a port without a host: it is on loopback, or on all interfaces.
func listenAddress(address string, local bool) string {
	switch _, err := strconv.ParseUint(address, 10, 16); {
	case err != nil:
		return address
	case local:
		return net.JoinHostPort("127.0.0.1", address)
	}
	return net.JoinHostPort("", address)
}

// peerListenAddress is the address to listen on for the other nodes: all interfaces where that is
// secure, since the address in the list may be that of a router in front of this node. One on
// loopback is not.
func (v *serverCommand) peerListenAddress() string {
	if v.peer != "" {
		return listenAddress(v.peer, v.peersAreLocal())
	}
	port := defaultPeerPort
	for _, n := range v.list.Nodes() {
		if host, listed, err := net.SplitHostPort(n.Address); err == nil && n.ID == v.id {
			if isLoopback(host) {
				return n.Address
			}
			port = listed
		}
	}
	return listenAddress(port, v.peersAreLocal())
}

func isLoopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return isLoopback(host)
}

// isLoopback does not resolve names: a name may have several addresses, and others when the node
// listens.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
