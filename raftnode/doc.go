// Package raftnode is one node of a cluster: the state machine of package fsm, replicated by hashicorp/raft.
//
//	n, err := raftnode.Open(ctx, cfg)
//	…
//	answer, err := n.Propose(ctx, &fsm.Drop{Session: id, Ticket: 7}) // applied, if err is nil
//	_, _, err = n.ReadBarrier(ctx)                                         // read barrier
//	n.View(func(m *fsm.Machine) { … })
//
// A command travels
//
//	Submit, Renew, ReadBarrier → queue → epoch → raft → ApplyBatch → machine → events, then answers
//
// # Goroutines
//
//	supervisor         reads raft's notices of leadership and runs one epoch after the other
//	epoch              (inside the supervisor) the only goroutine that proposes: it batches commands and
//	                   renewals, stamps each entry last of all, and keeps the promises that need time
//	raft's own         ApplyBatch, Snapshot and Restore run on raft's FSM goroutine, Persist beside it. ApplyBatch also
//	                   answers this node's proposals: it calls each Done, which must not block
//	one per slow entry waits for raft's future of a proposal that has been in flight for a tick (25 ms), because raft
//	                   reports failures only there; at most two proposals are in flight
//	maintenance loop   records the cluster id, announces this node, reports digests, watches the free space of
//	                   all disks, adapts election timeouts (timeout.go), and asks the others, while no leader
//	                   lasts, whether this node was removed and how slowly they answer
//	progress           has a leader give way that makes no progress while others could
//	lost tail          asks the others, while the log lacks an end that it had (owed.go)
//	watchdog           ends the process of a leader that stalls
//	pause measurement  measures how long this process is kept from running
//
// The machine is guarded by one lock (statemachine.go): entries are applied under it, and it is read under it.
//
// # Promises
//
//	N1  An answer without an error was applied: it is on the disks of a majority. An error says which of the
//	    other two it is: not done (NotLeaderError, ErrOverloaded, ErrClosed, ErrOtherVersion, ErrUndecodable) or
//	    ErrUnknown.
//	N2  The node never proposes a command twice. Only the client knows that it is still alive; a server that
//	    repeated a dead client's command would renew its lease.
//	N3  Each Submit, Renew and ReadBarrier is answered exactly once.
//	N4  A renewal is answered once it is applied, never before, so a leader that was deposed without knowing it
//	    renews nothing.
//	N5  ReadBarrier returns when an entry that was proposed after the call has been applied here. The machine then
//	    holds everything that was acknowledged anywhere before the call. hashicorp/raft's VerifyLeader does not
//	    show that: it counts replies to messages that were sent before the call.
//	N6  Entries carry clock readings of the epoch that proposes them, taken last and in the order of proposing.
//	    Epochs of a node never overlap.
//	N7  While any deadline is pending, an entry is proposed at least once a second, so that a leader change
//	    loses at most a second of cluster time. Without deadlines nothing is written.
//	N8  To raft a server is a node's name together with the incarnation of its data directory. So a node that
//	    was wiped or renamed, or belongs to another cluster, is another server, and packages store and peer
//	    refuse it where the lost one is meant.
//	N9  A node whose digest differs stops only if a majority of the voters agree among themselves at that
//	    index; otherwise it logs the difference and continues.
//	N10 A membership change is proposed only if a majority of the voters that it leaves answered this leader
//	    just before. A node exits for its own removal only when it knows that a configuration without it is
//	    committed.
//	N11 An entry is applied only if it fits the checksum that its proposer gave it; otherwise the process ends. One that
//	    fits is decoded by the leader before it is proposed, which refuses it, not done, if it can't be; and by every
//	    other node before it is in that node's log, and so before it is acknowledged. A node that can't decode it ends,
//	    there and when it is applied, and never skips it. So what a majority doesn't know is never committed, and nothing
//	    that was acknowledged is left out of a state. Both use the decoder that applies the entry.
//	N12 The queue in front of the log is fair between identities, and between the sessions of each (package fair):
//	    however many commands one has waiting, a command of another is in the next entry, or waits for one turn of
//	    each other that has commands waiting. The commands of one session keep their order. Ends, attachments and reads go
//	    before the acquisitions of other sessions, and have room of their own. A full queue refuses the last acquisition, or the
//	    last of the others, of the session with the most bytes of these, in the identity with the most. An acquisition that an
//	    entry left behind is refused after queueWaitMax. What is refused was certainly not done.
//	N13 A leader gives way by itself for want of progress only if a majority of the voters without it
//	    answers and writes quickly. For that reason, or for want of space, it gives way only if no
//	    leader did within a minute, as far as it and the voters that answer know.
//	N14 A node whose log has lost its end (package tail) says so in its log, and in its status what
//	    it waits for. It asks the leader, or without one all voters, in rounds that begin anew. A
//	    voter that is asked enters a later term first, unless it hears a leader. Only members may
//	    ask, and only the leader of its term may make a node owe something.
//
// # Leadership in three steps
//
// Raft reports leadership before the term has committed anything and before the machine has caught up. So for
// each such notice the node proposes LeaderStart with a fresh nonce. When that is applied here, the machine holds
// everything of earlier terms, the epoch begins, and a clock starts from the machine's time. Before that, and
// after the epoch ends, Submit answers NotLeaderError.
//
// # The leader writes while the followers write
//
// Raft stores an entry, counts it for this node, and only then sends it. Its log returns before the entry is on the disk:
// the entry is pending (S16 of package store), and the followers write it at the same time. What raft counts as committed
// is on the disks of a majority all the same, by these rules. L leads A and B in term 1, and 7 is pending on L.
//
//	W1  The results of appends that carried entries are held back until this disk has those entries (P11 of package
//	    peer). So what completes a majority, the result of a follower, comes when the leader and that follower have it.
//	    Otherwise: A answers, L and A are a majority, and L acknowledges 7. A is cut off, the power of L fails, and L and
//	    B continue without 7.
//	W2  An entry is pending only on a leader, if it is a command of its own term, and if there are two voters or more. Raft is
//	    asked for all this in the append, on its own goroutine (mayPostpone).
//	    Otherwise, on a follower: no other node holds back the answer that B gives, and when its power fails, B lacks
//	    what it acknowledged. With one voter: no result is needed, and none could be held. A configuration: raft uses it
//	    from then on, and L commits its removal of A from {L, A} by {L}, with all that is pending before it.
//	W3  A term, or a vote, is written when nothing is pending. Raft ends the leadership before it writes a later term. The
//	    log asks W2 and makes the entry pending under one lock, which the writer of the term takes to see what is pending.
//	    So entries are pending only in the term of the leader that proposed them.
//	    Otherwise: A has 7 and leads in term 2. L is sent 7, which raft has, so it answers without a write. The power of L
//	    fails; it lacks what it acknowledged, and its vote may elect a node without it.
//	W4  An append that may not be pending, a deletion, the next run of raft and the end of the store come after what was
//	    pending.
//	    Otherwise: L deletes 7, and then the writer brings it back.
//	W5  The store records which entries are pending, not an index up to which all are on the disk.
//	    Otherwise: L had written 7, deleted it as a follower, and leads again; another 7 is pending, and its result
//	    passes, because 7 was written.
//	W6  A hold ends with an error when this node ends, its connections are closed, or a write fails.
//	    Otherwise: L ends; the hold of A's result ends with it, L and A are a majority, and L acknowledges 7.
//	W7  After a write that fails no other begins, and the process ends.
//	    Otherwise: the disk has 8 without 7.
//
// An entry that was sent and lost with the leader's memory was never acknowledged. The term is on the leader's disk before
// anything is sent in it, no node leads twice in a term, and none appends in a term in which it does not lead, since a
// leadership ends on the goroutine that appends (SetHeartbeatHandler of package peer). So one index and term never name
// two entries. Heartbeats,
// rejections and answers of a newer term are not held: a leader whose disk hangs keeps its leadership until its watchdog
// sees the write that does not end.
//
// So a kill -9 of the leader, too, loses pending entries that are not being written yet.
//
// # Files
//
//	node.go, config.go, errors.go    Open, the calls of a node, and its end; relay.go: connections for relayed calls
//	instance.go, raftlogger.go       one run of hashicorp/raft and its settings
//	queue.go                         requests, the entries that they make, and their answers (order: package fair)
//	epoch.go, proposal.go            from a batch of requests to an entry in raft, and back
//	statemachine.go                  the applied entry
//	progress.go                      leaders that give way
//	watchdog.go                      what the disk or raft does not finish
//	bootstrap.go, members.go, join.go how a cluster begins and changes
//	successor.go, timeout.go         which node leads next, and when nodes elect another
//	maintenance.go, nodecall.go      announcements, and calls between nodes
//	digests.go                       replicas that differ
//	owed.go                          a log that has lost its end
//	restore.go                       a new cluster from a backup, and where its tokens begin
//
// Package peer connects the nodes, package store keeps log, votes and snapshots, package tail has
// the rule for a log that was cut, package fair orders waiting commands.
package raftnode
