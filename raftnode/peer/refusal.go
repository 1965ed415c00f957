package peer

import (
	"cmp"
	"fmt"
)

// A Code names why a connection was refused. The numbers are part of the wire and never change.
type RefusalCode uint8

// The reasons for a refusal.
const (
	Malformed           RefusalCode = 1  // what came is not a handshake
	OtherVersion        RefusalCode = 2  // the handshake is of another version
	TLSWanted           RefusalCode = 3  // one end speaks TLS and the other doesn't
	WrongCertificate    RefusalCode = 4  // the certificate doesn't name the node that showed it
	OtherCluster        RefusalCode = 5  // the cluster ids differ
	NotMeant            RefusalCode = 6  // the node reached is not the one the caller means
	OtherInitialMembers RefusalCode = 7  // no cluster id to compare, and the initial members differ
	NothingInCommon     RefusalCode = 8  // nothing that both know shows that they are of one cluster
	OtherIncarnation    RefusalCode = 9  // the node reached has another data directory than the one meant
	NotReady            RefusalCode = 10 // the node meant runs no Raft yet
)

// RefusedError is the refusal of one end to connect with the other. Such a connection carried no
// message of Raft. Match it with errors.AsType[*RefusedError] and look at its Code.
type RefusedError struct {
	Code   RefusalCode
	By     string // the name of the node that refused
	Peer   string // the name of the node that it refused; "": not known
	Detail string // what the refusing node saw
}

func newRefusal(code RefusalCode, by, peer, format string, args ...any) *RefusedError {
	return &RefusedError{Code: code, By: by, Peer: peer, Detail: printable(fmt.Sprintf(format, args...))}
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refused %s: %s; no message of Raft passed between them; %s",
		e.By, cmp.Or(e.Peer, "a caller"), e.Detail, e.Code.remedy())
}

// codes are the name of each reason, for logs and metrics, and what the operator can do. The remedy isn't
// sent, so that it fits the release that prints it.
var codes = map[RefusalCode]struct{ name, remedy string }{
	Malformed:    {"malformed", "check that the address is the peer port of a zamok node"},
	OtherVersion: {"other version", "upgrade the older node: the two releases have no handshake in common"},
	TLSWanted:    {"TLS wanted", "give all nodes of the cluster peer certificates, or none"},
	WrongCertificate: {"wrong certificate",
		"give each node a certificate with its id as a DNS name, signed by the peers' CA"},
	OtherCluster: {"other cluster",
		"correct the address; a node changes clusters only with an empty data directory and --join"},
	NotMeant: {"not the node meant", "if another node took over the address, `zamok remove` the one that had it " +
		"and start the new one with --join; else correct the address"},
	OtherInitialMembers: {"other initial members", "correct the addresses: each cluster has nodes of its own"},
	NothingInCommon: {"nothing in common",
		"a node becomes part of a running cluster when it is started with --join"},
	OtherIncarnation: {"other incarnation", "if the node lost its data, start it with --join and it takes the " +
		"place of the lost directory; a directory that was moved away belongs back in its place"},
	NotReady: {"not ready", "nothing to do: the caller retries until the node has started"},
}

// String names the reason.
func (c RefusalCode) String() string { return cmp.Or(codes[c].name, fmt.Sprintf("code %d", uint8(c))) }

func (c RefusalCode) remedy() string {
	return cmp.Or(codes[c].remedy, "the releases differ: see the log of the node that refused")
}
