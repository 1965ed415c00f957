package peer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// decision is a case of Decide for n1.
type decision struct {
	name    string
	mine    Answer
	replies []Reply
	want    Action
	reasons []string
}

// said is an answer as a test builds it.
type said struct{ Answer }

// empty is the answer of a node that was given three and has agreed to nothing.
func empty(three List, name string) said {
	return said{Answer{Server: serverOf(name), List: three}}
}

func (s said) has(l List) said              { s.List = l; return s }
func (s said) server(r Server) said         { s.Server = r; return s }
func (s said) agreed(f InitialMembers) said { s.Initial = f; return s }
func (s said) unready(reason string) said   { s.Unready = reason; return s }
func (s said) begun(f InitialMembers, c string) said {
	s.HasData, s.Initial, s.Cluster = true, f, clusterOf(c)
	return s
}
func (s said) reply() Reply { return s.at(s.Name) }

func (s said) configured(index uint64, listed bool) said {
	s.Configuration, s.Listed = index, listed
	return s
}

func (s said) at(name string) Reply {
	return Reply{Node: Node{name, "h" + name[1:] + ":5751"}, Answer: s.Answer}
}

func silent(name string) Reply {
	return Reply{Node: Node{name, "h" + name[1:] + ":5751"}, Err: errors.New("connection refused")}
}

// decisions are about what an empty node does before a cluster has begun.
func decisions(t *testing.T) []decision {
	three := mustList(t, threeNodes)
	all, stale := initialMembersOf(three), initialMembersOf(three, serverAfterWipe("n1"))
	longer := mustList(t, threeNodes+",n4=h4:5751")
	n1, n2, n3 := empty(three, "n1"), empty(three, "n2"), empty(three, "n3")
	alone := mustList(t, "n1=h1:5751")
	return []decision{
		{"all answered, all empty, one list", n1.Answer, []Reply{n2.reply(), n3.reply()},
			Agree, []string{"every node of the list holds nothing"}},
		{"this node was agreed with another directory", n1.agreed(stale).Answer,
			[]Reply{n2.agreed(stale).reply(), n3.agreed(stale).reply()}, Agree, nil},
		{"another was", n1.agreed(initialMembersOf(three, serverAfterWipe("n3"))).Answer,
			[]Reply{n2.reply(), n3.reply()}, Agree, nil},
		{"one has not agreed", n1.agreed(all).Answer, []Reply{n2.agreed(all).reply(), n3.reply()},
			Wait, []string{"initial members on disk", "waiting for n3"}},
		{"one has agreed to others", n1.agreed(all).Answer,
			[]Reply{n2.agreed(stale).reply(), n3.agreed(all).reply()},
			Wait, []string{"waiting for n2"}},
		{"all have agreed", n1.agreed(all).Answer,
			[]Reply{n2.agreed(all).reply(), n3.agreed(all).reply()},
			Bootstrap, []string{"has the same initial members on disk"}},
		{"all have agreed and one is silent", n1.agreed(all).Answer,
			[]Reply{n2.agreed(all).reply(), silent("n3")},
			Wait, []string{"n3 at h3:5751", "connection refused"}},
		{"all have agreed and one has no room", n1.agreed(all).Answer,
			[]Reply{n2.agreed(all).reply(), n3.agreed(all).unready("its disk is full").reply()},
			Wait, []string{"n3 (its disk is full)"}},
		{"this node has no room", n1.unready("the disk is full").Answer,
			[]Reply{n2.reply(), n3.reply()},
			Wait, []string{"can't begin a cluster: the disk is full"}},
		{"one node alone", n1.has(alone).Answer, nil, Agree, nil},
		{"one node alone that has agreed", n1.has(alone).agreed(initialMembersOf(alone)).Answer,
			nil, Bootstrap, nil},
		{"one is silent", n1.Answer, []Reply{n2.reply(), silent("n3")},
			Wait, []string{"n3 at h3:5751", "connection refused", "start"}},
		{"one was not asked", n1.Answer, []Reply{n2.reply()}, Wait,
			[]string{"n3 at h3:5751", "not asked yet"}},
		{"lists differ", n1.Answer, []Reply{n2.reply(), n3.has(longer).reply()},
			Refuse, []string{"n1 has " + three.String(), "n3 has " + longer.String(),
				"give every node the same"}},
		{"lists differ and one is silent", n1.Answer, []Reply{silent("n2"), n3.has(longer).reply()},
			Refuse, nil},
		{"one was given no list", n1.Answer, []Reply{n2.reply(), n3.has(List{}).reply()}, Refuse,
			[]string{"lists differ"}},
		{"another answers at an address", n1.Answer, []Reply{n3.at("n2"), silent("n3")},
			Refuse, []string{"the node at h2:5751 is n3", "says n2"}},
		{"a copied directory", n1.Answer,
			[]Reply{n2.reply(), n3.server(Server{"n3", n2.Incarnation}).reply()},
			Refuse, []string{"n2 and n3 have the same incarnation", "copy"}},
		{"a copy of this directory", n1.Answer,
			[]Reply{n2.server(Server{"n2", n1.Incarnation}).reply(), silent("n3")},
			Refuse, []string{"n1 and n2 have the same incarnation"}},
		{"this node isn't in its list", empty(three, "n9").Answer, nil, Refuse,
			[]string{"doesn't name this node, n9"}},
		{"this node holds data", n1.begun(all, "home").Answer, nil, Refuse,
			[]string{"n1 holds data", "open the data directory"}},
	}
}

// begunDecisions are about a cluster that has begun.
func begunDecisions(t *testing.T) []decision {
	three := mustList(t, threeNodes)
	all, other := initialMembersOf(three), initialMembersOf(three, serverAfterWipe("n1"))
	longer := mustList(t, threeNodes+",n4=h4:5751")
	n1, n2, n3 := empty(three, "n1"), empty(three, "n2"), empty(three, "n3")
	joins := []string{"--join", "holds data of cluster 686f6d65", n1.Incarnation.String(),
		"replaces the lost"}
	return []decision{
		{"one has begun without this node", n1.Answer,
			[]Reply{n2.begun(other, "home").reply(), n3.reply()}, JoinElsewhere, joins},
		{"one has begun without this node, another is silent", n1.Answer,
			[]Reply{n2.begun(other, "home").reply(), silent("n3")}, JoinElsewhere, joins},
		{"this node was wiped after all had agreed", n1.server(serverAfterWipe("n1")).Answer,
			[]Reply{n2.begun(all, "home").reply(), n3.agreed(all).reply()}, JoinElsewhere,
			[]string{serverAfterWipe("n1").Incarnation.String()}},
		{"one has begun without this node, under another list", n1.Answer,
			[]Reply{n2.begun(initialMembersOf(mustList(t, "n2=h2:5751")), "home").reply(),
				silent("n3")}, JoinElsewhere, joins},
		{"one has joined a cluster", n1.Answer,
			[]Reply{n2.begun(InitialMembers{}, "home").reply(), silent("n3")},
			JoinElsewhere, joins},
		{"one has begun without this node and doesn't know its id", n1.Answer,
			[]Reply{n2.begun(other, "").reply(), silent("n3")}, JoinElsewhere,
			[]string{"holds data, and"}},

		{"one has begun and counts this node in", n1.Answer,
			[]Reply{n2.begun(all, "").reply(), silent("n3")},
			Agree, []string{"n2 has begun the cluster, and counted on this node"}},
		{"the same, and this node had agreed to others since", n1.agreed(other).Answer,
			[]Reply{n2.begun(all, "").reply(), n3.agreed(other).reply()}, Agree, nil},
		{"the same, and this node has agreed", n1.agreed(all).Answer,
			[]Reply{n2.begun(all, "").reply(), silent("n3")},
			Bootstrap, []string{"n2 has begun"}},
		{"the same, and this node was removed since", n1.agreed(all).Answer,
			[]Reply{n2.begun(all, "home").configured(7, false).reply(), silent("n3")},
			JoinElsewhere, joins[:2]},
		{"the same, and this node is still a member", n1.agreed(all).Answer,
			[]Reply{n2.begun(all, "home").configured(7, true).reply(), silent("n3")},
			Bootstrap, nil},
		{"both others have begun", n1.agreed(all).Answer,
			[]Reply{n2.begun(all, "").reply(), n3.begun(all, "home").reply()},
			Bootstrap, nil},
		{"the same, and this node has no room", n1.agreed(all).unready("the disk is full").Answer,
			[]Reply{n2.begun(all, "").reply(), silent("n3")}, Wait, []string{"the disk is full"}},
		{"one has begun under another list", n1.Answer,
			[]Reply{n2.begun(initialMembersOf(longer), "home").reply(), silent("n3")},
			Refuse, []string{"n2 began its cluster with the --cluster list " + longer.String(),
				"give n1 the same"}},
		{"two have begun with different initial members", n1.Answer,
			[]Reply{n2.begun(all, "").reply(),
				n3.begun(initialMembersOf(three, serverAfterWipe("n3")), "").reply()},
			Refuse, []string{"n2 and n3 hold data of different clusters"}},

		{"another node at an address holds data", n1.Answer,
			[]Reply{empty(three, "n7").begun(InitialMembers{}, "away").at("n2"), silent("n3")},
			Refuse, []string{"the node at h2:5751 is n7"}},
		{"the same, and a node of the list has begun", n1.agreed(all).Answer,
			[]Reply{empty(three, "n7").begun(InitialMembers{}, "home").at("n2"),
				n3.begun(all, "home").reply()}, Bootstrap, nil},
		{"two hold data of different clusters", n1.Answer,
			[]Reply{n2.begun(other, "home").reply(), n3.begun(InitialMembers{}, "away").reply()},
			Refuse, []string{"different clusters", "of cluster 686f6d65", "of cluster 61776179"}},
		{"one counts this node in, another doesn't and began otherwise", n1.agreed(all).Answer,
			[]Reply{n2.begun(all, "").reply(), n3.begun(other, "").reply()}, Refuse,
			[]string{"different clusters"}},
		{"one counts this node in, another lost its disk and joined again", n1.agreed(all).Answer,
			[]Reply{n2.begun(all, "home").reply(),
				n3.server(serverAfterWipe("n3")).begun(InitialMembers{}, "home").reply()},
			Bootstrap, nil},
		{"the same, and it comes first", n1.agreed(all).Answer,
			[]Reply{n2.server(serverAfterWipe("n2")).begun(InitialMembers{}, "home").reply(),
				n3.begun(all, "home").reply()}, Bootstrap, nil},
		{"two have begun without this node, one knows the id",
			n1.server(serverAfterWipe("n1")).Answer,
			[]Reply{n2.begun(all, "home").reply(), n3.begun(all, "").reply()}, JoinElsewhere,
			joins[:2]},
	}
}

func TestDecide(t *testing.T) {
	for _, c := range append(decisions(t), begunDecisions(t)...) {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(c.mine, c.replies)
			require.Equal(t, c.want, got.Action, got.Reason)
			for _, reason := range c.reasons {
				assert.Contains(t, got.Reason, reason)
			}
			assert.NotEmpty(t, got.Reason)
			switch c.want {
			case Agree, Bootstrap:
				// with every node of the list, and each with the directory that it has
				assert.Equal(t, initialMembersOf(c.mine.List), got.Initial)
				assert.True(t, got.Initial.Has(c.mine.Server))
			case JoinElsewhere:
				assert.Equal(t, c.replies[0].Answer.Cluster, got.Cluster)
			default:
				assert.Empty(t, got.Initial)
				assert.Empty(t, got.Cluster)
			}
		})
	}
}
