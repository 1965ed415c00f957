package store

import "fmt"

// space decides whether there is enough free space for entries (S5).
type space struct {
	where    string
	lowSpace uint64
	reserved uint64
	free     func() uint64
}

// admit refuses to write so many bytes of entries when they would not leave the
// reserved space free. It reads the free space each time: a number from a second
// ago is wrong as soon as another program fills the disk, and reading it costs about
// a hundredth of the flush that follows.
func (s *space) admit(bytes int) error {
	free := s.free()
	if free >= s.reserved+uint64(bytes) {
		return nil
	}
	if bytes == 0 {
		return fmt.Errorf(
			"store: %w: %d MiB are free for %s, and a node needs %d MiB; make room on the disk",
			ErrDiskFull, free>>20, s.where, s.reserved>>20)
	}
	return fmt.Errorf(
		"store: %w: %d bytes are free for %s, and %d bytes of entries must leave %d for votes, "+
			"snapshots and deletions; none of the entries is in the log; make room on the disk, "+
			"and writing goes on by itself",
		ErrDiskFull, free, s.where, bytes, s.reserved)
}
