// Package store keeps what hashicorp/raft needs on the disk of one node: the log, the vote, the
// snapshots, and the node's identity.
//
//	st, err := store.Open(store.Config{NodeID: "n1", Dir: "/var/lib/zamok", Fatal: die})
//	raft.NewRaft(conf, machine, st.Logs(), st.Votes(), st.Snapshots(), transport)
//
// A Memory in place of the directory holds the same things in memory and keeps the same promises,
// except that it does not outlive the process. Opening it again is a restart after a crash, and
// opening a Copy is one after the power failed when the copy was made.
//
// # Structure
//
//	raft ─┬─ raftLog ──── engine: segmentLog, memoryLog  DIR/log/       segments of SegmentBytes
//	      ├─ votes ────── Table: boltTable, memoryTable  DIR/votes.db   term, vote, owed end
//	      └─ snapshots ── medium: directory, Memory      DIR/snapshots/ the last two, a file each
//
// and DIR/identity.json (id, incarnation, initial members), DIR/lock (locked while it is open).
//
// raftLog admits an append (free space, the proposer's checksum), seals each entry with the store's
// checksum, and hands it to the writer of the files, which makes one write at a time and none after
// one that failed. An engine only stores and deletes. A pending entry (S16) is seen by raft first,
// and written then by a goroutine that takes all that has gathered. segmentLog writes each append,
// and each deletion, as one frame behind the one before, and reads them all when it is opened. The
// term and the vote have a file of their own, so that an election waits for no more of the log than
// what is pending. Open goes one way for both mediums: lock, identity, votes, log, snapshots, and
// then everything is read and verified. The clock is read here only to measure writes; no reading
// reaches the log.
//
// # Promises
//
// In full, with what is not detected: docs/proofs/storage.md.
//
//	S1  A vote is written wholly or not at all    S10 A snapshot appears when it is complete
//	S2  What was written is flushed               S11 A record beside it names the last frame
//	S3  A write that fails is the last one        S12 What is read is what was written
//	S4  A write that hangs is seen                S13 An entry fits its proposer's checksum
//	S5  A full disk refuses entries only          S14 The log has no gap before or in it
//	S6  Entries go at the front, or for others    S15 No term or index is beyond reason
//	S7  One process has the directory open        S16 Pending entries: raft has them first
//	S8  The files of a directory match            S17 What is owed outlives a restart
//	S9  A marker without a log does not start     S18 Entries that no snapshot has stay
//
// # Files
//
//	store.go, open.go, config.go, errors.go  the opened data, and how it is opened and verified
//	log.go, pending.go, writer.go            the log that raft sees, pending entries, and writes
//	segments.go, frames.go                   the files of the log
//	votes.go, owed.go                        term and vote, and the owed end
//	boltfile.go, boltpages.go                votes.db, and its pages before bbolt maps them
//	snapshots.go, identity.go                snapshots, and identity.json
//	checksum.go, space.go                    checksums of entries, and free space
//	medium.go, memory.go                     a directory, or memory in its place
//	disk_*.go, flock_*.go                    what differs between systems
package store
