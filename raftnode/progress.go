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

// A leader may hold up a cluster that would do well without it. Raft sees nothing wrong, since the
// followers respond to heartbeats. Its disk may be slow, and no commit is faster than the disk. Or
// its large messages are lost (a path-MTU black hole), and nothing is committed.
//
// So a leader gives way if its oldest entry is not committed within a bound, or if it writes many
// times as slowly as the others. In addition a majority of the voters without this node must
// respond and write quickly. How the others fare is known from their responses to heartbeats, which
// are small, and from the status in these (peer.HeartbeatStatus): it does not depend on the large
// messages of this leader. Without such a majority another leader would do no better, and this one
// stays.

const (
	progressTick = 250 * time.Millisecond
	// moveInterval is how long no leader gives way by itself after one has, as far as its voters
	// know. It bounds how often the leadership moves when disks get slow, or fill up and are
	// emptied, in turn.
	moveInterval = time.Minute
	// yieldTimeouts is for how many election timeouts without a leader a node that gave way
	// recently stays passive. The others do after one to two, so they have several tries.
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
	// takesNone is what a node tells its leader whose log takes no entries.
	takesNone = time.Hour
	// writesKept is how many of the latest writes count.
	writesKept = 3
)

// writes are the latest writes to this node's disk.
type writes struct {
	*base
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

// times are for how long this node writes at least, and at most, of late; the write that is
// going on counts for both.
func (w *writes) times(now time.Time) (least, most time.Duration) {
	least, most = w.recent(now)
	if one, writing := w.store.Writing(); writing {
		going := now.Sub(one.Since)
		least, most = max(least, going), max(most, going)
	}
	return least, most
}

// progress watches whether this leader makes progress, and has it give way.
type progress struct {
	*base
	state    *state
	proposer *proposer
	runs     *raftRuns
	handover *handover
	writes   *writes
	changing chan struct{} // full while a change of the members is being made
	moves    moves
}

// heartbeatStatus is what this node tells its leader.
func (p *progress) heartbeatStatus() peer.HeartbeatStatus {
	now := time.Now()
	_, most := p.writes.times(now)
	if cmp.Or(p.proposer.proposals.appendFailure(), p.store.CheckSpace()) != nil {
		most = takesNone
	}
	r := peer.HeartbeatStatus{Write: most}
	if ago, recently := p.moves.ago(now); recently {
		r.Moved = max(ago, time.Millisecond)
	}
	return r
}

// spell are the ticks of the latest progressWindow at which a condition held.
type spell []time.Time

// add records a tick, and reports whether the condition holds and has held for progressSpell.
func (s *spell) add(now time.Time, holds bool) bool {
	*s = slices.DeleteFunc(*s, func(tick time.Time) bool { return now.Sub(tick) > progressWindow })
	if holds {
		*s = append(*s, now)
	}
	return holds && len(*s) >= int(progressSpell/progressTick)
}

// moves is when a leader last gave way by itself, as far as this node knows, and when this node
// did.
type moves struct {
	mu          sync.Mutex // guards what follows
	latest, own time.Time
}

func (m *moves) heard(at time.Time) {
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
	return now.Sub(m.latest), !m.latest.IsZero() && now.Sub(m.latest) < moveInterval
}

// begin records that this node gives way.
func (m *moves) begin(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest, m.own = now, now
}

// gaveWay reports whether this node gave way recently.
func (m *moves) gaveWay(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.own.IsZero() && now.Sub(m.own) < moveInterval
}

// mayCampaign reports whether this node may request votes. One that gave way recently votes for
// others, and campaigns only after it has heard no leader for yieldTimeouts.
func (p *progress) mayCampaign() bool {
	if !p.moves.gaveWay(time.Now()) {
		return true
	}
	run := p.runs.latest.Load()
	heard := run.opened
	if contact := run.raft.LastContact(); contact.After(heard) {
		heard = contact
	}
	return time.Since(heard) >= yieldTimeouts*p.runs.timing.timeout()
}

// watch has this node give way when it leads without progress.
func (p *progress) watch() {
	var run *raftRun
	var late, slow spell
	stays := ""
	tick := time.NewTicker(progressTick)
	defer tick.Stop()
	for {
		select {
		case <-p.life.Done():
			return
		case <-tick.C:
		}
		if latest := p.runs.latest.Load(); latest != run || run.ledSince().IsZero() ||
			p.state.restoring.Load() > 0 {
			run, late, slow, stays = latest, nil, nil, ""
			continue
		}
		now, before := time.Now(), stays
		if stays = p.check(run, now, &late, &slow); stays != "" && stays != before {
			p.cfg.GaveWay(stays)
		}
	}
}

// check makes this node give way if it leads without progress. It returns why the node
// stays all the same; "" = there is no reason to give way, or it has given way.
func (p *progress) check(run *raftRun, now time.Time, late, slow *spell) (stays string) {
	own, _ := p.writes.times(now)
	waits, may := run.oldestWait(now)
	isLate := late.add(now, waits > may)
	if waits <= may && own < slowWriteMin {
		return "" // and the voters are not read from the state machine: it may be busy
	}
	all, others := p.handover.voters(run)
	isSlow := slow.add(now, writesSlowly(own, others, len(all)))
	cause, able := standstill(isSlow, isLate, own, others)
	if cause == "" {
		return ""
	}
	const ms = time.Millisecond
	figures := []any{"cause", cause, "oldest_entry", waits.Round(ms), "own_write", own.Round(ms)}
	for _, v := range others {
		figures = append(figures, slog.Group(v.name(),
			"write", v.status.Write, "round_trip", v.trip, "silent", v.silent))
	}
	if stays = StayedWithoutMajority; 2*len(able) > len(all) {
		quickest := func(run *raftRun) (raft.Server, error) {
			return p.handover.fittest(run, able, voter.answersSooner)
		}
		stays = p.giveWay(p.life, run, quickest, figures...)
	}
	if stays != "" {
		p.rateLimitedLog.Log(slog.LevelWarn, "stays "+stays,
			"this leader makes no progress, and stays",
			append(figures, "because", stays)...)
	}
	return stays
}

// writesSlowly reports whether a majority of the voters, without this one, writes much faster than
// it.
func writesSlowly(own time.Duration, others []voter, voters int) bool {
	return own >= slowWriteMin && 2*len(quick(others, own/slowFactor)) > voters
}

// standstill is why a leader should give way, and which of the others would do better:
//
//	its writes were slow for a spell     those that write slowFactor times as fast
//	its entries were late for a spell    those whose writes take at most a slowFactor-th of its
//	                                     own, or of commitBound if that is longer
//	neither                              "", and it goes on
func standstill(
	isSlow, isLate bool, own time.Duration, others []voter) (cause string, able []voter) {
	switch {
	case isSlow:
		return "its writes are much slower than those of the others", quick(others, own/slowFactor)
	case isLate:
		return "its entries are not committed in time", quick(others,
			max(own, commitBound)/slowFactor)
	}
	return "", nil
}

// quick are the voters that answer, and whose latest writes all took at most so long.
func quick(voters []voter, most time.Duration) (able []voter) {
	for _, v := range voters {
		if v.silent == 0 && !v.status.At.IsZero() && v.status.Write <= most {
			able = append(able, v)
		}
	}
	return able
}

// answersSooner reports whether a voter acknowledges an entry sooner than another one: after a
// round trip and a write.
func (v voter) answersSooner(than voter) bool {
	return v.trip+v.status.Write < than.trip+than.status.Write
}

// What became of a leader that made no progress, or whose disk is nearly full: the outcomes for
// Config.GaveWay. Each but Moved is why it stayed. The first reason in this order counts.
const (
	StayedWithoutMajority = "no_majority" // too few others would do better
	StayedMembers         = "members"     // a change of the members is being made
	StayedRecent          = "recent"      // a leader gave way a moment ago
	StayedUnfit           = "unfit"       // no voter is fit to lead
	Moved                 = "moved"       // it gave way
)

// giveWay transfers the leadership to the server that choose returns. It does not if a leader gave
// way by itself a moment ago, or while a change of the members is under way, whose outcome would be
// unknown. If the transfer does not end within an election timeout, this node ceases to lead all
// the same: raft starts again, the others elect, and what is in flight is unknown. This node lets
// the others campaign first (yieldTimeouts). It returns why this leader stays; "" = it gave way.
func (p *progress) giveWay(ctx context.Context, run *raftRun,
	choose func(*raftRun) (raft.Server, error), figures ...any) (stays string) {
	select {
	case p.changing <- struct{}{}:
		defer func() { <-p.changing }()
	default:
		return StayedMembers
	}
	_, others := p.handover.voters(run)
	for _, v := range others {
		if v.status.Moved > 0 {
			p.moves.heard(v.status.At.Add(-v.status.Moved))
		}
	}
	if _, recently := p.moves.ago(time.Now()); recently {
		return StayedRecent
	}
	to, err := choose(run)
	if err != nil {
		p.log.Debug("no voter is fit to lead", "error", err)
		return StayedUnfit
	}
	p.moves.begin(time.Now())
	p.cfg.GaveWay(Moved)
	p.log.Warn("this leader gives way to another node",
		append(figures, "to", peer.NameOf(to.ID))...)
	if err := p.handover.transferTo(ctx, run, to); err != nil {
		p.log.Warn("the leadership transfer failed or is unconfirmed; this node has ceased to "+
			"lead, and the others elect", "error", err)
	}
	return ""
}
