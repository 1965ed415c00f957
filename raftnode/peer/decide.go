package peer

import (
	"fmt"
	"strings"
)

// Reply is what came of asking one node of the list.
type Reply struct {
	Node   Node
	Answer Answer
	Err    error // if set, there is no Answer
}

// Act is what an empty node does next.
type Act string

// The acts.
const (
	Bootstrap Act = "bootstrap"
	Wait      Act = "wait"   // and ask again
	Refuse    Act = "refuse" // end; asking again changes nothing
)

// Decision is an Act, and why.
type Decision struct {
	Act Act
	// Reason says why, and, where somebody has to do something, what.
	Reason string
	// Founders are the incarnations of all nodes of the list, this one too. They are set with
	// Bootstrap, and belong on disk before the log does: Known answers by them.
	Founders map[string]Incarnation
}

// Decide says whether a node that holds nothing may begin the cluster of its list. It is a pure
// function of the node's own answer and the others'; doc.go, "Bootstrap", argues why it is safe.
func Decide(mine Answer, replies []Reply) Decision {
	if mine.Holds {
		return refusal("%s holds data, so its cluster has begun: open the data directory", mine.ID)
	}
	if !mine.List.Has(mine.ID) {
		return refusal("the --cluster list (%v) doesn't name this node, %s: add it, the same "+
			"on every node; to become part of a running cluster, `zamok join`", mine.List, mine.ID)
	}
	founders := map[string]Incarnation{mine.ID: mine.Incarnation}
	owners := map[Incarnation]string{mine.Incarnation: mine.ID}
	silent := map[string]error{}
	for _, reply := range replies {
		if reply.Err != nil {
			silent[reply.Node.ID] = reply.Err
			continue
		}
		if why := objection(mine, reply.Node, reply.Answer); why != "" {
			return refusal("%s", why)
		}
		if owner, used := owners[reply.Answer.Incarnation]; used {
			return refusal("%s and %s have the same incarnation %v: one data directory is a copy of the "+
				"other; empty one of them", owner, reply.Answer.ID, reply.Answer.Incarnation)
		}
		owners[reply.Answer.Incarnation] = reply.Answer.ID
		founders[reply.Answer.ID] = reply.Answer.Incarnation
	}
	var missing []string
	for _, node := range mine.List.Nodes() {
		if _, answered := founders[node.ID]; answered {
			continue
		}
		why := "not asked yet"
		if err := silent[node.ID]; err != nil {
			why = err.Error()
		}
		missing = append(missing, fmt.Sprintf("%s at %s (%s)", node.ID, node.Address, why))
	}
	if len(missing) > 0 {
		return Decision{Act: Wait, Reason: "a cluster begins when every node of the list has said " +
			"that it holds nothing; waiting for " + strings.Join(missing, ", ") +
			"; start what is not running"}
	}
	return Decision{
		Act:      Bootstrap,
		Reason:   fmt.Sprintf("every node of %v was given this list and counts this one in", mine.List),
		Founders: founders,
	}
}

// objection is why an answer forbids to begin the cluster, or "".
func objection(mine Answer, asked Node, theirs Answer) string {
	sameList := mine.List.Hash() == theirs.List.Hash()
	switch {
	case theirs.ID != asked.ID:
		return fmt.Sprintf("the node at %s is %s, and the --cluster list says %s: correct the list, "+
			"the same on every node", asked.Address, theirs.ID, asked.ID)
	case theirs.Holds && sameList && theirs.Yours == mine.Incarnation:
		// It began a moment ago, and counted on this very data directory, empty as it is.
		return ""
	case theirs.Holds:
		return fmt.Sprintf("%s at %s holds data%s and has %s on record for %s, which now has %v and "+
			"holds nothing: if it is new or lost its disk, `zamok remove` what it replaces and "+
			"`zamok join` it under an unused id", theirs.ID, asked.Address, of(theirs.Cluster),
			orNothing(theirs.Yours), mine.ID, mine.Incarnation)
	case !sameList:
		return fmt.Sprintf("the --cluster lists differ: %s has %v, %s has %v; nothing was begun; give "+
			"every node the same", mine.ID, mine.List, theirs.ID, theirs.List)
	}
	return ""
}

func of(cluster ClusterID) string {
	if cluster == (ClusterID{}) {
		return ""
	}
	return fmt.Sprintf(" of cluster %v", cluster)
}

func orNothing(i Incarnation) string {
	if i == (Incarnation{}) {
		return "nothing"
	}
	return "incarnation " + i.String()
}

func refusal(format string, args ...any) Decision {
	return Decision{Act: Refuse, Reason: fmt.Sprintf(format, args...)}
}
