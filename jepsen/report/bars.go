package report

import (
	"slices"
	"time"

	"zamok/jepsen/check"
)

// How a bar ends and what it shows, in its last number: end + 10 × mode + 100 × lane.
const (
	holdOpen = iota
	holdUnlocked
	holdLost
	holderDied
)

// holdGroup is several short times of holding that are drawn as one bar.
type holdGroup struct {
	from, to time.Duration
	count    int64
	clients  map[string]bool
}

// encodeBars are the times in which a lock was held, flat, by beginning, each as: from (as difference to the one
// before), length, client, session, ticket, token (as difference to the one before), end + 10×mode +
// 100×lane. A group has as client −1, as session how many clients they are, and as ticket how many holds.
func (d *analysis) encodeBars(t *timeline, l *lockRecords, most int) (flat []int64, lanes int64) {
	alone, groups := d.groupShortHolds(l, most)
	var ends [lanesMax]time.Duration
	var from, token int64
	put := func(start, end time.Duration, client, session, ticket, newToken, code int64) {
		at := d.toUnits(start)
		flat = append(flat, at-from, d.toUnits(end)-at, client, session, ticket, newToken-token, code)
		from, token = at, newToken
	}
	lanes = 1
	next := 0
	before := func(at time.Duration) {
		for ; next < len(groups) && groups[next].from <= at; next++ {
			g := &groups[next]
			put(g.from, g.to, -1, int64(len(g.clients)), g.count, token, 0)
		}
	}
	for _, h := range alone {
		before(h.From)
		lane := 0
		for lane < lanesMax-1 && ends[lane] > h.From {
			lane++
		}
		ends[lane] = max(ends[lane], h.to)
		lanes = max(lanes, int64(lane)+1)
		put(h.From, h.to, t.name(h.Client), int64(h.Session), int64(h.Ticket), int64(h.Token), barCode(h, l.name)+100*int64(lane))
	}
	before(d.end)
	return flat, lanes
}

func barCode(h holdRecord, name string) int64 {
	end, mode := holdOpen, 0
	switch {
	case h.End == check.Unlocked:
		end = holdUnlocked
	case h.End == check.Lost:
		end = holdLost
	case h.died:
		end = holderDied
	}
	for _, item := range h.Items {
		switch {
		case item.Name != name:
		case item.Mode == check.Shared:
			mode = 1
		case item.Mode == check.Permits:
			mode = 2
		}
	}
	return int64(end + 10*mode)
}

// groupShortHolds puts the short times of holding together in groups, if there are more than may be drawn. Those
// around a violation of this lock stay as they are.
func (d *analysis) groupShortHolds(l *lockRecords, most int) (alone []holdRecord, groups []holdGroup) {
	if len(l.holds) <= most {
		return l.holds, nil
	}
	near := d.nearViolation(l, min(ungroupedMax, most))
	cells := max(1, most/4)
	width := (d.end-d.begin)/time.Duration(cells) + 1
	cell := time.Duration(-1)
	for _, h := range l.holds {
		if near(h) {
			alone = append(alone, h)
			continue
		}
		if h.to-h.From >= 2*width {
			alone = append(alone, h)
			continue
		}
		if at := (h.From - d.begin) / width; at != cell {
			cell = at
			groups = append(groups, holdGroup{from: h.From, clients: map[string]bool{}})
		}
		g := &groups[len(groups)-1]
		g.to = max(g.to, h.to)
		g.count++
		g.clients[h.Client] = true
	}
	return alone, groups
}

// nearViolation tells which holds of a lock are near a violation: as near as it takes for them to be so few.
func (d *analysis) nearViolation(l *lockRecords, most int) func(holdRecord) bool {
	var moments []time.Duration
	for _, m := range d.violations {
		if m.lock == l.name {
			moments = append(moments, m.at...)
		}
	}
	slices.Sort(moments)
	for budget := violationMargin; budget > timelineUnit; budget /= 2 {
		near := func(h holdRecord) bool {
			i, _ := slices.BinarySearch(moments, h.From-budget)
			return i < len(moments) && moments[i] <= h.to+budget
		}
		n := 0
		for _, h := range l.holds {
			if near(h) {
				n++
			}
		}
		if n <= most {
			return near
		}
	}
	return func(holdRecord) bool { return false }
}
