package peer

import (
	"encoding/hex"
	"fmt"
)

// An Incarnation tells a data directory from every other one that ever bore the same node id:
// 128 random bits, written once when the directory is made. The zero value is no incarnation.
type Incarnation [16]byte

func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// A ClusterID tells clusters apart: the random id in a cluster's first LeaderStart. The zero
// value says that no cluster id is known.
type ClusterID [16]byte

func (c ClusterID) String() string { return hex.EncodeToString(c[:]) }

// A ListHash is the SHA-256 of a List in canonical form. The zero value stands for the zero List.
type ListHash [32]byte

func (h ListHash) String() string { return hex.EncodeToString(h[:]) }

// run is drawn at each start of a Network, so that a node which merely restarted can be told from
// two processes which run one data directory.
type run [8]byte

// identity is what the two ends of a connection tell each other about themselves.
type identity struct {
	id          string
	incarnation Incarnation
	run         run
	cluster     ClusterID
	list        ListHash
}

// judge is the table of doc.go: it says why mine must not speak Raft with theirs, or nil. The
// caller meant one node and reached another or the same; the record is the incarnation that mine
// has on record for theirs (zero: none). Both ends judge, each by what it knows itself.
func judge(mine, theirs identity, meant, reached string, record Incarnation) *RefusedError {
	refuse := func(code Code, format string, args ...any) *RefusedError {
		return &RefusedError{Code: code, By: mine.id, Peer: theirs.id, Fact: fmt.Sprintf(format, args...)}
	}
	var none identity
	bothIDs := mine.cluster != none.cluster && theirs.cluster != none.cluster
	bothLists := mine.list != none.list && theirs.list != none.list
	switch {
	case bothIDs && mine.cluster != theirs.cluster:
		return refuse(OtherCluster, "%s belongs to cluster %v and %s to cluster %v",
			mine.id, mine.cluster, theirs.id, theirs.cluster)
	case meant != reached:
		return refuse(NotMeant, "the caller means %s, and the node at this address is %s", meant, reached)
	case !bothIDs && bothLists && mine.list != theirs.list:
		return refuse(OtherList, "%s and %s were given different --cluster lists (hashes %v and %v)",
			mine.id, theirs.id, mine.list, theirs.list)
	case !bothIDs && !bothLists:
		return refuse(NothingInCommon, "%s knows %s and %s knows %s, so nothing shows that they are "+
			"of one cluster", mine.id, mine.knowledge(), theirs.id, theirs.knowledge())
	case record != none.incarnation && record != theirs.incarnation:
		return refuse(OtherIncarnation, "%s has incarnation %v on record for %s, which now has %v: "+
			"it is another data directory under the old name",
			mine.id, record, theirs.id, theirs.incarnation)
	case mine.cluster != none.cluster && !bothIDs && record == none.incarnation:
		// A founder that lags behind and a wiped node that was made to bootstrap again both come
		// with a list and no cluster id. Only the record tells them apart.
		return refuse(NotOnRecord, "%s doesn't know its cluster's id yet, and %s has no incarnation on "+
			"record for it", theirs.id, mine.id)
	}
	return nil
}

// knowledge names the cell of the table that an identity stands in.
func (i identity) knowledge() string {
	switch {
	case i.cluster == ClusterID{} && i.list == ListHash{}:
		return "no cluster"
	case i.cluster == ClusterID{}:
		return "only a --cluster list"
	case i.list == ListHash{}:
		return "only a cluster id"
	}
	return "a cluster id and a --cluster list"
}
