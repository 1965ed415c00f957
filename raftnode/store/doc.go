// Package store keeps what hashicorp/raft needs on the disk of one node:
// the log, the vote, the snapshots, and the node's identity.
//
//	st, err := store.Open(store.Config{NodeID: "n1", Dir: "/var/lib/zamok", Fatal: die})
//	raft.NewRaft(conf, machine, st.Logs(), st.Votes(), st.Snapshots(), transport)
//
// # Files
//
//	DIR/log/           the log, in segments of SegmentBytes
//	DIR/votes.db       term, vote, and the owed end: one record in bbolt
//	DIR/snapshots/     the last two snapshots, one file each: the state, the metadata,
//	                   and a checksum of both
//	DIR/identity.json  node id, incarnation, initial members, the marker of the bootstrap
//	DIR/lock           empty; it is locked while the directory is open
//
// The term and the vote have a file of their own, so that an election waits for no more of the log
// than what is pending (S16). A Memory in place of the directory holds the same things in memory and
// keeps the same promises, except that it does not outlive the process. Opening it again is a
// restart after a crash, and opening a Copy is one after the power failed when the copy was made.
//
// # Structure
//
//	raft ─┬─ raftLog ──── engine: segmentLog, memoryLog
//	      ├─ votes ────── Table: boltTable, memoryTable
//	      └─ snapshots ── medium: directory, Memory
//
// raftLog (log.go) does for the log's files what the package promises: it admits an append (free
// space, the proposer's checksum), seals each entry with the store's checksum, and hands it to the
// writer of the files (writer.go), which makes one write at a time, measures it, and makes no more
// after one that failed. Then the entries are in the cache and in the log's extent, which is what
// raft sees. An engine only stores and deletes. A pending entry (S16) is visible first, and written
// by a goroutine that takes all that has gathered (pending.go). votes (votes.go) is the same for
// votes.db. Config.Wrap puts the faults of a test below all of this.
//
// segmentLog (segments.go) writes each append, and each deletion, as one frame behind the one
// before (frames.go), and reads them all, in order, when it is opened. So nothing is written over
// what is in use, and a deletion is one small write. The next segment is made before
// it is needed, of one that has none of the log's entries any more if there is one.
//
// Open (open.go) goes one way for both mediums: lock, identity, votes, log, snapshots, and then
// everything is read and verified; what the log has lost is owed (S17) before it is written to.
// What is written of identity and votes, and the metadata of the snapshots, stays in memory, so
// that to ask for it never waits for the disk.
//
// # Promises
//
// S1. A vote is written wholly or not at all. Raft writes a vote in two calls; a
// crash between them would leave the new term beside the old candidate, and raft would then grant
// that candidate a vote without a look at its log. Here the first
// call only remembers, and the second writes both in one transaction.
//
// S2. What was written is on the disk when the call returns, except for what is pending (S16). Nothing here ever
// turns off fsync. Open flushes what it reads before raft reads it: a process
// that was killed leaves writes that the kernel has and the disk has not.
//
// S3. After the first write or fsync of log or vote that fails, no
// other is begun, and Config.Fatal is called to end the process. The kernel
// drops what it could not write and reports success from then on, so a retry
// would leave a hole. Whether the failed write took effect is unknown until
// the file is read at the next start.
//
// S4. A write that hangs is left to hang, and is visible: Writing returns since
// when. It is never turned into an error, because it can still complete.
//
// S5. A disk that is full refuses new entries before anything is written, with
// ErrDiskFull, and nothing of the append takes effect. Only entries are
// refused, and of these no configuration that a leader appends. Votes, terms and deletions continue: raft panics when it can't store its
// term, and deletions make space. They use the reserved space (Config.ReservedSpace), and
// the vote's file is allocated in advance.
//
// S6. Entries are deleted only from the front, or by the append that takes the place of the end. Either
// is one write, which a crash leaves wholly done or not done. So no crash leaves a hole.
//
// S7. One process at a time has the directory open; a second one is refused
// with ErrLocked.
//
// S8. The files of a directory belong together: each
// carries the incarnation, a random number drawn when the directory was made. A
// node whose log, votes or identity are missing, exchanged or older than the
// rest is refused with ErrLost, because a node that has forgotten what it
// acknowledged can elect a leader that never had it. A directory whose log and snapshots another
// binary wrote, in another format (Config.Format), is refused with ErrOtherFormat: what is in it is
// whole, and this binary may misread it.
//
// A file gets its name when it is complete and flushed (makeBolt, draft). So a process may end at any
// step of making a directory, or a segment, and a file that has its name and is incomplete is
// damaged.
//
// S9. A marker without a log refuses to start (ErrLost). A log without a marker
// is a bootstrap, or a join, that was cut short; RecordCluster completes it.
//
// S10. A snapshot appears when it is complete and flushed, and one that fails leaves nothing: its file
// is removed and closed at once. None is completed once writing has ended (S3, Close). Open removes the
// unfinished files that a crash left.
//
// S11. An append is acknowledged when its frame is on the disk, and beside it, in another sector,
// the record that names it and where the log ends with it. The next frame is begun after that, so
// the record also says that the one before is there. When nothing was written for a moment, it says
// so of the last one. At the start, a frame that the record says is there and is not whole is
// damage. Only the last one may not be whole: that is cut off, and what it ended with is owed
// (S17), unless the record does not name it, so that it was never acknowledged. A record that can't
// be read may have named anything.
//
// S12. What is read is what was written, or the node ends. Every entry carries a
// checksum over all that raft acts on (Seal); term and vote are one record with one
// checksum, and so are each frame and each record of the log; identity.json and each snapshot
// have theirs. They are verified on every read, and Open reads the whole log, all
// snapshots, and every page of votes.db before bbolt maps it
// (boltpages.go). Which entries there are is on record with a checksum too (S11), since
// a missing entry has none. Open refuses with ErrDamaged; a running node calls
// Fatal. A panic of a library below, or a fault on its mapped memory, is damage as
// well. What is not noticed is listed below.
//
// S13. An entry is stored only if it fits its proposer's checksum (Checksum, in
// raft.Log.Extensions): every command has one, raft's own entries none. One that
// does not fit is refused with ErrChecksum, on the leader and on a follower, and
// nothing of the append is in the log. So two logs hold the same bytes at one index and term.
//
// S14. A log has no gap, and begins with or before the entry behind the newest
// snapshot. After a snapshot from the leader the log that it covers is deleted, at the
// next Open if a crash came between; one that reaches beyond the snapshot stays,
// because what lies beyond may have been acknowledged. One that has an entry of
// another term where the snapshot ends was never committed from there on: the process
// ends (ErrContradicted), because raft remembers its last entry, and the next Open
// deletes it. The process also ends if the log that stays has a later list of nodes,
// which raft takes only when it starts. A log that begins right behind the snapshot
// is not searched for one: package peer gives raft no such snapshot twice (P10 there).
//
// S15. A node doesn't start in a term beyond 2⁶³, nor with a snapshot of a later term than
// its votes or of an index beyond 2⁶² (ErrLost). Votes of 2⁶⁴−1 lead to term 0 with the next
// election; votes of 0 beside a log of a later term are what that leaves. Of the log, the last
// entry's term is compared.
//
// S16. Entries that Config.Postpone admits are pending: raft sees them, and the disk has not got
// them. WaitWritten returns nil when it has. A write of the table, a deletion, an append that may
// not be pending, DropStale and Close come after what is pending when they are called. Pending are
// at most 512 entries with 16 MiB; their bytes count as used (S5), and Writing shows their writer
// (S4). Nothing changes the bytes of an entry that raft has appended: writer, cache and the messages
// to the followers read them after it was acknowledged. Why this loses nothing is in package
// raftnode.
//
// S17. The end that a node owes (package tail) is on the disk, in votes.db, before the tail that it
// stands for is overwritten, and stays there over restarts. It rises to what is higher (Owe), and
// sinks only from what it is (Sink), so an answer to an earlier question takes nothing away. Tail
// counts what is on the disk: no pending entry ends what is owed.
//
// S18. The log keeps every entry that no snapshot has, and of the others as many as fit into
// LogBytes with them. It wants a snapshot (WantsSnapshot) when those that none has take half of
// LogBytes, however few entries they are.
//
// # What is not noticed
//
// A disk that reports a flush and forgets all of it, the frame and the record, leaves a log that
// never had the append. So does an older copy of the whole directory. A leader notices what was
// acknowledged to it in its own term (package peer, "What was acknowledged"); another one does not.
//
// If the last frame and both records of a segment are damaged, one of them so that it reads as
// zeros, the append is taken for one that was never acknowledged.
//
// AppendedAt is not stored: it decides nothing.
//
// # What raft makes of a refusal
//
// A leader whose append is refused (S5) becomes a follower, and may be elected again and refused again;
// a follower refuses its leader's entries, and the leader tries again. So the reserved space is the last
// resort. The first one is the low-space threshold (Config.LowSpace, IsLowSpace): the node announces
// that it is below, and a snapshot is made while there is still space for it. If it leads, it hands over
// to a node above its threshold; if the voters above theirs are no majority, the leader refuses new
// sessions and acquisitions, while renewals and releases continue.
//
// # Fatal
//
// In production Fatal logs and exits. A simulation can let it end only the
// goroutine that called it (runtime.Goexit), which is as near to the end of a
// process as raft survives: Fatal is called again by every goroutine that tries
// to write later, so that each of them ends too. If Fatal returns, the write
// returns ErrBroken, and raft panics when the write was its term.
//
// # Time
//
// The clock is read here only to measure how long a write took or has been
// taking; no reading reaches the log.
package store
