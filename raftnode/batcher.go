package raftnode

import (
	"time"

	"zamok/fsm"
)

const (
	// batchShare and batchWaitMax: for this part of an entry's own way, and no longer than this, an
	// epoch waits for those whom it just answered.
	batchShare   = 4
	batchWaitMax = 2 * time.Millisecond
)

// batcher decides how many requests leave in one entry. What an entry costs, mostly four flushes
// of disks one after the other, hardly depends on how much is in it. So requests that come at about
// the same time should share one, and nobody should wait who has nobody to share with.
//
// Who is answered often asks again at once. If the first to do so left alone, the others would wait
// for it, and the next time again: the callers would fall into groups that travel one behind the
// other. So after an entry has landed those whom it lets continue are waited for, a little: who dropped a
// lock asks for it again while the one it went to drops it.
type batcher struct {
	inFlight int       // requests on their way
	expected int       // how many the entry that landed last lets continue
	until    time.Time // for so long they are waited for
}

func (g *batcher) sent(requests int) {
	g.inFlight += requests
	g.expected = 0
}

// completed takes note of an entry that was answered and lets so many continue, and returns for how long to gather.
func (g *batcher) completed(requests, goOn int, sent, now time.Time) time.Duration {
	g.inFlight -= requests
	g.expected = goOn
	wait := min(now.Sub(sent)/batchShare, batchWaitMax)
	g.until = now.Add(wait)
	return wait
}

// ready reports whether so many waiting requests are reason enough for an entry to leave beside those
// in flight. A second one does not leave before it is as large as the first: two small ones cost
// what two large ones do.
func (g *batcher) ready(waiting, inFlight int, now time.Time) bool {
	switch {
	case waiting == 0:
		return false
	case inFlight > 0:
		return waiting >= g.inFlight
	}
	return waiting >= g.expected || !now.Before(g.until)
}

// unblocked is how many of those who wait for something an entry lets continue: who has an answer, unless that is to
// wait, and who was granted what others held.
func unblocked(requests int, a fsm.Applied) int {
	n := requests
	for i := range a.Results {
		switch r := &a.Results[i]; {
		case r.State == fsm.Waiting,
			r.State == fsm.Granted && r.Token == r.Index: // it is counted by its event
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
