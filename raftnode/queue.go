package raftnode

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/fair"
	"zamok/session"
)

const (
	// queueMax bounds the requests of a class that wait to be proposed, queueBytesMax their bytes:
	// as many as they have in the log, and requestBytes for each, which is about what a small one
	// takes in memory. The fair queue compares callers by the sum of both.
	queueMax      = 1 << 15
	queueBytesMax = 64 << 20
	requestBytes  = 512
	// renewalsMax bounds the renewals of one session that wait: one would do.
	renewalsMax = 8
	// queueWaitMax is how long an acquisition may wait. One that was left behind by an entry and
	// has waited for longer is refused: more arrive than are proposed, and waiting on would only
	// add latency.
	queueWaitMax = 90 * time.Millisecond
	// An entry takes at most this many commands, and stops growing at this many bytes.
	entryCommandsMax = 1024
	entryBytesMax    = 256 << 10
	// Urgent commands take at most so much of that if others wait: more than the half that releases
	// need, so that they never lag behind the acquisitions.
	urgentCommandsMax = entryCommandsMax * 7 / 8
	urgentBytesMax    = entryBytesMax * 7 / 8
	// After an entry is applied the batcher waits for the callers that it unblocked: for as long as
	// the entry took, and at most for batchWaitMax.
	batchWaitMax = 2 * time.Millisecond
)

// errNotLeading is the queue's error; Submit turns it into a NotLeaderError.
var errNotLeading = errors.New("this node does not lead")

// Answer is the result of a command, a renewal or a read barrier.
type Answer struct {
	Result fsm.Result
	// Stamp and Time are the state machine's after the entry.
	Stamp clock.Stamp
	Time  clock.Time
}

// Done receives an answer, or the reason why there is none. It is called exactly once, on the
// goroutine that has the answer: usually the one that applies entries, or one that submits another
// command. So it must not block.
type Done func(Answer, error)

// request is a command that waits to be proposed, or with nil a read barrier, or the renewal of a
// session.
type request struct {
	from    string // the identity of the caller; "" = this node
	command fsm.Command
	renews  bool
	session session.ID // that it renews
	since   time.Time
	done    Done
	bytes   int // of the command in an entry; set by the queue
}

// orderOf returns the session under which a command is ordered, and its class. Ends, attachments,
// reads, and commands of operators and nodes are urgent: they do not wait for acquisitions of other
// sessions. Each opening of a session is ordered by itself.
func orderOf(c fsm.Command) (order uint64, class fair.Class) {
	switch c := c.(type) {
	case *fsm.OpenSession:
		return binary.LittleEndian.Uint64(c.Secret[:]) | 1<<63, fair.Normal // beyond all sessions
	case *fsm.Acquire:
		return uint64(c.Session), fair.Normal
	case *fsm.Drop:
		return uint64(c.Session), fair.Urgent
	case *fsm.DropUnrenewed:
		return uint64(c.Session), fair.Urgent
	case *fsm.Downgrade:
		return uint64(c.Session), fair.Urgent
	case *fsm.Attach:
		return uint64(c.Session), fair.Urgent
	case *fsm.ReleaseOnDisconnect:
		return uint64(c.Session), fair.Urgent
	case *fsm.CloseSession:
		return uint64(c.Session), fair.Urgent
	case *fsm.WithdrawSession:
		return uint64(c.Session), fair.Urgent
	}
	return 0, fair.Urgent
}

// renewal is a session to renew, with all callers that wait for that.
type renewal struct {
	id   session.ID
	done []Done
}

// queue holds what waits to be proposed. It is open while this node leads.
type queue struct {
	wake     chan struct{} // capacity 1: there may be an entry to propose
	gathered *time.Timer   // the callers that the last entry unblocked have been waited for

	// this node leads; set to false only with mu held, so that nothing is added after end
	open atomic.Bool

	mu       sync.Mutex // guards what follows
	batcher  batcher
	waiting  fair.Queue[request]
	lastTake time.Time
	taken    []request // reused by take; empty between calls
	renewals map[session.ID][]Done
	oldest   time.Time // of the renewals; zero = none
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), gathered: time.NewTimer(0),
		renewals: make(map[session.ID][]Done)}
}

// put adds a request, and returns the requests that it refuses, with the reason. It refuses the
// request itself if this node does not lead (errNotLeading). If the queue is full, it refuses
// (ErrOverloaded) the last request of the same class in the session where these cost most, in the
// identity where they do: acquisitions never take the room of what is urgent.
//
// Renewals have a limit of their own: at most renewalsMax per session. A refused renewal has others
// of its session in front of it, which have the same effect. A renewal is part of the next entry;
// the epoch proposes one at its tick if there is no other reason.
func (q *queue) put(r request) (refused []request, err error) {
	from, class := fair.From{Identity: r.from}, fair.Urgent
	if r.command != nil {
		r.bytes = fsm.Size(r.command)
		from.Session, class = orderOf(r.command)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.open.Load():
		return []request{r}, errNotLeading
	case r.renews && len(q.renewals[r.session]) >= renewalsMax:
		return []request{r}, ErrOverloaded
	case r.renews:
		if len(q.renewals) == 0 {
			q.oldest = r.since
		}
		q.renewals[r.session] = append(q.renewals[r.session], r.done)
		return nil, nil
	}
	q.waiting.Put(from, fair.Item[request]{Value: r, Class: class, Cost: requestBytes + r.bytes})
	for q.waiting.Len(class) > queueMax || q.waiting.Cost(class) > queueBytesMax {
		refused, err = append(refused, q.waiting.Evict(class).Value), ErrOverloaded
	}
	if q.batcher.ready(q.count(), time.Now()) {
		offer(q.wake, struct{}{})
	}
	return refused, err
}

// count is how many requests wait, but for renewals.
func (q *queue) count() int { return q.waiting.Len(fair.Normal) + q.waiting.Len(fair.Urgent) }

// crowded reports whether more waits than the next entry can take.
func (q *queue) crowded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count() > entryCommandsMax ||
		q.waiting.Cost(fair.Normal)+q.waiting.Cost(fair.Urgent) >
			entryBytesMax+entryCommandsMax*requestBytes
}

// completed records that an entry with so many requests was answered, and how many callers that
// unblocked.
func (q *queue) completed(requests, unblocked int, sent time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	wait := q.batcher.completed(requests, unblocked, sent, now)
	if unblocked > 1 { // the next request of one caller is enough by itself (ready)
		q.gathered.Reset(wait)
	}
	if q.batcher.ready(q.count(), now) {
		offer(q.wake, struct{}{})
	}
}

// batch is the contents of one entry.
type batch struct {
	requests []request
	renewals []renewal
}

// take moves as much into a batch as an entry holds, all renewals, then requests, and counts it as
// in flight. Urgent requests come first, and take a bounded part of the entry (urgentCommandsMax)
// if others wait. It also returns the acquisitions that have waited too long: longer than
// queueWaitMax, and since before the last entry was taken. So after a slow entry those that arrived
// during it are proposed.
func (q *queue) take() (b batch, late []request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	before := now.Add(-queueWaitMax)
	if q.lastTake.Before(before) {
		before = q.lastTake
	}
	q.lastTake = now
	for oldest := q.waiting.Oldest(); oldest != nil &&
		oldest.Value.since.Before(before); oldest = q.waiting.Oldest() {
		late = append(late, q.waiting.TakeOldest().Value)
	}
	bytes := q.fill(fair.Urgent, urgentCommandsMax, 0, urgentBytesMax)
	for before := -1; before < len(q.taken); {
		before = len(q.taken)
		bytes = q.fill(fair.Normal, entryCommandsMax, bytes, entryBytesMax)
		bytes = q.fill(fair.Urgent, entryCommandsMax, bytes, entryBytesMax)
	}
	q.batcher.sent(len(q.taken))
	return q.batch(fsm.RenewalsMax), late
}

// fill takes requests of a class up to a number and a number of bytes, but at least one.
func (q *queue) fill(c fair.Class, most, bytes, bytesMax int) int {
	for len(q.taken) < most {
		next := q.waiting.Next(c)
		if next == nil || len(q.taken) > 0 && bytes+next.Value.bytes > bytesMax {
			break
		}
		bytes += next.Value.bytes
		q.taken = append(q.taken, q.waiting.Take(c).Value)
	}
	return bytes
}

// end closes the queue and returns what waited, none of which was proposed.
func (q *queue) end() batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open.Store(false)
	for q.count() > 0 {
		q.fill(fair.Normal, math.MaxInt, 0, math.MaxInt)
		q.fill(fair.Urgent, math.MaxInt, 0, math.MaxInt)
	}
	b := q.batch(len(q.renewals))
	// only a leader needs room
	q.waiting, q.taken, q.renewals = fair.Queue[request]{}, nil, map[session.ID][]Done{}
	return b
}

// batch makes a batch of the taken requests, and at most a number of renewals.
func (q *queue) batch(renewals int) batch {
	b := batch{requests: slices.Clone(q.taken)}
	clear(q.taken)
	q.taken = q.taken[:0]
	for id, done := range q.renewals {
		if len(b.renewals) == renewals {
			break
		}
		b.renewals = append(b.renewals, renewal{id, done})
		delete(q.renewals, id)
	}
	if len(q.renewals) == 0 {
		q.oldest = time.Time{}
	}
	slices.SortFunc(b.renewals, func(a, b renewal) int { return cmp.Compare(a.id, b.id) })
	return b
}

// look reports whether enough requests or renewals wait for an entry now, and whether no entry is
// in flight. What is due waits for that: an entry in flight carries the time already. An entry that
// raft rejects counts as in flight until awaitFailures has seen it fail. Raft rejects everything
// while it transfers the leadership, and otherwise the epoch would propose what is due in a hot
// loop until then.
func (q *queue) look() (ready, idle bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, g := time.Now(), &q.batcher
	renew := g.entries < inFlightMax && !q.oldest.IsZero() && now.Sub(q.oldest) >= renewalsWait
	return renew || g.ready(q.count(), now), g.entries == 0
}

// answer answers each request and renewal of a batch, with err unless that is nil.
func (b *batch) answer(a fsm.Applied, err error) {
	if err == nil && a.Refused == fsm.OtherVersion {
		err = ErrOtherVersion
	}
	answer, results := Answer{Stamp: a.Stamp, Time: a.Time}, a.Results
	for _, r := range b.requests {
		answer.Result = fsm.Result{}
		if err == nil && r.command != nil {
			answer.Result, results = results[0], results[1:]
		}
		r.done(answer, err)
	}
	for _, r := range b.renewals {
		answer.Result = fsm.Result{Session: r.id}
		if _, dead := slices.BinarySearch(a.Unrenewed, r.id); dead {
			answer.Result = fsm.Result{Code: fsm.NoSession}
		}
		for _, done := range r.done {
			done(answer, err)
		}
	}
}

// fail answers everything in a batch with an error.
func (b *batch) fail(err error) { b.answer(fsm.Applied{}, err) }

// batcher decides how many requests share an entry. The cost of an entry, mostly a disk flush on
// the leader and on a follower at the same time, hardly depends on its size. So requests that
// arrive at about the same time should share one, and a lone request should go at once.
//
// A client often sends its next request as soon as it is answered. If the first such request were
// proposed alone, the others would wait for it, and again the next time: the clients would split
// into groups, one behind the other. So after an entry is applied the batcher waits briefly for the
// requests of the callers that it unblocked.
type batcher struct {
	entries  int       // in flight
	inFlight int       // requests in them
	expected int       // how many callers the last applied entry unblocked
	until    time.Time // until when their requests are waited for
}

func (g *batcher) sent(requests int) {
	g.entries++
	g.inFlight += requests
	g.expected = 0
}

// completed records that an entry was answered and how many callers it unblocked, and returns for
// how long to wait for their requests.
func (g *batcher) completed(requests, unblocked int, sent, now time.Time) time.Duration {
	g.entries--
	g.inFlight -= requests
	g.expected = unblocked
	wait := min(now.Sub(sent), batchWaitMax)
	g.until = now.Add(wait)
	return wait
}

// ready reports whether so many waiting requests are enough for an entry beside those in flight. A
// second one is not proposed before it is as large as the first, because two small entries cost as
// much as two large ones.
func (g *batcher) ready(waiting int, now time.Time) bool {
	switch {
	case waiting == 0, g.entries == inFlightMax:
		return false
	case g.entries > 0:
		return waiting >= g.inFlight
	}
	return waiting >= g.expected || !now.Before(g.until)
}

// countUnblocked is how many waiting callers an entry unblocks: those that are answered, unless the
// answer is to wait, and those that were granted what others held.
func countUnblocked(requests int, a fsm.Applied) int {
	n := requests
	for i := range a.Results {
		// its event is counted
		if r := &a.Results[i]; r.State == fsm.Waiting ||
			r.State == fsm.Granted && r.Token == r.Index {
			n--
		}
	}
	for i := range a.Events {
		if a.Events[i].Kind == fsm.EvGranted {
			n++
		}
	}
	return n
}
