package sim

import (
	"time"

	"zamok/raftnode"
)

// electionTimeMax is well above what an election takes that nothing disturbs.
const electionTimeMax = 5 * time.Second

// Start starts all initial members, waits until each has opened, and returns who leads.
func (s *Sim) Start() *Node {
	s.Helper()
	for _, n := range s.InitialMembers() {
		n.StartProcess()
	}
	ctx := s.Within(electionTimeMax)
	for _, n := range s.InitialMembers() {
		if err := n.AwaitOpen(ctx); err != nil {
			s.Fatalf("%s did not open: %v", n.ID, err)
		}
	}
	return s.Leader()
}

// Restart starts the node again and waits until it has opened.
func (n *Node) Restart(tune ...Tune) {
	n.sim.Helper()
	n.StartProcess(tune...)
	if err := n.AwaitOpen(n.sim.Within(electionTimeMax)); err != nil {
		n.sim.Fatalf("%s did not open again: %v", n.ID, err)
	}
}

// Leader waits until exactly one node has an open epoch, and returns it.
func (s *Sim) Leader() *Node {
	s.Helper()
	var leader *Node
	s.Await(electionTimeMax, "one node leads", func() bool {
		leads := s.Leaders()
		if len(leads) == 1 {
			leader = leads[0]
		}
		return len(leads) == 1
	})
	return leader
}

// LeaderOtherThan waits until a node other than this one leads.
func (s *Sim) LeaderOtherThan(old *Node) *Node {
	s.Helper()
	var leader *Node
	s.Await(electionTimeMax, "another node than "+old.ID+" leads", func() bool {
		for _, n := range s.Leaders() {
			if n != old {
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

// Leaders are the nodes that have an open epoch, as they see it.
func (s *Sim) Leaders() []*Node {
	var leading []*Node
	for _, n := range s.Nodes() {
		if up := n.Running(); up != nil && up.Status().Leading {
			leading = append(leading, n)
		}
	}
	return leading
}

// Others are the members beside this node.
func (s *Sim) Others(node *Node) []*Node {
	var others []*Node
	for _, n := range s.Members() {
		if n != node {
			others = append(others, n)
		}
	}
	return others
}

// AwaitApplied waits until a node has applied all that the leader had applied at the call.
func (s *Sim) AwaitApplied(leader, follower *Node, within time.Duration) {
	s.Helper()
	want := leader.Status().Applied
	s.Await(within, follower.ID+" has caught up", func() bool {
		up := follower.Running()
		return up != nil && !up.Status().Applied.Before(want)
	})
}

// Status is how the node is doing; the zero Status when it does not run.
func (n *Node) Status() raftnode.Status {
	if up := n.Running(); up != nil {
		return up.Status()
	}
	return raftnode.Status{}
}
