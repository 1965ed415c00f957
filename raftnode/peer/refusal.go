package peer

import "fmt"

// A Code names why a connection was refused. The numbers are part of the wire and never change.
type Code uint8

// The reasons for a refusal.
const (
	Malformed        Code = 1  // what came is not a handshake
	OtherVersion     Code = 2  // the handshake is of another version
	TLSWanted        Code = 3  // one end speaks TLS and the other doesn't
	WrongCertificate Code = 4  // the certificate doesn't name the node that showed it
	OtherCluster     Code = 5  // the cluster ids differ
	NotMeant         Code = 6  // the node reached is not the one the caller means
	OtherList        Code = 7  // no cluster id to compare, and the --cluster lists differ
	NothingInCommon  Code = 8  // nothing that both know shows that they are of one cluster
	OtherIncarnation Code = 9  // the data directory is not the one on record for this id
	NotOnRecord      Code = 10 // a node without cluster id, and nothing on record to know it by
	NotReady         Code = 11 // the node meant runs no Raft yet
)

// RefusedError says that one end would not speak with the other. Such a connection carried no
// message of Raft. Match it with errors.AsType[*RefusedError] and look at its Code.
type RefusedError struct {
	Code Code
	By   string // the id of the node that refused
	Peer string // the id of the node that it refused; "": not known
	Fact string // what the refusing node saw
}

func (e *RefusedError) Error() string {
	peer := e.Peer
	if peer == "" {
		peer = "a caller"
	}
	return fmt.Sprintf("%s refused %s: %s; no message of Raft passed between them; %s",
		e.By, peer, e.Fact, e.Code.cure())
}

// String names the reason, for logs and metrics.
func (c Code) String() string {
	names := [...]string{
		Malformed: "malformed", OtherVersion: "other version", TLSWanted: "TLS wanted",
		WrongCertificate: "wrong certificate", OtherCluster: "other cluster",
		NotMeant: "not the node meant", OtherList: "other list", NothingInCommon: "nothing in common",
		OtherIncarnation: "other incarnation", NotOnRecord: "not on record", NotReady: "not ready",
	}
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// cure says what the operator can do. The reader chooses it; it isn't sent, so that it fits the
// release that prints it.
func (c Code) cure() string {
	switch c {
	case Malformed:
		return "check that the address is the peer port of a zamok node"
	case OtherVersion:
		return "upgrade the older node: the two releases have no handshake in common"
	case TLSWanted:
		return "give all nodes of the cluster peer certificates, or none"
	case WrongCertificate:
		return "give each node a certificate with its id as a DNS name, signed by the peers' CA"
	case OtherCluster:
		return "correct the address, or, if the node is to change clusters, empty its data " +
			"directory and `zamok join` it under an unused id"
	case NotMeant:
		return "if another node took over the address, `zamok remove` the one that had it and " +
			"`zamok join` the new one; else correct the address"
	case OtherList:
		return "start every node with the same --cluster list; one that has begun a cluster with " +
			"the wrong list needs an empty data directory"
	case NothingInCommon:
		return "a node becomes part of a running cluster by `zamok join` alone"
	case OtherIncarnation, NotOnRecord:
		return "a node that lost its data can't come back under its id, for it would vote away what " +
			"it had acknowledged: `zamok remove` that id, then `zamok join` the empty node under " +
			"an unused one; a directory that was moved away belongs back in its place"
	case NotReady:
		return "nothing to do: the caller tries again, and is heard once the node takes part"
	}
	return "the releases differ: see the log of the node that refused"
}
