package peer

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/hashicorp/raft"
)

// An Incarnation distinguishes a data directory from every other one of the same node name:
// 128 random bits, written once when the directory is made. The zero value is no incarnation.
type Incarnation [16]byte

func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// MarshalText implements encoding.TextMarshaler.
func (i Incarnation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *Incarnation) UnmarshalText(digits []byte) error { return decodeHex(i[:], digits) }

func decodeHex(to, digits []byte) error {
	raw, err := hex.DecodeString(string(digits))
	if err != nil || len(raw) != len(to) {
		return fmt.Errorf("%q is not %d hexadecimal digits", digits, hex.EncodedLen(len(to)))
	}
	copy(to, raw)
	return nil
}

// A Server is a node as Raft knows it: the node's name together with the incarnation of its data
// directory. So a node that lost its data is another server.
type Server struct {
	Name        string
	Incarnation Incarnation
}

// ID is the server id for Raft: name@incarnation.
func (s Server) ID() raft.ServerID { return raft.ServerID(s.String()) }

func (s Server) String() string { return s.Name + "@" + s.Incarnation.String() }

// ParseServer reads what ID returns.
func ParseServer(id raft.ServerID) (Server, error) {
	name, digits, _ := strings.Cut(string(id), "@")
	s := Server{Name: name}
	if err := CheckID(name); err != nil {
		return Server{}, fmt.Errorf("%q is no server id: %w", id, err)
	}
	if err := decodeHex(s.Incarnation[:], []byte(digits)); err != nil {
		return Server{}, fmt.Errorf("%q is no server id: write name@incarnation: %w", id, err)
	}
	if s.ID() != id || s.Incarnation == (Incarnation{}) {
		return Server{}, fmt.Errorf("%q is no server id: the incarnation is not as this release writes it", id)
	}
	return s, nil
}

// NameOf is the name in a server's id; of what is no server id, all of it.
func NameOf(id raft.ServerID) string {
	name, _, _ := strings.Cut(string(id), "@")
	return name
}

// A ClusterID is the random id in a cluster's first LeaderStart. The zero value: no id is known.
type ClusterID [16]byte

func (c ClusterID) String() string { return hex.EncodeToString(c[:]) }

// MarshalText implements encoding.TextMarshaler.
func (c ClusterID) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *ClusterID) UnmarshalText(digits []byte) error { return decodeHex(c[:], digits) }

// generation is drawn at each start of a Network, so that a node which merely restarted differs from
// two processes which run one data directory.
type generation uint64

// checkIdentities is the table of doc.go: it returns why mine must not speak Raft with theirs, or nil. The
// caller meant one server and reached another or the same. Both ends judge, each by what it knows
// itself.
func checkIdentities(mine, theirs Answer, intended, reached Server) *RefusedError {
	refuse := func(code RefusalCode, format string, args ...any) *RefusedError {
		return newRefusal(code, mine.Name, theirs.Name, format, args...)
	}
	bothIDs := mine.Cluster != ClusterID{} && theirs.Cluster != ClusterID{}
	switch {
	case bothIDs && mine.Cluster != theirs.Cluster:
		return refuse(OtherCluster, "%s belongs to cluster %v and %s to cluster %v",
			mine.Name, mine.Cluster, theirs.Name, theirs.Cluster)
	case intended.Name != reached.Name:
		return refuse(NotMeant, "the caller means %s, and the node at this address is %s", intended.Name, reached.Name)
	case intended != reached:
		return refuse(OtherIncarnation, "the caller means %s with incarnation %v, and the node at this address "+
			"has %v: it is another data directory under the same name",
			intended.Name, intended.Incarnation, reached.Incarnation)
	case mine.knowledge() == knowsNoCluster || theirs.knowledge() == knowsNoCluster:
		return refuse(NothingInCommon, "%s knows %s and %s knows %s, so nothing shows that they are "+
			"of one cluster", mine.Name, mine.knowledge(), theirs.Name, theirs.knowledge())
	case !bothIDs && mine.Initial.differ(theirs.Initial):
		return refuse(OtherInitialMembers, "%s and %s are part of different clusters: their initial members differ "+
			"(%s and %s)", mine.Name, theirs.Name, mine.Initial, theirs.Initial)
	}
	return nil
}

// knowsNoCluster is what a node knows that has neither a cluster id nor initial members.
const knowsNoCluster = "no cluster"

// knowledge names the cell of the table that a node stands in.
func (a *Answer) knowledge() string {
	switch id, initial := a.Cluster != (ClusterID{}), a.Initial != (InitialMembers{}); {
	case id && initial:
		return "a cluster id and the initial members"
	case id:
		return "only a cluster id"
	case initial:
		return "only the initial members of its cluster"
	}
	return knowsNoCluster
}
