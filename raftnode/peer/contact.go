package peer

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// silentAfter is for how long calls to a follower must fail before that is logged: a connection that broke is
// made again within that time.
const silentAfter = time.Second

// Contact is what this node has heard from a server as its leader, as long as this Transport is open.
type Contact struct {
	At      time.Time // when the latest append was sent that it has answered; zero = it has answered none
	LastLog uint64    // where its log ended by that answer
	// Trip is how long heartbeats to it and back take at worst: the third longest of the last minute.
	Trip time.Duration
}

// follower is a server that this node sends appends to.
type follower struct {
	Contact
	term    uint64    // of the latest append
	failing time.Time // when the first of the appends of this term was sent that failed one after the other; zero = none did
	silent  bool      // and that was logged
	refuses time.Time // the same of those with entries: a node may answer and take none
}

// recordContact notes what became of an append, and logs once that a server does not answer and once that it does again.
// Raft would log every call.
func (t *Transport) recordContact(id raft.ServerID, at raft.ServerAddress, sent time.Time, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, err error) {
	if t.streams.ctx.Err() != nil || errors.Is(err, ErrExcluded) {
		return // this node ends; the other has its own alarm
	}
	now, log := time.Now(), t.streams.network.log
	switch what, since := t.recordVerdict(id, sent, now, args, resp, err); what {
	case isBack:
		log.Info("back "+string(id), "peer reachable again", "node", id, "address", at, "after", since)
	case isSilent:
		log.Warn("silent "+string(id), "peer unreachable; it is missing new entries until it answers", "node", id,
			"address", at, "for", since, "error", err)
	case refusesEntries:
		log.Warn("refuses "+string(id), "peer answers but rejects entries", "node", id, "address", at,
			"for", since, "error", err)
	}
}

// verdict is what there is to log of a follower.
type verdict int

const (
	nothingNew verdict = iota
	isBack
	isSilent
	refusesEntries
)

func (t *Transport) recordVerdict(id raft.ServerID, sent, now time.Time, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, err error) (what verdict, since time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.followers[id]
	if f == nil {
		f = &follower{}
		t.followers[id] = f
	}
	if f.term != args.Term {
		*f = follower{Contact: f.Contact, term: args.Term}
	}
	if err == nil {
		if f.silent {
			what, since = isBack, now.Sub(f.failing)
		}
		f.failing, f.silent = time.Time{}, false
		if len(args.Entries) > 0 {
			f.refuses = time.Time{}
		}
		if sent.After(f.At) { // a heartbeat overtakes an append
			f.Contact = Contact{At: sent, LastLog: resp.LastLog}
		}
		return what, since.Round(time.Millisecond)
	}
	if f.failing.IsZero() {
		f.failing = sent
	}
	if f.refuses.IsZero() && len(args.Entries) > 0 {
		f.refuses = sent
	}
	switch silent, refusing := now.Sub(f.failing), now.Sub(f.refuses); {
	case silent >= silentAfter && !f.At.After(f.failing):
		if !f.silent {
			f.silent, what, since = true, isSilent, silent
		}
	case len(args.Entries) > 0 && refusing >= silentAfter && f.At.After(f.refuses):
		what, since = refusesEntries, refusing
	}
	return what, since.Round(time.Millisecond)
}

// Contact returns what was heard from a server.
func (t *Transport) Contact(id raft.ServerID) Contact {
	trip := t.throttleFor(id).trips.Now(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	c := Contact{}
	if f := t.followers[id]; f != nil {
		c = f.Contact
	}
	c.Trip = trip
	return c
}
