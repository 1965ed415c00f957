// Package peer is the network between the nodes of a cluster: one port per node, on which Raft
// speaks, on which an empty node asks the others what they hold ([Network.Ask]), and on which nodes
// tell each other what has to be said beside Raft ([Network.Tell]).
//
// hashicorp/raft names the sender in its messages and never asks whom it has reached. A node that
// lost its disk and answers at its old address, under its own or a new id, then votes for a log
// shorter than the one it had acknowledged, and what was acknowledged is gone. Two nodes that were
// given different lists of servers write different first entries under one index and term, and
// nothing notices. So every connection here opens with a handshake, and one that does not pass it
// carries no message of Raft. To ask is free: the answer of a stranger is worth knowing.
//
// # Use
//
//	network, err := peer.New(peer.Config{…})          // listens; answers what this node holds
//	decision := peer.Decide(network.Mine(), network.AskAll(ctx))
//	transport, err := network.Transport(raft.NetworkTransportConfig{Logger: …})
//	r, err := raft.NewRaft(…, transport)              // from here on Raft's calls are let in
//	err = network.SetCluster(id)                       // the first LeaderStart was applied
//	r.Shutdown(); transport.Close()                    // Raft may be opened again on this network
//	err = network.Close()
//
// # The handshake
//
// The caller says hello: the protocol's version, what the connection is for, the node it means,
// and about itself its id, its incarnation (random, written once with the data directory), its run
// (random, drawn at each start), its cluster id and the hash of its --cluster list, either of them
// zero if unknown. The receiver judges, and answers with a refusal or with the same about itself.
// The caller judges in turn, and answers with a refusal, so that the other's operator learns the
// reason too, or with go, right behind which come the bytes of Raft, or what is told. It costs one
// round trip.
//
// Which node a call means comes from Raft, with each call: [Transport] carries the id beside the
// address down to the handshake and keeps its pool of connections by both. There is no map from
// addresses to ids that could be stale: an address that has moved on to another node leads to a
// refusal (not the node meant).
//
// # Who speaks with whom
//
// Both ends look in this order, and the first rule that applies decides:
//
//	both know a cluster id, and they differ               other cluster
//	the node reached is not the one meant                 not the node meant
//	not both know an id, both a list, and those differ    other list
//	not both know an id, nor both a list                  nothing in common
//	another incarnation is on record for the other end    other incarnation
//	I know the cluster id, the other end doesn't, and
//	no incarnation is on record for it                    not on record
//	the receiver runs no Raft yet (and is not just told)  not ready
//	else                                                  they speak
//
// By what the two know, whoever calls (ids: compare the cluster ids; lists: compare the hashes;
// and: the end that knows the id must have the other on record):
//
//	             nothing   list         id        id and list
//	nothing      refused   refused      refused   refused
//	list         refused   lists        refused   lists, and
//	id           refused   refused      ids       ids
//	id and list  refused   lists, and   ids       ids
//
// A founder knows the list from its first start, and the id from the moment the first LeaderStart
// is applied. So while that entry travels, some founders know the id and some don't; they agree by
// the list, and since everybody recorded every founder's incarnation before the cluster began,
// they are let in. The record is asked for because a wiped node that is made to bootstrap again
// comes just so: with the list, and without the id. A handshake under way when the id becomes
// known ends as it began. A node that joins is handed the id before its Raft starts;
// a node that knows nothing is spoken to by nobody.
//
// # The record
//
// The handshake is as good as Config.Known. For every server of the Raft configuration it must be
// there before this node votes or leads, also after a restart, when Raft has applied nothing yet:
//
//	D1  The founders' incarnations (Decision.Founders) are on disk before the log is.
//	D2  A node becomes a voter only after the entry that announces its incarnation is committed.
//	    At start, announcements in the log that are not yet applied count.
//	D3  Config.Holds is true before this node's first vote: a log without a marker counts.
//	D4  SetCluster comes after the marker with the cluster id is on disk.
//	D5  Whoever joins is handed the cluster id. The founders' incarnations
//	    are announced in the log like everybody's, by the first leader if they don't do it.
//	D6  A node that lost part of its directory does not start, or starts with another incarnation.
//
// # Bootstrap
//
// An empty node asks every other node of its list ([Network.AskAll]) and decides ([Decide]):
//
//	everybody answered, holds nothing, was given my list               begin
//	somebody holds data, has my incarnation on record, and my list     as if it held nothing
//	somebody holds data otherwise                                      refuse: zamok join
//	somebody was given another list                                    refuse, naming both
//	somebody is not who the list says, or has another's incarnation    refuse
//	else, somebody is silent                                           wait, ask again
//
// A refusal goes before waiting. The second line is there because nodes start one after the other:
// the first to hear from everybody begins at once and then holds data, and it counted the others
// in. Why that is safe: a node whose incarnation X has on record was empty when X asked it; if it
// bears that incarnation still and holds nothing, it has never voted or acknowledged anything (D6).
// And a wiped node never begins again: if it had acknowledged anything, some other member of that
// majority still holds it and has the old incarnation on record.
//
// # Promises
//
//	P1  A message of Raft passes only between two ends that both judged, by the table, that they
//	    may speak. The node reached is the one that Raft meant.
//	P2  Who refuses says why, with a code, to the other end and in its own log, each reason at most
//	    once in 10 s; the error of the refused call names the reason and the cure.
//	P3  A caller that is slow, silent or hostile holds up nobody else: no handshake runs on the
//	    accepting goroutine, each is over after HandshakeTimeout whatever it sent, at most
//	    HandshakesMax are under way, and one more costs the oldest its place.
//	P4  Nothing is allocated by a length that a stranger sent beyond 1 KiB (16 KiB for an answer).
//	    Decoding is strict: every body has one meaning and every meaning one encoding.
//	P5  With TLS every certificate names its node: the caller sees the id it means in the receiver's,
//	    the receiver sees the id the caller claims in the caller's, both by the peers' CA.
//	P6  Close ends the listener and every connection, in every stage and both ways, and waits for
//	    the goroutines behind them. After Transport.Close no handler of Raft runs.
//	P7  The cluster id changes once, from unknown to known.
//	P8  Decide lets a node begin a cluster only if every node of the list was empty when it gave its
//	    consent, was given the same list, and has the incarnation that is returned for it.
//
// # What it can't tell
//
// A copy of a data directory has the id and the incarnation of the original. It is refused where a
// call means another node, so at another node's address it is no voter; but its own calls pass, and
// so would it at the original's address. What shows is the run: when two runs of one node turn up
// in alternation, both are alive, and every node that meets them logs an alarm. So that they do turn
// up, a new run ends the connections of those before it. That is notice and not protection: without
// a leader, the two can win two votes with one voice. The directory's lock stops it on one machine;
// nothing but care does on two. A machine that is resumed from a snapshot of its memory, or whose
// directory was rolled back, is not noticed at all.
//
// Without TLS everything said here is believed: then only nodes may be able to reach the port. A
// certificate proves the id; that the incarnation is the id's own is the node's word.
//
// # TLS
//
// One tls.Config serves both directions. Each node shows a certificate with its id as a DNS name
// (subject alternative name), for server and client authentication, signed by the CA in RootCAs or
// ClientCAs. The id and not the host, because an address says where a node is, and what has to be
// proved is who it is; and callers have no address of their own. TLS 1.3 and client certificates
// are always required. Between a node with TLS and one without, the end that notices says so.
package peer
