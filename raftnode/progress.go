package raftnode

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
)

// A leader may hinder a cluster that would do well without it, and raft sees nothing wrong, since
// its heartbeats are answered: its disk is slow, and no commit is quicker; or what it sends is lost
// if it is large (a path-MTU black hole), and nothing is committed.
//
// So a leader gives way if its oldest entry is not committed within a bound, or it writes many
// times as slowly as the others; and if a majority of the voters without this node answers, and
// writes quickly. How the others fare follows from the answers to heartbeats, which are small, and
// from what they report there of their own writes (peer.Report): it does not depend on the large
// messages of this leader. Where no such majority is, another leader would do no better, and this
// one stays.

const (
	progressTick = 250 * time.Millisecond
	// movePause is how long no leader gives way by itself after one has, as far as its voters know.
	// It bounds how often the leadership moves when disks get slow, or fill up and are emptied, in
	// turn.
	movePause = time.Minute
	// yieldTimeouts is for how many election timeouts without a leader a node that gave way recently
	// does not campaign. The others do after one to two, so they have several tries.
	yieldTimeouts = 6
	// A leader makes no progress when that shows for progressSpell of the latest progressWindow.
	// Ticks are counted, so a pause of the process counts as one.
	progressSpell, progressWindow = 2 * time.Second, 10 * time.Second
	// commitBound is how long a commit may take, or the election timeout if that is longer, and in
	// addition what its bytes take on the slowest line (peer.RateMin).
	commitBound = time.Second
	// A leader's writes are slow from slowWriteMin on, if they take slowFactor times as long as
	// those of the others. If it gives way for late commits, the others must be slowFactor times as
	// quick as its writes or, if that is longer, as commitBound.
	slowWriteMin, slowFactor = 200 * time.Millisecond, 10
	// takesNone is what a node reports whose log takes no entries.
	takesNone = time.Hour
	// writesKept is how many of the latest writes count.
	writesKept = 3
)

// writes are the latest writes to this node's disk.
type writes struct {
	mu     sync.Mutex // guards what follows
	latest [writesKept]struct {
		at   time.Time
		took time.Duration
	}
	next int
}

func (w *writes) add(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest[w.next].at, w.latest[w.next].took = time.Now(), took
	w.next = (w.next + 1) % writesKept
}

// recent are the quickest and the slowest of the latest writes that ended within progressWindow;
// quickest is 0 if they are too few.
func (w *writes) recent(now time.Time) (quickest, slowest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	quickest = time.Hour
	for _, one := range w.latest {
		if now.Sub(one.at) > progressWindow {
			one.took, quickest = 0, 0
		}
		quickest, slowest = min(quickest, one.took), max(slowest, one.took)
	}
	return quickest, slowest
}

// writeTimes are for how long this node writes at least, and at most, of late; the write that is
// going on counts for both.
func (n *Node) writeTimes(now time.Time) (least, most time.Duration) {
	least, most = n.writes.recent(now)
	if w, writing := n.store.Writing(); writing {
		going := now.Sub(w.Since)
		least, most = max(least, going), max(most, going)
	}
	return least, most
}

// report is what this node tells its leader.
func (n *Node) report() peer.Report {
	now := time.Now()
	_, most := n.writeTimes(now)
	if cmp.Or(n.proposals.refusing(), n.store.CheckSpace()) != nil {
		most = takesNone
	}
	r := peer.Report{Write: most}
	if ago, recently := n.moves.ago(now); recently {
		r.Moved = max(ago, time.Millisecond)
	}
	return r
}

// spell are the ticks of the latest progressWindow at which something was so.
type spell []time.Time

// note notes a tick, and reports whether it was so for progressSpell.
func (s *spell) note(now time.Time, is bool) bool {
	*s = slices.DeleteFunc(*s, func(tick time.Time) bool { return now.Sub(tick) > progressWindow })
	if is {
		*s = append(*s, now)
	}
	return is && len(*s) >= int(progressSpell/progressTick)
}

// moves is when a leader last gave way by itself, as far as this node knows, and when this one did.
type moves struct {
	mu          sync.Mutex // guards what follows
	latest, own time.Time
}

func (m *moves) note(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at.After(m.latest) {
		m.latest = at
	}
}

// ago is how long ago that was; recently reports whether none may do so yet.
func (m *moves) ago(now time.Time) (ago time.Duration, recently bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.latest), !m.latest.IsZero() && now.Sub(m.latest) < movePause
}

// begin notes that this node gives way.
func (m *moves) begin(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest, m.own = now, now
}

// gaveWay reports whether this node gave way recently.
func (m *moves) gaveWay(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.own.IsZero() && now.Sub(m.own) < movePause
}

// watchProgress has this node give way when it leads without progress.
func (n *Node) watchProgress() {
	var in *instance
	var late, slow spell
	stays := ""
	tick := time.NewTicker(progressTick)
	defer tick.Stop()
	for {
		select {
		case <-n.life.Done():
			return
		case <-tick.C:
		}
		if latest := n.instance.Load(); latest != in || in.led().IsZero() || n.state.restoring.Load() > 0 {
			in, late, slow, stays = latest, nil, nil, ""
			continue
		}
		now, before := time.Now(), stays
		if stays = n.checkProgress(in, now, &late, &slow); stays != "" && stays != before {
			n.cfg.GaveWay(stays)
		}
	}
}

// checkProgress has this node give way if it leads without progress. It returns why it stays all
// the same; "" = there is no reason to give way, or it has given way.
func (n *Node) checkProgress(in *instance, now time.Time, late, slow *spell) (stays string) {
	own, _ := n.writeTimes(now)
	waits, may := in.oldestWait(now)
	isLate := late.note(now, waits > may)
	if waits <= may && own < slowWriteMin {
		return "" // and the state machine is not asked for the voters: it may be busy
	}
	all, others := in.voters()
	able := quick(others, own/slowFactor)
	isSlow := slow.note(now, own >= slowWriteMin && 2*len(able) > len(all))
	cause := "its writes are much slower than those of the others"
	switch {
	case isSlow:
	case isLate:
		cause = "its entries are not committed in time"
		able = quick(others, max(own, commitBound)/slowFactor)
	default:
		return ""
	}
	const ms = time.Millisecond
	figures := []any{"cause", cause, "oldest_entry", waits.Round(ms), "own_write", own.Round(ms)}
	for _, v := range others {
		figures = append(figures, slog.Group(v.name(),
			"write", v.report.Write, "round_trip", v.trip, "silent", v.silent))
	}
	if stays = StayedWithoutMajority; 2*len(able) > len(all) {
		quickest := func() (raft.Server, error) { return in.fittest(able, voter.answersSooner) }
		stays = n.giveWay(n.life, in, quickest, figures...)
	}
	if stays != "" {
		n.limitedLog.Log(slog.LevelWarn, "stays "+stays, "this leader makes no progress, and stays",
			append(figures, "because", stays)...)
	}
	return stays
}

// oldestWait is for how long the oldest entry, or the opening of the epoch, has been waiting to be
// committed, and for how long it may. What an entry takes on a slow line is no fault of this node.
func (in *instance) oldestWait(now time.Time) (waits, may time.Duration) {
	n := in.node
	since, bytes := n.proposals.uncommitted(in.raft.CommitIndex())
	if since.IsZero() && !n.queue.open.Load() {
		since = in.led()
	}
	if !since.IsZero() {
		waits = now.Sub(since)
	}
	return waits, max(n.timeout(), commitBound) + time.Duration(bytes)*time.Second/peer.RateMin
}

// quick are the voters that answer, and whose latest writes all took at most so long.
func quick(voters []voter, most time.Duration) (able []voter) {
	for _, v := range voters {
		if v.silent == 0 && !v.report.At.IsZero() && v.report.Write <= most {
			able = append(able, v)
		}
	}
	return able
}

// answersSooner reports whether a voter acknowledges an entry sooner than another one: after a
// round trip and a write.
func (v voter) answersSooner(than voter) bool {
	return v.trip+v.report.Write < than.trip+than.report.Write
}

// What became of a leader that made no progress, or whose disk is nearly full: the outcomes for
// Config.GaveWay. Each but Moved is why it stayed.
const (
	Moved                 = "moved" // it gave way
	StayedWithoutMajority = "no_majority"
	StayedUnfit           = "unfit"
	StayedRecent          = "recent"
	StayedMembers         = "members"
)

// giveWay transfers the leadership to the server that choose returns, unless a leader did so by
// itself a moment ago, or a change of the members is under way, whose outcome would be unknown. If
// the transfer does not end within an election timeout this node ceases to lead all the same, since
// raft starts again, and the others elect; what is in flight is then unknown. It lets the others
// campaign first (yieldTimeouts). It returns why this leader stays; "" = it gave way.
func (n *Node) giveWay(ctx context.Context, in *instance, choose func() (raft.Server, error),
	figures ...any) (stays string) {
	select {
	case n.membership <- struct{}{}:
		defer func() { <-n.membership }()
	default:
		return StayedMembers
	}
	_, others := in.voters()
	for _, v := range others {
		if v.report.Moved > 0 {
			n.moves.note(v.report.At.Add(-v.report.Moved))
		}
	}
	if _, recently := n.moves.ago(time.Now()); recently {
		return StayedRecent
	}
	to, err := choose()
	if err != nil {
		n.log.Debug("no voter is fit to lead", "error", err)
		return StayedUnfit
	}
	n.moves.begin(time.Now())
	n.cfg.GaveWay(Moved)
	n.log.Warn("this leader gives way to another node", append(figures, "to", peer.NameOf(to.ID))...)
	if err := n.transferTo(ctx, in, to); err != nil {
		n.log.Warn("the leadership transfer failed or is unconfirmed; this node has ceased to lead, and "+
			"the others elect", "error", err)
	}
	return ""
}
