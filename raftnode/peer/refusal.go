package peer

import "fmt"

// A Code names why a connection was refused. The numbers are part of the wire and never change.
type Code uint8

// The reasons for a refusal.
const (
	Malformed           Code = 1  // what came is not a handshake
	OtherVersion        Code = 2  // the handshake is of another version
	TLSWanted           Code = 3  // one end speaks TLS and the other doesn't
	WrongCertificate    Code = 4  // the certificate doesn't name the node that showed it
	OtherCluster        Code = 5  // the cluster ids differ
	NotMeant            Code = 6  // the node reached is not the one the caller means
	OtherInitialMembers Code = 7  // no cluster id to compare, and the initial members differ
	NothingInCommon     Code = 8  // nothing that both know shows that they are of one cluster
	OtherIncarnation    Code = 9  // the node reached has another data directory than the one meant
	NotReady            Code = 10 // the node meant runs no Raft yet
)

// RefusedError says that one end would not speak with the other. Such a connection carried no
// message of Raft. Match it with errors.AsType[*RefusedError] and look at its Code.
type RefusedError struct {
	Code Code
	By   string // the name of the node that refused
	Peer string // the name of the node that it refused; "": not known
	Fact string // what the refusing node saw
}

func (e *RefusedError) Error() string {
	peer := e.Peer
	if peer == "" {
		peer = "a caller"
	}
	return fmt.Sprintf("%s refused %s: %s; no message of Raft passed between them; %s",
		e.By, peer, e.Fact, e.Code.remedy())
}

// String names the reason, for logs and metrics.
func (c Code) String() string {
	names := [...]string{
		Malformed: "malformed", OtherVersion: "other version", TLSWanted: "TLS wanted",
		WrongCertificate: "wrong certificate", OtherCluster: "other cluster",
		NotMeant: "not the node meant", OtherInitialMembers: "other initial members", NothingInCommon: "nothing in common",
		OtherIncarnation: "other incarnation", NotReady: "not ready",
	}
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// remedy says what the operator can do. The reader chooses it; it isn't sent, so that it fits the
// release that prints it.
func (c Code) remedy() string {
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
		return "correct the address; a node changes clusters only with an empty data directory and --join"
	case NotMeant:
		return "if another node took over the address, `zamok remove` the one that had it and start " +
			"the new one with --join; else correct the address"
	case OtherInitialMembers:
		return "correct the addresses: each cluster has nodes of its own"
	case NothingInCommon:
		return "a node becomes part of a running cluster when it is started with --join"
	case OtherIncarnation:
		return "if the node lost its data, start it with --join and it takes the place of the lost " +
			"directory; a directory that was moved away belongs back in its place"
	case NotReady:
		return "nothing to do: the caller tries again, and is heard once the node takes part"
	}
	return "the releases differ: see the log of the node that refused"
}
