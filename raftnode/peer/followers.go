package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// ErrExcluded is what a call to a node returns whose log has lost what it acknowledged to this leader.
var ErrExcluded = errors.New("the log of this node ends below an entry that it acknowledged")

// unreachableAfter is for how long calls to a follower must fail before that is logged: a connection that
// broke is made again within that time.
const unreachableAfter = time.Second

// Contact is what this node knows as leader of another server, as long as this Transport is open.
type Contact struct {
	At      time.Time // when the latest append was sent that it has answered; zero = it has answered none
	LastLog uint64    // where its log ended by that answer
	// Trip is how long heartbeats to it and back take at worst: the third longest of the last minute.
	Trip time.Duration
}

// follower is a server that this node sends appends to.
type follower struct {
	throttle throttle
	contact  Contact // but for Trip
	removing bool    // see Removing
	inTerm           // guarded by Transport.mu, as contact and removing are
}

// inTerm is what a follower did while this node leads in one term.
//
// Within a term nothing takes an acknowledged entry out of a follower's log, so one whose log ends below has
// lost it: to a damaged disk, to a disk that did not keep what it had flushed, or to an older copy of the
// directory. Raft would send the entries again and not report it. But a vote that the follower gave meanwhile
// was given without them, and a disk that loses one write loses others. So it gets nothing more from this
// leader in this term, and is notified (Config.Lost).
type inTerm struct {
	term          uint64 // of the latest append
	matchIndex    uint64 // it has acknowledged everything up to here
	excluded      bool   // its log ended below matchIndex
	failingSince  time.Time
	unreachable   bool      // it has failed for long, which was logged
	refusingSince time.Time // as failingSince, of appends with entries: a node may answer and take none
}

// follower returns the record of a server; t.mu is held.
func (t *Transport) follower(id raft.ServerID) *follower {
	if t.followers[id] == nil {
		t.followers[id] = &follower{throttle: throttle{rate: rateInitial}}
	}
	return t.followers[id]
}

func (t *Transport) throttleFor(id raft.ServerID) *throttle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &t.follower(id).throttle
}

// enterTerm begins a call of a term to a server, and returns what the server has acknowledged in this term
// before, and whether it is excluded. A call of an earlier term, which raft's pause after a failure can delay
// until this node leads again, forgets nothing: the follower refuses it for its term.
func (t *Transport) enterTerm(id raft.ServerID, term uint64) (matchIndex uint64, excluded bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term = max(t.term, term)
	f := t.follower(id)
	if f.term > term {
		return 0, false
	}
	if f.term < term {
		f.inTerm = inTerm{term: term}
	}
	return f.matchIndex, f.excluded
}

// acknowledge notes that a server has everything up to index.
func (t *Transport) acknowledge(id raft.ServerID, term, index uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.follower(id); f.term == term {
		f.matchIndex = max(f.matchIndex, index)
	}
}

// checkLog looks at where the log of a server ends. What it had acknowledged is what it had before the append
// was sent: the answers to appends and to heartbeats may overtake each other.
func (t *Transport) checkLog(id raft.ServerID, term, acknowledged, lastLog uint64) error {
	if lastLog >= acknowledged {
		return nil
	}
	t.mu.Lock()
	if f := t.follower(id); f.term == term {
		f.excluded = true
	}
	t.mu.Unlock()
	t.network.log.Error("lost "+string(id), "ALARM: a node lost entries that it acknowledged; this leader stops "+
		"replicating to it; replace the node: start it with an empty directory and --join, and keep the old one",
		"node", id, "acknowledged_index", acknowledged, "last_index", lastLog)
	return fmt.Errorf("peer: %s: %w: entry %d was acknowledged, and its log ends with entry %d",
		id, ErrExcluded, acknowledged, lastLog)
}

// Acknowledged is the entry up to which a server has everything, as it acknowledged it to this node in the
// term in which that leads, or led last; 0 = it acknowledged nothing.
func (t *Transport) Acknowledged(id raft.ServerID) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.follower(id); f.term == t.term {
		return f.matchIndex
	}
	return 0
}

// Contact returns what this node knows of a server.
func (t *Transport) Contact(id raft.ServerID) Contact {
	trip := t.throttleFor(id).roundTrips.Now(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.follower(id).contact
	c.Trip = trip
	return c
}

// recordContact notes what became of an append, and logs once that a server does not answer and once that it
// does again. Raft would log every call.
func (t *Transport) recordContact(to Node, sent time.Time, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, err error) {
	if t.streams.ctx.Err() != nil {
		return // this node ends
	}
	message, since := t.updateContact(raft.ServerID(to.ID), sent, time.Now(), args, resp, err)
	if message == "" {
		return
	}
	level, attrs := slog.LevelInfo, []any{"node", to.ID, "address", to.Address, "for", since}
	if err != nil {
		level, attrs = slog.LevelWarn, append(attrs, "error", err)
	}
	t.network.log.Log(level, message+to.ID, message, attrs...)
}

// updateContact returns what there is to log, and how long it has lasted.
func (t *Transport) updateContact(id raft.ServerID, sent, now time.Time, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, err error) (message string, since time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, withEntries := t.follower(id), len(args.Entries) > 0
	if err == nil {
		if f.unreachable {
			message, since = "peer reachable again", now.Sub(f.failingSince)
		}
		f.failingSince, f.unreachable = time.Time{}, false
		if withEntries {
			f.refusingSince = time.Time{}
		}
		if sent.After(f.contact.At) { // a heartbeat overtakes an append
			f.contact = Contact{At: sent, LastLog: resp.LastLog}
		}
		return message, since.Round(time.Millisecond)
	}
	if f.term != args.Term {
		return "", 0 // a call of an earlier term, which took until now to fail
	}
	if f.failingSince.IsZero() {
		f.failingSince = sent
	}
	if f.refusingSince.IsZero() && withEntries {
		f.refusingSince = sent
	}
	switch failing, refusing := now.Sub(f.failingSince), now.Sub(f.refusingSince); {
	case failing >= unreachableAfter && !f.contact.At.After(f.failingSince):
		if !f.unreachable {
			f.unreachable = true
			message, since = "peer unreachable; it is missing new entries until it answers", failing
		}
	case withEntries && refusing >= unreachableAfter && f.contact.At.After(f.refusingSince):
		message, since = "peer answers but rejects entries", refusing
	}
	return message, since.Round(time.Millisecond)
}

// Removing keeps a server's own removal from it, as long as it is not committed and this Transport is open.
// Raft would send it along with what is on its way to the server. If the removal is then never committed,
// because too few of the others can be reached, the server that has it would neither campaign nor vote for
// those that lack it, though they are a majority. A server learns of its removal by asking, once that is
// committed.
//
// It stays so when the removal has failed: the entry is in the log, and what waits to be sent to the server
// again is made of the log when its turn comes, seconds later. Nothing else is kept from the server. This
// node leads when it is asked, so it has committed the configuration with which the server came, and all
// those before; a later one without the server removes it.
func (t *Transport) Removing(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follower(id).removing = true
}

// withholdRemoval cuts a request short before the removal of the server that it is for. Raft continues
// from what was sent: it looks at the entries again after the call.
func (t *Transport) withholdRemoval(id raft.ServerID, args *raft.AppendEntriesRequest) {
	t.mu.Lock()
	removing := t.follower(id).removing
	t.mu.Unlock()
	for i, entry := range args.Entries {
		if !removing || entry.Type != raft.LogConfiguration || entry.Index <= args.LeaderCommitIndex {
			continue
		}
		servers := raft.DecodeConfiguration(entry.Data).Servers // as raft did when it took the entry into the log
		if !slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == id }) {
			args.Entries = args.Entries[:i]
			return
		}
	}
}
