package raftnode

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// giveWayAfter is how long a leader leads before it does: the voters that answer have done so by
// then.
const giveWayAfter = 5 * time.Second

// room is whether the nodes have room on their disks for new sessions and acquisitions.
type room struct {
	*base
	runs     *raftRuns
	handover *handover
	progress *progress
	lacks    atomic.Pointer[string] // why this leader admits nothing new; nil or empty = it admits
}

// check decides whether this leader admits new sessions and acquisitions, and gives way if its own
// disk is nearly full while a majority has room: it would be the first to refuse entries.
func (r *room) check(ctx context.Context) {
	run, err := r.runs.leading()
	if err != nil {
		r.lacks.Store(nil)
		return
	}
	all, _ := r.handover.voters(run)
	reason, led := noRoom(all), run.ledSince()
	r.lacks.Store(&reason)
	if !r.store.IsLowSpace() || reason != "" || led.IsZero() || time.Since(led) < giveWayAfter {
		return
	}
	r.progress.giveWay(ctx, run, r.handover.successor, "cause", "its disk is nearly full")
}

// noRoom is why nothing new is admitted; "" = it is. What is admitted has to be renewed and ended,
// by entries that a majority accepts. So the voters that have room and respond must be a majority:
// then entries are committed even when the others reject them.
func noRoom(all []voter) string {
	able, low := 0, false
	var without []string
	for _, v := range all {
		switch {
		case v.low():
			low = true
			without = append(without,
				fmt.Sprintf("%s has %d MiB left", v.name(), v.announced.FreeBytes>>20))
		case v.silent > 0:
			without = append(without, v.name()+" does not answer")
		default:
			able++
		}
	}
	if !low || 2*able > len(all) {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes have room on their disks: %s", able, len(all),
		strings.Join(without, ", "))
}

// reason is why this leader admits nothing new, as of the last check; "" = it does, or does not
// lead.
func (r *room) reason() string {
	if reason := r.lacks.Load(); reason != nil && r.runs.proposer.leads() {
		return *reason
	}
	return ""
}
