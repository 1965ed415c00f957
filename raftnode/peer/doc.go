// Package peer is the network between the nodes of a cluster. A node has one peer port, for four
// purposes: Raft ([Network.Transport]), questions about a node's data, which any node answers
// ([Network.Ask]), calls between nodes beside Raft ([Network.Call]), and calls of clients that are
// relayed to the leader ([Network.DialRelay], [Network.Relays]). It also decides when an empty node
// may begin a cluster ([Decide]).
//
//	network, err := peer.New(peer.Config{…})          // listens, answers questions about the data
//	decision := peer.Decide(network.Mine(), network.AskAll(ctx, list.Nodes()))
//	transport, err := network.Transport(raft.NetworkTransportConfig{Logger: …})
//	r, err := raft.NewRaft(…, transport)
//	transport.Start(r)                                 // from here on calls of Raft are answered
//	err = network.SetCluster(id)                       // the first LeaderStart was applied
//	r.Shutdown(); transport.Close()                    // Raft may be opened again on this network
//	err = network.Close()
//
// # Model
//
// To Raft a server is a node's name together with its incarnation ([Server]): 128 random bits,
// written once when the data directory is made. An empty directory under an old name is another
// server, and no member until the cluster adds it. So the configuration itself says which
// directories have a vote. Every connection opens with a handshake, in which each end compares what
// the two know: the intended server, the cluster id, the initial members ([InitialMembers]). An end
// that finds a difference refuses with a reason, which both log. With TLS only known names may
// speak.
//
// # Promises
//
// In full, with the tables of the handshake, what is not detected, and why Raft needs them:
// docs/proofs/peers.md. How a cluster begins, and B1 to B3: docs/proofs/bootstrap.md.
//
//	P1  Raft speaks only between the right two    P9  No term leaps, no request contradicts itself
//	P2  A refusal carries its reason              P10 Nothing that was applied is taken back
//	P3  A slow caller delays no other             P11 An append counts when this disk has it
//	P4  No foreign length allocates much          P12 The sender is that of the handshake
//	P5  With TLS a certificate names its node     P13 Requests and connections are bounded
//	P6  Close ends all connections                P14 With TLS only known names are heard
//	P7  The cluster id changes once               P15 A node that owes elects nobody without it
//	P8  No two nodes of a list begin differently
//
// # Files
//
//	network.go                 New, accept, Close; the limit of handshakes; sockets
//	handshake.go, tls.go       questions and calls; both ends of the handshake; certificates
//	wire.go                    frames; the reasons for a refusal and what to do
//	clones.go                  two processes of one directory
//	members.go, decide.go      servers, and lists of nodes; bootstrap
//	transport.go, inbound.go   Raft's calls and outgoing connections; accepted connections
//	values.go                  how much a request contains, before it is decoded
//	relay.go                   connections for relayed calls of clients
//	requests.go                which requests Raft does not get
//	followers.go, throttle.go  what a leader knows of the others; slow lines, and round trips
//	heartbeats.go              the lease of a leader
//	heartbeatstatus.go         what nodes tell their leader with their answers
//	ratelimitedlog.go          messages that are not repeated
//	tcp_*.go                   detection of computers that vanished
package peer
