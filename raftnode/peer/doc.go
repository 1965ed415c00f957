// Package peer is the network between the nodes of a cluster. A node has one peer port, for four
// purposes: Raft ([Network.Transport]), questions about a node's data, which any node answers
// ([Network.Ask]), calls between nodes beside Raft ([Network.Call]), and calls of clients that are relayed to
// the leader ([Network.DialRelay], [Network.Relays]). It also decides when an empty node may begin a cluster ([Decide]).
//
// # Use
//
//	network, err := peer.New(peer.Config{…})          // listens, and answers questions about the data
//	decision := peer.Decide(network.Mine(), network.AskAll(ctx, list.Nodes()))
//	transport, err := network.Transport(raft.NetworkTransportConfig{Logger: …})
//	r, err := raft.NewRaft(…, transport)
//	transport.Start(r)                                 // from here on calls of Raft are answered
//	err = network.SetCluster(id)                       // the first LeaderStart was applied
//	r.Shutdown(); transport.Close()                    // Raft may be opened again on this network
//	err = network.Close()
//
// # Why
//
// hashicorp/raft names the sender in its messages and does not check which server it reaches. A node
// that lost its disk and answers at its old address, under its own name or a new one, then votes for
// a log shorter than the one that it had acknowledged, and what was acknowledged is lost
// (TestWipedVoterLosesEverythingWithoutTheHandshake). And two nodes that begin with different lists
// of servers write different first entries under one index and term, which Raft never notices.
//
// So to Raft a server is a node's name together with its incarnation ([Server]): 128 random bits,
// written once when the data directory is made. An empty directory under an old name is another
// server, and no member until the cluster adds it. Nothing has to be remembered for that, so nothing
// can be forgotten or arrive late: the configuration itself says which directories have a vote.
//
// # The handshake
//
// Every connection opens with a handshake, and a connection that does not pass it carries no message
// of Raft:
//
//	caller   hello     the purpose (Raft, ask, call or relay), the server that it means, its own [Answer]
//	receiver answer    its own Answer; the end of a question
//	caller   proceed   with the request of a call; the bytes of Raft, or of relayed calls, follow
//	receiver reply     of a call; the end of it
//
// An Answer has the node's name, its incarnation, its generation (random, drawn at each start), the format of its
// binary, the cluster id, the --cluster list and the initial members on its disk. An id or a list is empty if there is none. Each
// end judges the other by the table below and may send a refusal with the reason instead, so that the logs of
// both have it. Before Raft's first byte this costs one round trip. A question needs no agreement: its answer
// is useful also to a stranger.
//
// Raft names in each call the server that it means. [Transport] carries the server's id beside the
// address down to the handshake, and keys its pool of connections by both. No table of addresses
// exists that could be stale: an address that has moved to another node leads to a refusal.
//
// # Which nodes connect with each other
//
// The receiver refuses a caller of another format (Config.Format), a question as well: an entry that one of the two does
// not know would divide the cluster. Then both ends apply these rules in this order, and the first that matches decides:
//
//	both know a cluster id, and the ids differ                     other cluster
//	the node reached has not the name that is meant                not the node meant
//	it has another incarnation than is meant                       other incarnation
//	one of them knows neither an id nor initial members            nothing in common
//	not both know an id, both have initial members, which differ   other initial members
//	the receiver runs no Raft yet (only if for Raft)               not ready
//	with TLS, the receiver's cluster has no node of that name      not known
//	otherwise                                                      they connect
//
// By what the two ends know, in either direction (ids, initial members: these are compared; -: nothing is,
// beside the server that is meant):
//
//	                  nothing   initial   id        id and initial
//	nothing           refused   refused   refused   refused
//	initial members   refused   initial   -         initial
//	id                refused   -         ids       ids
//	id and initial    refused   initial   ids       ids
//
// An initial member has the initial members on disk before it begins, and learns the id when it applies the
// first LeaderStart. Until that entry has arrived everywhere, initial members that know the id and initial
// members that do not know it compare their initial members. A node that joins is given the id before its
// Raft starts. A handshake that is under way when the id becomes known ends as it began.
//
// An initial member that was away since it began knows no id, and a node that joined later has no initial
// members. What they have in common is the server that the caller means: its incarnation is 128 random bits,
// which the caller has from a configuration that names the receiver.
//
// The caller's own incarnation is not compared with anything here: Raft itself refuses a vote to a server
// that is not in its configuration, and P12 ensures that a request comes from the server that it names.
//
// # Bootstrap
//
// A cluster begins in two steps. An empty node asks all other nodes of its --cluster list
// ([Network.AskAll]) again and again, and decides after each round ([Decide]):
//
//	all nodes of the list answered, empty, with this list:
//	  those on this disk are not those that answered           Agree: put them on disk
//	  they are, and all others have the same on disk           Bootstrap: write the first entry
//	  otherwise                                                Wait, ask again
//	a node of the list holds data, its initial members include this server:
//	  they are not on this disk                                Agree: take them over
//	  they are                                                 Bootstrap
//	nodes of the list hold data, and none counts this server   JoinElsewhere: join, or end
//	lists, names or incarnations contradict each other         Refuse, with what to correct
//	otherwise, a node does not answer, or has no room          Wait, ask again
//
// The initial members ([InitialMembers]) are the nodes of the list with the incarnations that they answered
// with. They determine the first entry. A node that holds data goes before the other rules, since nodes begin
// one after the other: the first to see that all have agreed holds data from then on.
//
// Three conditions hold for a node that takes part:
//
//	B1  Initial members are on disk before any answer mentions them, and before the first entry.
//	B2  A round begins after the initial members that it relies on were put on disk. Config.Condition reads
//	    HasData before Initial.
//	B3  A directory that lost part of its content does not start, or starts with another incarnation.
//
// The claim: at no time do two nodes hold different first entries. Suppose that X begins because all
// have agreed on F, and Y because all have agreed on another list F'. By B2, each of the two has its
// list on disk before its last round, and does not change it until it begins.
//
//	X puts F on disk at tX, and asks Y afterwards, which answers that it has F. So Y puts F' on
//	disk, at tY, later than that: tY > tX.
//	Y asks X after tY, which answers that it has F'. So X puts F on disk later than that: tX > tY.
//
// Both can't be true, unless one of the two answered with an earlier directory than the one that begins,
// which is lost by then. Say that X's directory was lost: F' then names the directory after it, so
// every node puts F' on disk after the loss, and each that is asked by Y has F' on disk and nothing
// begun. One that would begin with F from then on needs a node that holds data with F, and answers
// after F was put on disk again; all that held such data were lost before Y's last round. So the first
// entry of F is on no disk any more when Y begins. Whatever had a majority on F is lost only with the
// disks of that majority. A node that begins because another holds data writes what that one has.
// TestNoTwoNodesBeginDifferently tries hundreds of thousands of random steps: answers, writes, crashes
// and lost disks, in any order.
//
// A wiped node can't begin again beside its cluster either: every node of the list must answer, and
// one that holds data sends it elsewhere.
//
// # Authorization
//
// A certificate of the peers' CA is not enough: with TLS a node accepts calls and messages of Raft only from known
// names (P14). These are
//
//	the names in its committed configuration, and in its latest one (Config.Knows; package raftnode)
//	without a configuration, those of its list, and the members of the cluster that it waits for, as that reports them
//	each time the node asks to be taken in
//	those in a later configuration, as a server that it knows reports it while no leader lasts
//	those that its operator allows (Config.AllowedNames)
//
// Of what a call may contain, a node that is no member may only ask to be added, itself, under its certificate's name (package
// raftnode).
//
// The name decides and not the incarnation, since a node that lost its disk keeps its certificate, and may lead
// before all others have seen its new incarnation. Votes need more: Raft votes only for a server of its latest
// configuration, with name and incarnation, and P12 prevents requests in the name of another server. (A node
// without a configuration votes for every known name. No configuration counts that vote, since the node waits to
// be added.)
//
// A leader may be missing in the receiver's configuration:
//
//  1. n1 is down while n4 replaces n2, and n4 leads.
//  2. n1 starts and has no leader. It asks n3 ([Network.Ask]), whose name and certificate it knows.
//  3. n3 reports the configuration with n4, and n1 accepts the appends of n4.
//
// If n5 has replaced n3 as well, no server that n1 knows can report n4, and n4 could not prove more than any other
// holder of a certificate: the operator has to allow one name.
//
// Unless AllowedNames is set, questions are answered for every certificate of the CA: a node that was removed asks
// servers that no longer know it, to learn that it was removed. The answer has no secrets and changes nothing.
//
// # Replacement
//
// A node whose disk is lost starts with an empty directory, under its own name or a new one, with the
// cluster's id, and waits. The leader asks it at its address which server it is, removes the lost
// server from the configuration, and adds the new one, first without a vote. Until then no call means
// the new server, so it takes part in nothing. If the lost directory comes back it is another server
// at the same address: calls that mean the new one are refused there (other incarnation).
//
// A server that is being removed is not sent its own removal before that is committed
// ([Transport.Removing]). It learns of it by asking: [Answer] says which configuration the node asked
// knows to be committed, and whether the one that asks is part of it.
//
// A server that is given its vote can be elected by one that knows it only as being caught up
// (requests.go): it may be the only one left that knows of it.
//
// # Promises
//
//	P1  A message of Raft passes only between two ends that both found, by the table, that they may
//	    speak. The server reached is the one that Raft means, with the data directory that it means.
//	P2  A refusal carries its reason, as a code, to the other end and to the log of both, each reason at
//	    most once in 10 s; the error of the refused call names the reason and what to do.
//	P3  A caller that is slow, silent or hostile delays no other: no handshake runs on the accepting
//	    goroutine, each is over after HandshakeTimeout whatever was sent, at most 64 are
//	    under way, and for one more the oldest is closed.
//	P4  Nothing is allocated by a length that another end sent beyond 32 KiB, which fits the longest list of
//	    32 nodes and its initial members. Decoding is strict: every body has one meaning and every meaning one
//	    encoding.
//	P5  With TLS every certificate names its node: the caller finds the name that it means in the
//	    receiver's, the receiver finds the name that the caller claims in the caller's, both signed
//	    by the peers' CA.
//	P6  Close ends the listener and every connection, in every stage and both ways, and waits for
//	    the goroutines behind them. After Transport.Close no handler of Raft runs.
//	P7  The cluster id changes once, from unknown to known.
//	P8  At no time do two nodes that were given one list hold different first entries.
//	P9  No message takes this node's term further than 2³² at once: a request or an answer of a term
//	    that is more above the node's own is refused, answered with an error, and logged. So is a
//	    request that contradicts itself: a log or an entry of a later term than the request's, entries
//	    that don't follow each other, a snapshot that reaches an index beyond reason, or a configuration that Raft
//	    can't read, which would end the process at each start, or that has no servers.
//	P10 Nothing that Raft has applied is taken back, and it applies only what its leader has shown it: a
//	    snapshot of what is applied is answered and not installed, and the commit index of an append
//	    ends with its entries.
//	P11 The success of an append with entries is passed on to Raft when this node's own disk has them
//	    (Config.WaitWritten), and as an error if that can't be. Whatever else a follower answers passes at
//	    once, and what is measured of it does not contain the wait.
//	P12 A request is refused before Raft sees it, unless the sender that it names is the server of its connection's
//	    handshake. Otherwise: C, which is not in the configuration, requests votes in the name of A, or without a
//	    name, as old releases of Raft do; it claims a leadership transfer, and the leader steps down.
//	P13 A request has at most 17 MiB and 4096 values, and a connection with a larger one is closed before Raft
//	    decodes it; an answer has at most 64 KiB. Nodes of one name have at most 32 connections for Raft; beyond
//	    that the oldest is closed. Otherwise: a message without an end, 17 million empty entries, which take
//	    2 GiB, or many connections use up the memory.
//	P14 With TLS a node accepts messages of Raft, calls and relayed calls only from known names, and checks that again
//	    for each message of Raft. Otherwise: C has a certificate of the peers' CA, because clients use the same CA, or
//	    because it was a member once; it sends an append of a later term, the leader steps down, and entries of C are
//	    applied.
//
//	P15 A node that owes something (Config.Tail) elects nobody whose log ends below that, and
//	    neither campaigns nor takes a leadership. Otherwise: its disk has lost an entry that it
//	    acknowledged, the leader fails, and its vote elects a node that never had it.
//
// # Terms that leap
//
// Raft adopts every term that is above its own and writes it down. From 2⁶⁴−1 its next election leads to
// term 0, which no node follows, restarts included. P9 stops numbers that do lasting harm; they come
// from a damaged disk or a faulty peer as well as from a hostile one. A peer that passes the handshake
// can still send plausible numbers: a somewhat later term, or TimeoutNow, which make a leader step
// down; a vote request that claims a long log of an earlier term; entries of its own. Only restricted access to
// the port prevents these (P12, P14).
// Terms can be raised in steps of 2³² as well: then a node that missed the last step, and a new one, whose
// term is 0, refuse what the others send. Such a cluster is restored from a backup.
//
// # Slow lines
//
// Raft puts up to 64 entries of any size into an append and gives it a fixed time; what does not get there in
// that time it sends again. So an append is cut to what its server takes within 200 ms, by what it took
// before, and has twice as long as its size takes beyond the time that every call has (throttle.go).
// Heartbeats and votes keep their short time. A line on which an entry of 256 KiB takes more than 18 s
// remains too slow. A snapshot is sent as long as bytes move: either end gives up when none has for 10 s. Its
// receiver does not vote meanwhile, so it does not wait longer for a leader that is suspended. Every 10 s the
// leader logs how far a server is.
//
// # What was acknowledged
//
// A node whose log has lost its end owes it (package tail, Config.Tail). Then this package refuses
// votes and pre-votes to candidates whose logs end below, as raft refuses them, and a leadership
// that is handed over; and its own campaigns end here. Nothing else changes. [Transport.RaiseTerm]
// has a node enter a later term because another one that owes something asks it (package raftnode).
//
// A node notices most losses by itself. Its leader notices the others: within one term of one
// leader, nothing takes an acknowledged entry out of a follower's log. So a follower that
// acknowledged entries up to i, and later answers that its log ends below i, has lost what it
// promised. It gets no append of that leader in that term but heartbeats until it owes that, on
// its disk (Config.Owe, followers.go). Then the leader forgets what it acknowledged, and sends it
// again. The record is by incarnation: a node that is replaced starts over.
//
// What this does not give: the leader knows only what was acknowledged to itself, in its term. A
// follower whose disk forgot, without a trace, while no leader stood, or before the leader changed,
// is sent what it lacks like any that lags, and its vote in between may have elected a candidate
// without these entries.
//
// # What is not detected
//
// A copy of a data directory has the name and the incarnation of the original. It is refused where a call
// means another server, so at another node's address it has no vote; but its own calls pass, and at the
// original's address it passes as the original. What differs is the generation: when two generations of one
// server appear in alternation, both are alive, and every node that they connect with logs an alarm. A message
// that arrives after its process has ended shows nothing (clones.go). To make the two appear, a new generation
// closes the connections of earlier ones. That is detection and not protection:
// without a leader, the two can win two votes as one server. The directory's lock prevents it on one machine;
// between two machines only care does. A machine resumed from a snapshot of its memory, and a directory that
// was rolled back to an earlier state, are noticed only by a leader to which they had acknowledged more.
//
// Without TLS nothing is authenticated, and P12 and P14 prevent only accidents. A program that can connect to the port
// learns names, incarnations and the cluster id by a question, and can impersonate any server with them: it can win
// votes and depose the leader, append entries, replace the state by a snapshot, announce addresses, and relay calls in
// the name of any client. So only nodes may be able to connect, and `zamok server` listens on loopback unless
// --insecure-peers is given. A certificate proves the name; the incarnation is the node's own statement.
//
// # TLS
//
// One tls.Config serves both directions; each new connection uses the latest. Each node has a certificate with its name
// as a DNS name (subject alternative name), for server and client authentication, signed by the CA in RootCAs or
// ClientCAs. It is the name and not the host, because an address says where a node is, and what has
// to be proved is which node it is; and callers have no address of their own. It is the name without
// the incarnation, so that a node keeps its certificate when it loses its disk. Wildcard names such as *.example.org
// do not count. TLS 1.3 and client certificates are always required. Between a node with TLS and one without, the end that notices
// refuses with that reason.
//
// # Files
//
//	network.go                 New, accept, Close; the limit of handshakes; sockets
//	handshake.go, tls.go       questions and calls; both ends of the handshake and the table; certificates
//	wire.go                    frames; the reasons for a refusal and what to do
//	clones.go                  two processes of one directory
//	members.go, decide.go      servers, and lists of nodes; bootstrap
//	transport.go, inbound.go   Raft's calls and outgoing connections; accepted connections
//	values.go                  how much a request contains, before it is decoded
//	relay.go                   connections for relayed calls of clients
//	requests.go                which requests Raft does not get
//	followers.go, throttle.go  what this node as leader knows of the others; slow lines, and round trips
//	heartbeats.go, report.go   the lease of a leader; what nodes report with their answers
//	ratelimitedlog.go          messages that are not repeated
//	tcp_*.go                   detection of computers that vanished
package peer
