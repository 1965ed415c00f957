package fence

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
)

// Errors of a Guard, for errors.Is.
var (
	ErrStale = errors.New(
		"fence: the token is older than one seen before: the lock was lost")
	ErrPermits = errors.New(
		"fence: permits can't be fenced: check with the cluster whether the grant is held")
	ErrAnotherCluster = errors.New(
		"fence: the token is above all that the cluster issued: another cluster?")
	ErrFull    = errors.New("fence: no room for the mark of another resource")
	ErrNoToken = errors.New("fence: no token")
)

// DefaultMarks is how many resources a Guard remembers by default.
const DefaultMarks = 1 << 20

// Kind is how the lock is held that a token belongs to.
type Kind uint8

const (
	Exclusive Kind = 1 + iota
	Shared
	Permits
)

// Guard remembers the highest exclusive token of each resource. The zero Guard is ready. Its
// methods may be called at the same time.
type Guard struct {
	// Issued returns an index that the cluster has reached, as admin.Now does: no token is above
	// it. It is called only for a token above its last result. Nil: every token is taken for one
	// of the cluster's. Set it before the first Check.
	Issued func() (uint64, error)
	// Marks bounds the resources remembered; 0 = DefaultMarks. A mark is never forgotten, since
	// what it guards would be open again.
	Marks int

	mu     sync.Mutex
	marks  map[string]uint64
	issued uint64 // the cluster has reached at least this index
}

// Check lets an access through, or says why not. Between it and the access itself no other Check of
// the same resource may come: hold what serialises your writes.
func (g *Guard) Check(resource string, kind Kind, token uint64) error {
	switch {
	case token == 0:
		return ErrNoToken
	case kind != Exclusive && kind != Shared:
		return ErrPermits
	}
	if err := g.checkIssued(resource, token); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	mark := g.marks[resource]
	if token < mark {
		return fmt.Errorf("%w (%q: %d after %d)", ErrStale, resource, token, mark)
	}
	if kind == Shared {
		return nil
	}
	return g.raise(resource, token)
}

// Set restores a mark, as from a disk. It never lowers one.
func (g *Guard) Set(resource string, token uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if token <= g.marks[resource] {
		return nil
	}
	return g.raise(resource, token)
}

// Mark is the highest exclusive token that was let through; 0 = none.
func (g *Guard) Mark(resource string) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.marks[resource]
}

func (g *Guard) raise(resource string, token uint64) error {
	most := cmp.Or(g.Marks, DefaultMarks)
	if _, known := g.marks[resource]; !known && len(g.marks) >= most {
		return fmt.Errorf("%w: %d are remembered; nothing was let through", ErrFull, most)
	}
	if g.marks == nil {
		g.marks = make(map[string]uint64)
	}
	g.marks[resource] = token
	return nil
}

// checkIssued calls Issued for a token above all that is known to have been issued. It does not
// hold the mutex meanwhile.
func (g *Guard) checkIssued(resource string, token uint64) error {
	if g.Issued == nil {
		return nil
	}
	g.mu.Lock()
	known := g.issued
	g.mu.Unlock()
	if token <= known {
		return nil
	}
	issued, err := g.Issued()
	if err != nil {
		return fmt.Errorf("fence: %q: it can't be known whether token %d was issued; nothing was "+
			"let through: %w", resource, token, err)
	}
	g.mu.Lock()
	g.issued = max(g.issued, issued)
	g.mu.Unlock()
	if token > issued {
		return fmt.Errorf("%w (%q: token %d, index %d)", ErrAnotherCluster, resource, token, issued)
	}
	return nil
}
