package store

import "fmt"

// space decides whether there is enough free space for entries (S5).
type space struct {
	where    string
	lowSpace uint64
	reserved uint64
	free     func() uint64
	reusable func() uint64
}

// admit refuses to write so many bytes of entries when they would not leave the
// reserved space free. It asks the file system each time: a number from a second
// ago is wrong as soon as another program fills the disk, and asking costs about
// a hundredth of the flush that follows.
//
// A log file never shrinks, so after a deletion the disk is as full as before,
// and the free space is inside the file. Entries that fit there several times over are
// admitted too, down to half of the reserved space: bbolt needs contiguous pages,
// and otherwise allocates new ones, out of the reserved space.
func (s *space) admit(bytes int) error {
	free, need := s.free(), uint64(bytes)
	if free >= s.reserved+need || free >= s.reserved/2+need && s.reusable() >= reuseFactor*(need+reusePages) {
		return nil
	}
	if bytes == 0 {
		return fmt.Errorf("store: %w: %d MiB are free for %s, and a node needs %d MiB; make room on the disk",
			ErrDiskFull, free>>20, s.where, s.reserved>>20)
	}
	return fmt.Errorf("store: %w: %d bytes are free for %s, and %d bytes of entries must leave %d for votes, snapshots and deletions; "+
		"none of the entries is in the log; make room on the disk, and writing goes on by itself",
		ErrDiskFull, free, s.where, bytes, s.reserved)
}

// The free space inside a log file counts if it holds the entries, and the pages of
// bbolt's tree that are copied with them, this many times over.
const (
	reuseFactor = 4
	reusePages  = 128 << 10 // bytes
)
