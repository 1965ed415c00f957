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

// A port is closed unless a flag says otherwise. It is on loopback until its callers are checked,
// and what would check them in appearance only is refused. --insecure-clients and --insecure-peers
// accept what is refused, and then each start warns of it.

// opening is what lets others do more than they should.
type opening struct {
	flags string // that open a port, and why they do
	means string // who may do what
	cure  string // the flags that close it
}

// clientOpenings are what --insecure-clients accepts.
func (v *serverCommand) clientOpenings() (all []opening) {
	tokens, far := v.access.tokenFlags(), v.farClientPorts()
	if v.access.rules == "" {
		means := v.clients(tokens) + " may take and end every lock, change the members and read a backup"
		for _, port := range far {
			flags := port + " is not a loopback address, and --rules is missing"
			all = append(all, opening{flags, means, "--rules"})
		}
		if tokens != "" {
			all = append(all, opening{tokens + " is given without --rules", means, "--rules"})
		}
	}
	if v.clientTLS.cert == "" && tokens != "" {
		for _, port := range far {
			flags := port + " is not a loopback address, and " + tokens + " is given without TLS"
			means := "whoever can read on the network can use the tokens"
			all = append(all, opening{flags, means, "--tls-cert and --tls-key"})
		}
	}
	return all
}

// clients are the programs that are served without rules.
func (v *serverCommand) clients(tokens string) string {
	switch {
	case v.clientTLS.clientCA == "":
		return "every program that can connect"
	case tokens == "":
		return "every program with a certificate of --tls-client-ca"
	}
	return "every program with a certificate of --tls-client-ca or a token"
}

// farClientPorts are the flags, with their addresses, of the ports for clients beyond loopback.
func (v *serverCommand) farClientPorts() (far []string) {
	for _, p := range v.clientPorts() {
		if p.address != "" && !isLoopbackAddress(p.address) {
			far = append(far, p.flag+": "+p.address)
		}
	}
	return far
}

// peerOpenings are what --insecure-peers accepts. Nodes on other machines are among them: a node on
// loopback would wait for them without end.
func (v *serverCommand) peerOpenings() (all []opening) {
	if v.peerTLS != (tlsFiles{}) {
		return nil
	}
	const (
		cure = "--peer-cert, --peer-key and --peer-ca"
		who  = "every program that can connect to the peer port"
	)
	far := func(flag, address string) {
		if !isLoopbackAddress(address) {
			flags := flag + ": " + address + " is not a loopback address, and peer TLS is off"
			all = append(all, opening{flags, who + " can change the state of the cluster, or destroy it", cure})
		}
	}
	far("--peer", v.peerListenAddress())
	for _, n := range v.list.Nodes() {
		far("--cluster", n.Address)
	}
	for _, n := range v.joinList.Nodes() {
		far("--join", n.Address)
	}
	if v.access.rules != "" {
		means := who + ", also from this machine, can act as every identity"
		all = append(all, opening{"--rules is given without peer TLS", means, cure})
	}
	return all
}

// checkPorts refuses what no --insecure flag accepts.
func (v *serverCommand) checkPorts() error {
	for _, p := range append(v.clientPorts(), portFlag{"--peer", v.peerListenAddress()}) {
		if _, _, err := net.SplitHostPort(p.address); p.address != "" && err != nil {
			return fmt.Errorf("%s: %q is neither HOST:PORT nor a port", p.flag, p.address)
		}
	}
	if open := v.clientOpenings(); len(open) > 0 && !v.insecureClients {
		return fmt.Errorf("%s, so %s: give %s, or --insecure-clients if only trusted programs can connect",
			open[0].flags, open[0].means, open[0].cure)
	}
	if open := v.peerOpenings(); len(open) > 0 && !v.insecurePeers {
		return fmt.Errorf("%s, so %s: give %s, or --insecure-peers if only nodes can connect",
			open[0].flags, open[0].means, open[0].cure)
	}
	return nil
}

// checkMembersAreLocal refuses nodes on other machines that only the data names.
func (v *serverCommand) checkMembersAreLocal(members []raftnode.Server) error {
	if !v.peersAreLocal() {
		return nil
	}
	for _, m := range members {
		if !isLoopbackAddress(m.Peer) {
			return fmt.Errorf("%s, a member by the data in %s, is reached over a network at %s, and without "+
				"TLS this node listens for peers on loopback only: give --peer-cert, --peer-key and --peer-ca, "+
				"or --insecure-peers if only nodes can connect", m.ID, v.data, m.Peer)
		}
	}
	return nil
}

// logPorts says what is open, and to whom.
func (v *serverCommand) logPorts(log *slog.Logger) {
	clients := []any{"listen", v.clientListenAddress(), "http", v.httpListenAddress()}
	switch open := v.clientOpenings(); {
	case len(open) > 0:
		log.Warn(warning("clients", "programs", open), clients...)
	case v.clientsAreLocal():
		log.Info("without --rules, only programs on this machine can be clients", clients...)
	case v.clientTLS.cert == "" && len(v.farClientPorts()) > 0:
		log.Warn("clients on other machines have no TLS: whoever can read on the network can use "+
			"their sessions; give --tls-cert and --tls-key, or put a proxy in front of loopback addresses", clients...)
	}
	peers := []any{"peer", v.peerListenAddress()}
	switch open := v.peerOpenings(); {
	case len(open) > 0:
		log.Warn(warning("peers", "nodes", open), peers...)
	case v.peerTLS == (tlsFiles{}):
		log.Info("peer TLS is off: only nodes on this machine can be peers", peers...)
	}
}

// warning is one sentence of all that is open to others than the trusted.
func warning(port, trusted string, open []opening) string {
	var means, cures []string
	for _, o := range open {
		if !slices.Contains(means, o.means) {
			means, cures = append(means, o.means), append(cures, o.cure)
		}
	}
	slices.Sort(cures)
	return fmt.Sprintf("--insecure-%s is in force: %s; give %s, or let only trusted %s connect",
		port, strings.Join(means, "; "), strings.Join(slices.Compact(cures), ", "), trusted)
}

// clientsAreLocal reports whether clients must be on this machine, since all may do everything.
func (v *serverCommand) clientsAreLocal() bool { return v.access.rules == "" && !v.insecureClients }

// peersAreLocal reports whether peers must be on this machine, since without TLS they are not
// authenticated.
func (v *serverCommand) peersAreLocal() bool {
	return v.peerTLS == (tlsFiles{}) && !v.insecurePeers
}

// portFlag is a flag with the address that it stands for.
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

// isLoopback does not look a name up: it may have several addresses, and others when the node
// listens.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
