// Package raftnode is one node of a cluster: the state machine of package fsm, replicated by
// hashicorp/raft.
//
//	n, err := raftnode.Open(ctx, cfg)
//	…
//	answer, err := n.Propose(ctx, &fsm.Drop{Session: id, Ticket: 7}) // applied, if err is nil
//	_, _, err = n.ReadBarrier(ctx)                                   // read barrier
//	n.View(func(m *fsm.Machine) { … })
//
// # Parts
//
// Node composes parts, each with one subject, its own fields and locks, and the parts that it uses.
// Decisions that need only values are functions of samples: chooseTimeout, chooseSuccessor,
// standstill, stallSamples.stuck, noRoom, digests.compare.
//
//	node.go, config.go, errors.go  composition, the calls of a node, and its end
//	proposer.go, queue.go          proposer: requests, the entries that they make, their answers
//	epoch.go, proposal.go          from a batch of requests to an entry in raft, and back
//	statemachine.go, digests.go    state: the machine behind its lock; replicas that differ
//	raftrun.go, raftlogger.go      raftRuns: one run of hashicorp/raft after the other
//	timeout.go                     timing: when nodes without a leader elect another
//	successor.go                   handover: the voters, and which of them leads next
//	progress.go, diskspace.go      progress, room: leaders that give way; room on the disks
//	watchdog.go                    watchdog: what the disk or raft does not finish
//	roster.go                      roster: which servers the cluster has
//	members.go                     changes: members that are added, replaced and removed
//	bootstrap.go, join.go          admission: how a node gets into a cluster
//	maintenance.go                 the maintenance loop; announcer: what a node announces
//	owed.go                        tailDebt: a log that has lost its end
//	nodecall.go, relay.go          requests between nodes, and relayed calls of clients
//	restore.go                     a new cluster from a backup, and where its tokens begin
//
// # Goroutines
//
//	supervisor          waits until raft makes this node leader, and runs epoch after epoch.
//	                    An epoch is the only one that proposes, and stamps each entry last of all
//	raft's own          apply, freeze and restore the machine; each Done is called there
//	one per slow entry  waits for raft's future, where alone raft reports failures
//	one each            maintenance loop, progress, watchdog, pauses, lost tail
//
// # Promises
//
// In full: docs/proofs/replication.md, and docs/proofs/writing.md for W1 to W7, by which a leader
// writes an entry while the followers write it.
//
//	N1  An answer without an error was applied    N8  A server is a name and an incarnation
//	N2  No command is proposed twice              N9  A node stops only against a majority
//	N3  Each request is answered once             N10 A change needs a majority that responds
//	N4  A renewal is answered when it is applied  N11 No state lacks what was acknowledged
//	N5  A read barrier has all before it          N12 The queue is fair
//	N6  Clock readings are of the epoch           N13 A leader gives way to quick nodes only
//	N7  With a deadline an entry each second      N14 A node with a lost tail queries others
//
// Package peer connects the nodes, package store keeps log, votes and snapshots, package tail has
// the rule for a log that was cut, and package fair orders waiting commands.
package raftnode
