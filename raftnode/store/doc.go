// Package store is everything between hashicorp/raft and the disk of one node:
// the log, the vote, the snapshots, and the file that says who the node is.
//
//	st, err := store.Open(store.Config{NodeID: "n1", Dir: "/var/lib/zamok", Fatal: die})
//	raft.NewRaft(conf, machine, st.Logs(), st.Votes(), st.Snapshots(), transport)
//
// # What is where
//
//	DIR/log.db         the log: one bbolt file, behind raft's LogCache
//	DIR/log/           or, with log store "wal", raft-wal: segments of SegmentBytes
//	                   and a table of them; a directory has one or the other
//	DIR/votes.db       term and vote: one record on bbolt
//	DIR/snapshots/     raft's file snapshots, the last two, each with a checksum of
//	                   its index, term and configuration beside it
//	DIR/identity.json  node id, incarnation, initial members, the marker of the bootstrap
//
// The term and the vote have a file of their own, so that an election never
// waits for the log's one writer. A Memory in place of the directory holds the
// same things in memory and keeps the same promises, except to outlive the
// process; handing it to the next Open is a restart after a crash, and handing
// it a Copy one after the power failed when that was taken.
//
// A write passes, from raft downwards: the floor of free space (space.go) and the
// proposer's checksum, the LogCache, the store's checksum and the writer (writer.go: one
// writer per file, timed, ended for good by the first failure), whatever a test put
// between (Wrap), and the disk.
//
// # Promises
//
// S1. A vote is kept whole or not at all. Raft writes a vote in two calls; a
// crash between them leaves the new term beside the old candidate, and that
// candidate is then granted a vote without a look at its log. Here the first
// call only remembers, and the second writes both in one transaction.
//
// S2. What was written is on the disk when the call returns. Nothing here ever
// turns off fsync. Open flushes what it finds before anybody reads it: a process
// that was killed leaves writes behind that the kernel has and the disk has not.
//
// S3. The first write or fsync of log or vote that fails is the last one: no
// later one is begun, and Config.Fatal is called to end the process. The kernel
// drops what it could not write and reports success from then on, so to try
// again would build on a hole. What the failed write itself did is unknown;
// raft finds out from the file when the process starts again.
//
// S4. A write that hangs is left to hang, and is visible: Writing tells since
// when. It is never turned into an error, because it can still land.
//
// S5. A disk that is full refuses new entries before anything is touched, with
// ErrDiskFull, and then nothing of the batch took effect. Only entries are
// refused. Votes, terms and deletions continue: raft panics when it can't keep its
// term, and deleting is the cure. They live on the floor (Config.Floor), and
// the vote's file is allocated in advance.
//
// S6. However long the range, deleting keeps no other write waiting for more
// than DeleteChunk entries, and waiting writes go first. A crash in the middle
// leaves a log without a hole: old entries go from the front, conflicting ones
// from the back. Segments need no chunks: any range goes with one small write.
//
// S7. One process at a time has the directory open; a second one is refused
// with ErrLocked. The lock is the one of votes.db.
//
// S8. The files of a directory are born together and stay together: each
// carries the incarnation, a random number drawn when the directory was made. A
// node whose log, votes or identity are missing, exchanged or older than the
// rest is refused with ErrLost, because a node that has forgotten what it
// acknowledged can elect a leader that never had it. For the same reason a log
// is never looked for in the other store (ErrOtherLog).
//
// A file of bbolt gets its name when it is whole and flushed (makeBolt). So a process may end at any step of
// making a directory, and what has a name and is not whole is damage.
//
// S9. A marker without a log refuses to start (ErrLost). A log without a marker
// is a bootstrap that was cut short: State is Unmarked, and Mark completes it.
//
// S10. A failed snapshot leaves nothing behind forever: its folder goes and
// its blocks are given back at once, its descriptor at the next collection of
// Go's heap. Folders left by a crash go at the next Open.
//
// S11. A process may end between any two steps of changing a segment, and the log
// continues at the next start. By itself raft-wal refuses every write after some of
// them (unseal), continues with a segment that is too short, and leaves the rest of a torn
// write behind the next one, where both look like damage later (inspectTail).
//
// S12. What is read is what was written, or the node ends. Every entry carries a
// checksum over all that raft acts on (Seal); term and vote are one record with one
// checksum, and so are the two tables of the log; identity.json and each snapshot
// have theirs. They are verified on every read, and Open reads the whole log, both
// snapshots if need be, and every page of a bbolt file before bbolt maps it
// (boltpages.go). Which entries there are is on record with a checksum too, since
// what is missing has none. Open refuses with ErrDamaged; a running node calls
// Fatal. A panic of a library below, or a fault on its mapped memory, is damage as
// well. What can't be told from a write that was torn when the power failed is
// named below.
//
// S13. An entry is stored only if it fits its proposer's checksum (Checksum, in
// raft.Log.Extensions): every command has one, raft's own entries none. One that
// does not fit is refused with ErrChecksum, on the leader and on a follower, and
// nothing of the append is in the log. So what is in two logs at one index and term
// is the same bytes, whether they can be decoded or not.
//
// S14. A log has no gap, and begins with or before the entry behind the newest
// snapshot. After a snapshot from the leader the log that it covers goes, at the
// next Open if a crash came between; one that reaches beyond the snapshot stays,
// because what lies beyond may have been acknowledged. One that has an entry of
// another term where the snapshot ends was never committed from there on: the process
// ends (ErrContradicted), because raft remembers its last entry, and the next Open
// deletes it. The process also ends if the log that stays has a later list of nodes,
// which raft takes only when it starts. Of a log that begins right behind the snapshot
// this is not looked at: package peer gives raft no such snapshot twice (P10 there).
//
// S15. A node doesn't start in a term beyond 2⁶³, nor with a snapshot of a later term than
// its votes or of an index beyond 2⁶² (ErrLost). Votes of 2⁶⁴−1 lead to term 0 with the next
// election; votes of 0 beside a log of a later term are what that leaves. Of the log, the last
// entry's term is compared.
//
// # What can't be told from a torn write
//
// A write of log.db counts from the moment at which a meta page names it, and that
// page says, under a checksum, which entries there are. So bbolt's files leave
// nothing open. A segment ends where its last whole write ends. If something
// follows that is not whole, the power may have failed, and then that write was not
// acknowledged; or it was whole, was acknowledged, and is damaged. It is called damage
// if a whole write follows, if no sector of it is missing (a disk writes sectors of
// 512 bytes wholly or not at all, and what is missing is zero), if the log ends
// below the entry that it had reached when the process began or was last stopped in
// order, or if nothing is left in a segment that had been written to. Else it is
// taken for torn: of single bits that flip in the last write, one in a thousand or
// so (TestAFlippedBitInASegmentIsDamage). So after a kill -9 or a power failure, damage that looks like
// missing sectors can cost what was written to the last segment since the start
// before. The leader of the same term notices (package peer, "What was
// acknowledged"); another one does not.
//
// Two more things are not seen. AppendedAt has no checksum, and decides nothing. And
// a flipped bit in a branch of log.db that makes it name an older copy of the very
// same page, with the same entries' numbers and an entry that was since overwritten,
// would bring that entry back.
//
// # What raft makes of a refusal
//
// A leader whose append is refused (S5) becomes a follower, and may be elected
// again and refused again; a follower says no to its leader, which tries again.
// So the floor is the last resort. The first one is the mark (Config.Mark, Low):
// the node announces it, and a snapshot is made while there is still room for
// it. If it leads, it hands over to a node above the mark; if the voters above it
// are no majority, the leader turns away new sessions and acquisitions, while
// renewals and releases continue.
//
// # Fatal
//
// In production Fatal logs and exits. A simulation can let it end only the
// goroutine that called it (runtime.Goexit), which is as near to the end of a
// process as raft survives: Fatal is called again by every goroutine that tries
// to write later, so that each of them ends too. If Fatal returns, the write
// answers ErrBroken, and raft panics when the write was its term.
//
// # Time
//
// The clock is read here only to measure how long a write took or has been
// taking; no reading reaches the log.
package store
