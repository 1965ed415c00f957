package peer

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// ErrExcluded is what a call to a node returns whose log has lost what it acknowledged to this leader.
var ErrExcluded = errors.New("the log of this node ends below what it acknowledged")

// acknowledgements are what the followers of this node have acknowledged while it leads in one term. Within a
// term nothing takes an acknowledged entry out of a follower's log, so one whose log ends below has lost it:
// to a damaged disk, to a disk that did not keep what it had flushed, or to an older copy of the
// directory. Raft would send the entries again and not mention it. But a vote that the follower gave
// meanwhile was given without them, and a disk that loses one write loses others. So it gets nothing more
// from this leader in this term, and is notified (Config.Lost).
type acknowledgements struct {
	mu       sync.Mutex
	term     uint64
	upTo     map[raft.ServerID]uint64
	excluded map[raft.ServerID]bool
}

// before is what a follower has acknowledged when a request of this term is sent, and whether it is shut out.
func (a *acknowledgements) before(term uint64, m raft.ServerID) (upTo uint64, out bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term != term {
		a.term, a.upTo, a.excluded = term, map[raft.ServerID]uint64{}, map[raft.ServerID]bool{}
	}
	return a.upTo[m], a.excluded[m]
}

// acknowledges notes that a follower has everything up to index.
func (a *acknowledgements) acknowledges(term uint64, m raft.ServerID, index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term == term {
		a.upTo[m] = max(a.upTo[m], index)
	}
}

// Acknowledged is the entry up to which a server has everything, as it acknowledged it to this node in the term in
// which that leads, or led last; 0 = it acknowledged nothing.
func (t *Transport) Acknowledged(id raft.ServerID) uint64 {
	t.acknowledged.mu.Lock()
	defer t.acknowledged.mu.Unlock()
	return t.acknowledged.upTo[id]
}

func (a *acknowledgements) exclude(term uint64, m raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term == term {
		a.excluded[m] = true
	}
}

// acknowledging sends an append and looks at the answer. What the follower had acknowledged is looked up
// before: answers to appends and to heartbeats may overtake each other.
func (t *Transport) acknowledging(to Node, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, send func() error) error {
	network, server := t.streams.network, raft.ServerID(to.ID)
	upTo, out := t.acknowledged.before(args.Term, server)
	if out {
		network.config.Lost(to, upTo)
		return fmt.Errorf("peer: nothing is sent to %s: %w", to.ID, ErrExcluded)
	}
	if err := send(); err != nil || resp.Term != args.Term {
		return err
	}
	if resp.LastLog < upTo {
		t.acknowledged.exclude(args.Term, server)
		network.log.Error("lost "+to.ID, "ALARM: a node lost entries that it acknowledged; this leader stops replicating to it; "+
			"replace the node: start it with an empty directory and --join, and keep the old directory", "node", to.ID, "acknowledged", upTo, "its log ends with", resp.LastLog)
		return fmt.Errorf("peer: %s: %w: entry %d was acknowledged, and its log ends with entry %d", to.ID, ErrExcluded, upTo, resp.LastLog)
	}
	if resp.Success {
		t.acknowledged.acknowledges(args.Term, server, args.PrevLogEntry+uint64(len(args.Entries)))
	}
	return nil
}
