// Package raftnode is one node: the machine of package fsm, replicated by hashicorp/raft.
//
//	Submit, Renew, Fence → queue → epoch → raft → ApplyBatch → machine → answers and events
//
// # Who runs what
//
//	supervisor   reads raft's notices of leadership and runs one epoch after the other
//	epoch       (inside the supervisor) the only goroutine that proposes: it gathers commands and
//	             renewals, stamps each entry last of all, and keeps the promises that need time
//	in-flight proposal       one for each proposed entry, at most two: waits for raft's answer
//	raft's own   ApplyBatch, Snapshot and Restore run on raft's FSM goroutine, Persist beside it
//	maintenance loop        writes the marker, announces this node, reports digests, looks at the room on all
//	             disks, brings all nodes to timeouts that fit (timeout.go), and asks, while no leader is
//	             heard of, whether this node was removed
//	watchdog     ends the process of a leader that is stuck
//	pulse        measures for how long this process is kept from running
//	reportLosses   notifies a follower that its log has lost what it acknowledged
//
// The machine is guarded by one lock (statemachine.go): applied to under it, read under it.
//
// # Promises
//
//	N1  An answer without an error was applied: it is in a majority's logs, on disk. An error says
//	    which of the other two it is: not done (NotLeaderError, ErrOverloaded, ErrClosed,
//	    ErrOtherVersion) or ErrUnknown.
//	N2  The node never proposes anything twice. Only the client knows that it still lives; a
//	    server that repeated a dead client's command would renew its lease.
//	N3  Each Submit, Renew and Fence is answered exactly once.
//	N4  A renewal is answered once it is applied, never before; so a leader that was deposed
//	    without knowing it renews nothing.
//	N5  A fence is done when an entry that was proposed after the call has been applied here. What
//	    was acknowledged anywhere before the call is then in the machine. hashicorp/raft's
//	    VerifyLeader is no such proof: it counts replies to messages sent before the call.
//	N6  Entries carry readings of the clock of the epoch that proposes them, taken last and in the
//	    order of proposing. Epochs of a node follow each other; two never overlap.
//	N7  While any deadline is pending, an entry leaves at least once a second, so that a change of
//	    leader loses at most a second of cluster time. Without deadlines nothing is written.
//	N8  To raft a server is a node's name and the incarnation of its data directory together. So a
//	    node that was wiped, renamed or belongs to another cluster takes no part: it is another
//	    server, and packages store and peer refuse it where the lost one is meant.
//	N9  A node whose digest differs stops only if a majority of the voters agree among themselves
//	    at that index; otherwise it says so and continues.
//	N10 A change of the members is proposed only if a majority of the voters that it leaves answered
//	    this leader just before. A node ends for its own removal only when it knows that a
//	    configuration without it is committed.
//	N11 An entry is applied only if it fits the checksum that its proposer gave it. One that fits and
//	    can't be decoded is the same everywhere and changes nothing; one that does not fit ends the
//	    process.
//
// # Leadership in three steps
//
// Raft says "leader" before the term has committed anything and before the machine has caught up.
// So for each such notice the node proposes LeaderStart with a nonce drawn for it. When that is
// applied here, the machine holds everything of earlier terms, the epoch is open, and a clock
// starts from the machine's time. Until then, and after the epoch is lost, Submit answers
// NotLeaderError.
//
// # Files
//
//	node.go, config.go, errors.go            Open, the calls of a node, and its end
//	instance.go, raftlogger.go               one run of hashicorp/raft and its settings
//	queue.go, batcher.go, epoch.go           from a submitted command to a proposal
//	proposal.go, statemachine.go             from a proposal to the applied entry and its answer
//	unanswered.go, watchdog.go               what raft or the disk does not answer
//	bootstrap.go, members.go, configuration.go, removal.go   how a cluster begins and changes
//	successor.go, timeout.go                 which node leads next, and when nodes elect another
//	maintenance.go, nodecall.go, contact.go  announcements, calls between nodes, who answers the leader
//	digests.go, lostentries.go               replicas that differ, and followers that lost entries
//	backup.go, restore.go, tokenbase.go      backups, and where the tokens of a new cluster begin
//
// Package peer connects the nodes, package store keeps log, votes and snapshots.
package raftnode
