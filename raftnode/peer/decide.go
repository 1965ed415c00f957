package peer

import (
	"fmt"
	"strings"
	"time"
)

// Reply is what came of asking one node.
type Reply struct {
	Node   Node
	Answer Answer
	Err    error // if set, there is no Answer
	Took   time.Duration
}

// Act is what an empty node does next.
type Act string

// The acts.
const (
	Agree         Act = "agree"     // put Decision.Initial on disk, and ask again
	Bootstrap     Act = "bootstrap" // write the first entry, for the Initial members on disk
	Wait          Act = "wait"      // and ask again
	JoinElsewhere Act = "elsewhere" // the cluster has begun without this node: join it, or end
	Refuse        Act = "refuse"    // end; asking again changes nothing
)

// Decision is an Act, and why.
type Decision struct {
	Act Act
	// Reason says why, and, where somebody has to do something, what.
	Reason string
	// Initial are set with Agree and Bootstrap.
	Initial InitialMembers
	// Cluster is set with Elsewhere: the cluster that has begun; zero: it doesn't know its id yet.
	Cluster ClusterID
}

// Decide says what a node that holds nothing does next. It is a pure function of the node's own
// answer and of what the others answered after it; doc.go, "Bootstrap", argues why it is safe.
func Decide(mine Answer, replies []Reply) Decision {
	if mine.Holds {
		return refusal("%s holds data, so its cluster has begun: open the data directory", mine.Name)
	}
	if !mine.List.Has(mine.Name) {
		return refusal("the --cluster list (%v) doesn't name this node, %s: add it, the same "+
			"on every node; to become part of a running cluster, start it with --join", mine.List, mine.Name)
	}
	if d := alreadyStarted(mine, replies); d.Act != "" {
		return d
	}
	incarnations := map[string]Incarnation{mine.Name: mine.Incarnation}
	owners := map[Incarnation]string{mine.Incarnation: mine.Name}
	silent := map[string]error{}
	for _, reply := range replies {
		theirs := reply.Answer
		switch owner, used := owners[theirs.Incarnation]; {
		case reply.Err != nil:
			silent[reply.Node.ID] = reply.Err
			continue
		case theirs.Name != reply.Node.ID:
			return refusal("the node at %s is %s, and the --cluster list says %s: correct the list, "+
				"the same on every node", reply.Node.Address, theirs.Name, reply.Node.ID)
		case mine.List.String() != theirs.List.String():
			return refusal("the --cluster lists differ: %s has %v, %s has %v; nothing was begun; give "+
				"every node the same", mine.Name, mine.List, theirs.Name, theirs.List)
		case used:
			return refusal("%s and %s have the same incarnation %v: one data directory is a copy of the "+
				"other; empty one of them", owner, theirs.Name, theirs.Incarnation)
		}
		owners[theirs.Incarnation] = theirs.Name
		incarnations[theirs.Name] = theirs.Incarnation
	}
	if missing := missingFrom(mine.List, incarnations, silent); missing != "" {
		return Decision{Act: Wait, Reason: "a cluster begins when every node of the list has said " +
			"that it holds nothing; waiting for " + missing + "; start what is not running"}
	}
	return agree(mine, replies, NewInitialMembers(mine.List, incarnations))
}

// alreadyStarted decides if a node of the list holds data: then the first entry is written, with the initial members
// of those who hold it. A node that is one of them, with the directory that it has now, has the same
// to write, whatever else holds data of that cluster by now. For every other the cluster has begun
// without it.
func alreadyStarted(mine Answer, replies []Reply) Decision {
	var with, without *Reply // hold data, and count this node in, or don't
	for _, reply := range replies {
		theirs := reply.Answer
		if reply.Err != nil || !theirs.Holds || theirs.Name != reply.Node.ID {
			continue
		}
		for _, other := range []*Reply{with, without} {
			if other != nil && conflict(other.Answer, theirs) {
				return refusal("%s and %s hold data of different clusters (%s%s; %s%s): correct the --cluster list, or move "+
					"the directory aside that is left over", other.Answer.Name, theirs.Name, other.Answer.Initial,
					of(other.Answer.Cluster), theirs.Initial, of(theirs.Cluster))
			}
		}
		switch {
		case theirs.Initial.Has(mine.Server) && (theirs.Configuration == 0 || theirs.Listed):
			with = &reply // and it was not removed since
		case without == nil || without.Answer.Cluster == ClusterID{}:
			without = &reply
		}
	}
	switch {
	case with == nil && without == nil:
		return Decision{}
	case with == nil:
		theirs := without.Answer
		return Decision{Act: JoinElsewhere, Cluster: theirs.Cluster, Reason: fmt.Sprintf(
			"%s at %s holds data%s, and the empty data directory of %s (incarnation %v) is no part of it: "+
				"to take %s into that cluster start it with --join and the client address of one of "+
				"its nodes; if %s lost its disk, that replaces the lost directory",
			theirs.Name, without.Node.Address, of(theirs.Cluster), mine.Name, mine.Incarnation, mine.Name, mine.Name)}
	}
	return mergeMembers(mine, with.Answer)
}

// conflict reports whether two nodes that hold data belong to different clusters, as far as they know.
func conflict(a, b Answer) bool {
	if a.Cluster != (ClusterID{}) && b.Cluster != (ClusterID{}) {
		return a.Cluster != b.Cluster
	}
	one, other := a.Initial.String(), b.Initial.String()
	return one != "" && other != "" && one != other
}

// mergeMembers decides what a node does that a cluster which has begun counts in.
func mergeMembers(mine, theirs Answer) Decision {
	reason := fmt.Sprintf("%s has begun the cluster, and counted on this node", theirs.Name)
	switch {
	case mine.List.String() != theirs.Initial.list().String():
		return refusal("%s began its cluster with the --cluster list %v, and %s has %v; give %s the same",
			theirs.Name, theirs.Initial.list(), mine.Name, mine.List, mine.Name)
	case mine.Initial.String() != theirs.Initial.String():
		return Decision{Act: Agree, Initial: theirs.Initial, Reason: reason}
	case mine.Unready != "":
		return Decision{Act: Wait, Reason: mine.Unready}
	}
	return Decision{Act: Bootstrap, Initial: theirs.Initial, Reason: reason}
}

// agree decides when every node of the list was heard, holds nothing and was given the same list.
func agree(mine Answer, replies []Reply, founders InitialMembers) Decision {
	if mine.Unready != "" {
		return Decision{Act: Wait, Reason: fmt.Sprintf("this node can't begin a cluster: %s", mine.Unready)}
	}
	if mine.Initial.String() != founders.String() {
		return Decision{Act: Agree, Initial: founders, Reason: "every node of the list holds nothing"}
	}
	var others []string
	for _, reply := range replies {
		switch theirs := reply.Answer; {
		case theirs.Unready != "":
			others = append(others, fmt.Sprintf("%s (%s)", theirs.Name, theirs.Unready))
		case theirs.Initial.String() != founders.String():
			others = append(others, theirs.Name)
		}
	}
	if len(others) > 0 {
		return Decision{Act: Wait, Reason: "a cluster begins when every node has the list of its initial " +
			"members on disk; waiting for " + strings.Join(others, ", ")}
	}
	return Decision{
		Act: Bootstrap, Initial: founders,
		Reason: fmt.Sprintf("every node of %v has the same initial members on disk", mine.List),
	}
}

func missingFrom(list List, heard map[string]Incarnation, silent map[string]error) string {
	var missing []string
	for _, node := range list.Nodes() {
		if _, answered := heard[node.ID]; answered {
			continue
		}
		reason := "not asked yet"
		if err := silent[node.ID]; err != nil {
			reason = err.Error()
		}
		missing = append(missing, fmt.Sprintf("%s at %s (%s)", node.ID, node.Address, reason))
	}
	return strings.Join(missing, ", ")
}

func of(cluster ClusterID) string {
	if cluster == (ClusterID{}) {
		return ""
	}
	return fmt.Sprintf(" of cluster %v", cluster)
}

func refusal(format string, args ...any) Decision {
	return Decision{Act: Refuse, Reason: fmt.Sprintf(format, args...)}
}
