package raftnode

import (
	"context"
	"fmt"
	"net"

	"zamok/raftnode/peer"
)

// Connections for calls of clients that a node relays to the leader (package api).

// LeaderServer is the server that leads, as far as this node knows; zero = none.
func (n *Node) LeaderServer() peer.Server {
	// raft has it from a configuration, or it is ""
	leader, _ := peer.ParseServer(n.runs.latest.Load().leader())
	return leader
}

// HasServer reports whether a server is one of the cluster, as far as this node knows.
func (n *Node) HasServer(s peer.Server) bool { return n.runs.latest.Load().servers().has(s.ID()) }

// DialRelay connects to a server of the cluster to relay calls.
func (n *Node) DialRelay(ctx context.Context, to peer.Server) (net.Conn, error) {
	for _, s := range n.runs.latest.Load().servers() {
		if s.ID == to.ID() {
			return n.network.DialRelay(ctx, s.ID, s.Address)
		}
	}
	return nil, fmt.Errorf(
		"raftnode: %v is not a server of this cluster, as far as this node knows", to)
}

// Relays returns a listener for the connections of other nodes, each a peer.RelayConn.
func (n *Node) Relays() net.Listener { return n.network.Relays() }
