package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

// errLost is how an append ends whose answer shows that the server's log has lost what it
// acknowledged to this leader.
var errLost = errors.New("the log of this node ends below an entry that it acknowledged")

// unreachableAfter is for how long calls to a follower must fail before that is logged: a
// connection that broke is made again within that time.
const unreachableAfter = time.Second

// Contact is what this node knows as leader of another server, as long as this Transport is open.
type Contact struct {
	// when the latest append was sent that it has answered; zero = it has answered none
	At      time.Time
	LastLog uint64 // where its log ended by that answer
	// Acknowledged is the entry up to which it has everything, as it acknowledged it to this node
	// in the term in which that leads, or led last; 0 = it acknowledged nothing.
	Acknowledged uint64
	// Trip is about the shortest round trip of late; 0 = none seen. Load and pauses make some
	// longer, distance makes all of them so. Slow is how long several took within one of the latest
	// seconds.
	Trip, Slow time.Duration
	Status     HeartbeatStatus // of its latest heartbeat; zero = none with a status was answered
}

// follower is a server that this node sends appends to. The mutex of its Transport guards all of
// it.
type follower struct {
	id       raft.ServerID
	at       time.Time       // see Contact
	lastLog  uint64          // see Contact
	slow     Repeated        // see Contact
	status   HeartbeatStatus // see Contact
	throttle throttle
	// until when no entries are sent, since the server did not take the last ones
	retryAt  time.Time
	removing bool // see Removing
	inTerm
}

// rejectedRetry is how long no entries are sent to a server that has rejected some.
const rejectedRetry = time.Second

// inTerm is what a follower did while this node leads in one term.
//
// Within a term nothing takes an acknowledged entry out of a follower's log, so one whose log ends
// below has lost it: to a damaged disk, to a disk that did not keep what it had flushed, or to an
// older copy of the directory. Raft would send the entries again and not report it, and if this
// leader failed before they are there, the vote of the follower would elect one without them. So
// the follower first has to owe them (Config.Owe), on its disk. Then it is like one that has
// noticed by itself what it lost: what it had acknowledged is forgotten here, and sent again. Raft
// counts it as before, which package tail allows.
type inTerm struct {
	term  uint64    // of the latest append
	began time.Time // when that was sent first
	beat  *beat     // the latest heartbeat that was sent beside raft; nil = none
	// of the latest append without entries that it accepted; zero after a call that failed or was
	// rejected
	confirmed    content
	confirmedAt  time.Time // when that was sent, or when the call failed
	matchIndex   uint64    // it has acknowledged everything up to here
	lost         bool      // its log ended below matchIndex, and it does not owe that yet
	failingSince time.Time
	unreachable  bool // it has failed for long, which was logged
	// as failingSince, of appends with entries: a node may answer and take none
	rejectingSince time.Time
}

// follower returns the record of a server. The mutex is held.
func (t *Transport) follower(id raft.ServerID) *follower {
	if t.followers[id] == nil {
		t.followers[id] = &follower{id: id, throttle: throttle{rate: rateInitial}}
	}
	return t.followers[id]
}

// Contact returns what this node knows of a server.
func (t *Transport) Contact(id raft.ServerID) Contact {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.follower(id)
	c := Contact{At: f.at, LastLog: f.lastLog, Trip: f.throttle.roundTrip,
		Slow: f.slow.Now(time.Now()), Status: f.status}
	if f.term == t.term {
		c.Acknowledged = f.matchIndex
	}
	return c
}

// Removing keeps a server's own removal from it, as long as it is not committed and this Transport
// is open. Raft would send it along with what is on its way to the server. If the removal is then
// never committed, because too few of the others can be reached, the server that has it would
// neither campaign nor vote for those that lack it, though they are a majority. A server learns of
// its removal by asking, once that is committed.
//
// It stays so when the removal has failed: the entry is in the log, and what waits to be sent to
// the server again is made of the log when its turn comes, seconds later. Nothing else is kept from
// the server. This node leads when it is asked, so it has committed the configuration with which
// the server came, and all those before; a later one without the server removes it.
func (t *Transport) Removing(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follower(id).removing = true
}

// enterTerm begins a call of a term to a server, and returns what the server has acknowledged in
// this term before, and whether it lost some of it. A call of an earlier term, which raft's wait
// after a failure can delay until this node leads again, forgets nothing: the follower rejects it
// for its term. The mutex is held.
func (t *Transport) enterTerm(f *follower, term uint64) (acknowledged uint64, lost bool) {
	t.term = max(t.term, term)
	if f.term > term {
		return 0, false
	}
	if f.term < term {
		f.inTerm = inTerm{term: term, began: time.Now()}
	}
	return f.matchIndex, f.lost
}

// acknowledge records that a server has everything up to index. The mutex is held.
func (f *follower) acknowledge(term, index uint64) {
	if f.term == term {
		f.matchIndex = max(f.matchIndex, index)
	}
}

// beginAppend begins an append to a server as enterTerm does, once entries may be sent, and cuts it
// short: before an entry that the server must not get, and to what its line takes. Raft continues
// from what was sent: it looks at the entries again after the call.
func (t *Transport) beginAppend(id raft.ServerID, args *raft.AppendEntriesRequest) (
	f *follower, acknowledged uint64, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f = t.follower(id)
	if wait := time.Until(f.retryAt); wait > 0 && len(args.Entries) > 0 {
		t.mu.Unlock()
		sleep(t.ctx, wait)
		t.mu.Lock()
	}
	acknowledged, lost = t.enterTerm(f, args.Term)
	if i := slices.IndexFunc(args.Entries, func(entry *raft.Log) bool {
		// The log was deleted up to here while Raft read it (package store); it looks again, and
		// sends its snapshot.
		return hasUnknownType(entry) ||
			f.removing && entry.Index > args.LeaderCommitIndex && f.isRemoval(entry)
	}); i >= 0 {
		args.Entries = args.Entries[:i]
	}
	if len(args.Entries) > 0 {
		f.throttle.limit(args)
	}
	return f, acknowledged, lost
}

// isRemoval reports whether an entry is a configuration without this server.
func (f *follower) isRemoval(entry *raft.Log) bool {
	if entry.Type != raft.LogConfiguration {
		return false
	}
	// as raft did when it took the entry into the log
	servers := raft.DecodeConfiguration(entry.Data).Servers
	return !slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == f.id })
}

// recordLoss records that the log of a server ends below what it had acknowledged when the append
// was sent. That counts, and not what it has acknowledged by now: the answers to appends and to
// heartbeats may overtake each other.
func (t *Transport) recordLoss(f *follower, term, acknowledged, lastLog uint64) error {
	t.mu.Lock()
	f.lost = f.lost || f.term == term
	t.mu.Unlock()
	t.network.log.warn("lost "+string(f.id),
		"a node lost entries that it acknowledged; it gets them again, and votes as if it had them",
		"node", f.id, "acknowledged_index", acknowledged, "last_index", lastLog)
	return fmt.Errorf("peer: %s: %w: entry %d was acknowledged, and its log ends with entry %d",
		f.id, errLost, acknowledged, lastLog)
}

// makeOwe has a server owe what it acknowledged in this term and lost, and then forgets that it
// acknowledged it.
func (t *Transport) makeOwe(f *follower, at raft.ServerAddress, term, acknowledged uint64) error {
	end := tail.End{Term: term, Index: acknowledged}
	err := t.network.config.Owe(t.ctx, Node{string(f.id), string(at)}, end)
	if err != nil {
		return fmt.Errorf("peer: %s gets no entries until its disk has recorded what it lost: %w",
			f.id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.term == term && f.lost && f.matchIndex == acknowledged {
		f.lost, f.matchIndex = false, 0
	}
	return nil
}

// observeAppend records what became of an append. It logs once that a server does not answer and
// once that it does again, where Raft would log every call, and now and then how far one is that
// has fallen behind.
func (t *Transport) observeAppend(f *follower, at raft.ServerAddress, sent time.Time,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, err error) {
	var progress string
	var progressAttrs []any
	now := time.Now()
	t.mu.Lock()
	message, since := f.updateContact(sent, now, args, resp, err)
	switch took := now.Sub(sent); {
	case len(args.Entries) > 0:
		f.throttle.observeAppend(took, err)
	case err == nil:
		f.throttle.observeRoundTrip(took)
		if isHeartbeat(args) { // it waits for no disk
			f.slow.Add(now, took)
			f.status = readStatus(resp.Addr)
		}
	}
	switch {
	case err != nil || !resp.Success: // it may have begun anew, or be in a later term
		f.confirmed, f.confirmedAt = content{}, now
	case len(args.Entries) == 0 && !isHeartbeat(args) && f.term == args.Term &&
		sent.After(f.confirmedAt):
		f.confirmed, f.confirmedAt = contentOf(args), sent
	}
	if err == nil && resp.Success && resp.Term == args.Term {
		if len(args.Entries) > 0 {
			progress, progressAttrs = f.throttle.catchUp.logLine(f.throttle.inFlightBytes, args)
		}
		f.acknowledge(args.Term, args.PrevLogEntry+uint64(len(args.Entries)))
	}
	if errors.Is(err, errEntriesRejected) {
		f.retryAt = now.Add(rejectedRetry)
	}
	t.mu.Unlock()
	if progress != "" {
		t.network.config.Logger.Info(progress, append(progressAttrs, "node", f.id)...)
	}
	if message == "" || t.ctx.Err() != nil { // this node ends
		return
	}
	level, attrs := slog.LevelInfo,
		[]any{"node", f.id, "address", at, "for", since.Round(time.Millisecond)}
	if err != nil {
		level, attrs = slog.LevelWarn, append(attrs, "error", err)
	}
	t.network.log.Log(level, message+string(f.id), message, attrs...)
}

// updateContact returns what there is to log, and how long it has lasted. The mutex is held.
func (f *follower) updateContact(sent, now time.Time, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, err error) (message string, since time.Duration) {
	withEntries := len(args.Entries) > 0
	if err == nil {
		if f.unreachable {
			message, since = "peer reachable again", now.Sub(f.failingSince)
		}
		f.failingSince, f.unreachable = time.Time{}, false
		if withEntries {
			f.rejectingSince = time.Time{}
		}
		if sent.After(f.at) { // a heartbeat overtakes an append
			f.at, f.lastLog = sent, resp.LastLog
		}
		return message, since
	}
	if f.term != args.Term {
		return "", 0 // a call of an earlier term, which took until now to fail
	}
	if f.failingSince.IsZero() {
		f.failingSince = sent
	}
	if f.rejectingSince.IsZero() && withEntries {
		f.rejectingSince = sent
	}
	switch failing, rejecting := now.Sub(f.failingSince), now.Sub(f.rejectingSince); {
	case failing >= unreachableAfter && !f.at.After(f.failingSince):
		if !f.unreachable {
			f.unreachable = true
			return "peer unreachable; it is missing new entries until it answers", failing
		}
	case withEntries && rejecting >= unreachableAfter && f.at.After(f.rejectingSince):
		return "peer answers but rejects entries", rejecting
	}
	return "", 0
}
