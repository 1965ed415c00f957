package peer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Action is what an empty node does next.
type Action string

// The actions.
const (
	Agree         Action = "agree"     // put Decision.Initial on disk, and ask again
	Bootstrap     Action = "bootstrap" // write the first entry, for the initial members on disk
	Wait          Action = "wait"      // and ask again
	JoinElsewhere Action = "elsewhere" // the cluster has begun without this node: join it, or end
	Refuse        Action = "refuse"    // end; asking again changes nothing
)

// Decision is an Action, and why.
type Decision struct {
	Action Action
	// Reason is why, and what the operator has to do, if anything.
	Reason string
	// Initial is set with Agree and Bootstrap.
	Initial InitialMembers
	// Cluster is set with JoinElsewhere: the cluster that has begun; zero: it doesn't know its id
	// yet.
	Cluster ClusterID
}

// Decide returns what a node without data does next. It is a pure function of the node's own
// answer and of what the others answered after it; docs/proofs/bootstrap.md argues why it is safe.
func Decide(mine Answer, replies []Reply) Decision {
	if mine.HasData {
		return newDecision(Refuse,
			"%s holds data, so its cluster has begun: open the data directory", mine.Name)
	}
	if !mine.List.Has(mine.Name) {
		return newDecision(Refuse,
			"the --cluster list (%v) doesn't name this node, %s: add it, the same on every node; "+
				"to become part of a running cluster, start it with --join", mine.List, mine.Name)
	}
	if d := alreadyStarted(mine, replies); d.Action != "" {
		return d
	}
	incarnations := map[string]Incarnation{mine.Name: mine.Incarnation}
	owners := map[Incarnation]string{mine.Incarnation: mine.Name}
	unreachable := map[string]string{}
	for _, reply := range replies {
		theirs := reply.Answer
		switch owner, used := owners[theirs.Incarnation]; {
		case reply.Err != nil:
			unreachable[reply.Node.ID] = reply.Err.Error()
			continue
		case theirs.Name != reply.Node.ID:
			return newDecision(Refuse,
				"the node at %s is %s, and the --cluster list says %s: correct the list, the "+
					"same on every node", reply.Node.Address, theirs.Name, reply.Node.ID)
		case mine.List != theirs.List:
			return newDecision(Refuse,
				"the --cluster lists differ: %s has %v, %s has %v; nothing was begun; give every "+
					"node the same", mine.Name, mine.List, theirs.Name, theirs.List)
		case used:
			return newDecision(Refuse,
				"%s and %s have the same incarnation %v: one data directory is a copy of the "+
					"other; empty one of them", owner, theirs.Name, theirs.Incarnation)
		}
		owners[theirs.Incarnation] = theirs.Name
		incarnations[theirs.Name] = theirs.Incarnation
	}
	var missing []string
	for _, node := range mine.List.Nodes() {
		if _, answered := incarnations[node.ID]; !answered {
			missing = append(missing, fmt.Sprintf("%s at %s (%s)",
				node.ID, node.Address, cmp.Or(unreachable[node.ID], "not asked yet")))
		}
	}
	if len(missing) > 0 {
		return newDecision(Wait,
			"a cluster begins when every node of the list has said that it holds nothing; "+
				"waiting for %s; start what is not running", strings.Join(missing, ", "))
	}
	return decideAgreed(mine, replies, NewInitialMembers(mine.List, incarnations))
}

// newDecision is one without initial members.
func newDecision(action Action, format string, args ...any) Decision {
	return Decision{Action: action, Reason: fmt.Sprintf(format, args...)}
}

// alreadyStarted decides if a node of the list holds data: then the first entry is written, with
// the initial members of the nodes that hold it. A node that is one of them, with the directory
// that it has now, has the same to write, whatever else holds data of that cluster by now. For
// every other the cluster has begun without it.
func alreadyStarted(mine Answer, replies []Reply) Decision {
	var begun []Reply
	for _, reply := range replies {
		theirs := reply.Answer
		if reply.Err != nil || !theirs.HasData || theirs.Name != reply.Node.ID {
			continue
		}
		for _, other := range begun {
			if conflict(other.Answer, theirs) {
				return newDecision(Refuse,
					"%s and %s hold data of different clusters (%s%s; %s%s): correct the "+
						"--cluster list, or move the directory aside that is left over",
					other.Answer.Name, theirs.Name,
					other.Answer.Initial, ofCluster(other.Answer.Cluster), theirs.Initial,
					ofCluster(theirs.Cluster))
			}
		}
		begun = append(begun, reply)
	}
	if len(begun) == 0 {
		return Decision{}
	}
	including := slices.IndexFunc(begun, func(r Reply) bool { // and it was not removed since
		return r.Answer.Initial.Has(mine.Server) && (r.Answer.Configuration == 0 || r.Answer.Listed)
	})
	if including < 0 {
		knowsID := slices.IndexFunc(begun,
			func(r Reply) bool { return r.Answer.Cluster != ClusterID{} })
		theirs := begun[max(knowsID, 0)]
		d := newDecision(JoinElsewhere,
			"%s at %s holds data%s, and the empty data directory of %s (incarnation %v) is no "+
				"part of it: to take %s into that cluster start it with --join and one of its "+
				"nodes; if %s lost its disk, that replaces the lost directory",
			theirs.Answer.Name, theirs.Node.Address, ofCluster(theirs.Answer.Cluster),
			mine.Name, mine.Incarnation, mine.Name, mine.Name)
		d.Cluster = theirs.Answer.Cluster
		return d
	}
	theirs := begun[including].Answer
	d := Decision{Action: Bootstrap, Initial: theirs.Initial,
		Reason: fmt.Sprintf("%s has begun the cluster, and counted on this node", theirs.Name)}
	switch list := theirs.Initial.list(); {
	case mine.List != list:
		return newDecision(Refuse,
			"%s began its cluster with the --cluster list %v, and %s has %v; give %s the same",
			theirs.Name, list, mine.Name, mine.List, mine.Name)
	case mine.Initial != theirs.Initial:
		d.Action = Agree
	case mine.Unready != "":
		return newDecision(Wait, "%s", mine.Unready)
	}
	return d
}

// conflict reports whether two nodes that hold data belong to different clusters, as far as they
// know.
func conflict(a, b Answer) bool {
	if a.Cluster != (ClusterID{}) && b.Cluster != (ClusterID{}) {
		return a.Cluster != b.Cluster
	}
	return a.Initial.differ(b.Initial)
}

func ofCluster(cluster ClusterID) string {
	if cluster == (ClusterID{}) {
		return ""
	}
	return fmt.Sprintf(" of cluster %v", cluster)
}

// decideAgreed decides when every node of the list has answered, has no data and was given the same
// list.
func decideAgreed(mine Answer, replies []Reply, initial InitialMembers) Decision {
	if mine.Unready != "" {
		return newDecision(Wait, "this node can't begin a cluster: %s", mine.Unready)
	}
	if mine.Initial != initial {
		return Decision{Action: Agree, Initial: initial,
			Reason: "every node of the list holds nothing"}
	}
	var others []string
	for _, reply := range replies {
		switch theirs := reply.Answer; {
		case theirs.Unready != "":
			others = append(others, fmt.Sprintf("%s (%s)", theirs.Name, theirs.Unready))
		case theirs.Initial != initial:
			others = append(others, theirs.Name)
		}
	}
	if len(others) > 0 {
		return newDecision(Wait, "a cluster begins when every node has the list of its initial "+
			"members on disk; waiting for %s", strings.Join(others, ", "))
	}
	return Decision{Action: Bootstrap, Initial: initial,
		Reason: fmt.Sprintf("every node of %v has the same initial members on disk", mine.List)}
}
