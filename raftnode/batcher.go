package raftnode

import (
	"time"

	"zamok/fsm"
)

const (
	// After an entry is applied the batcher waits for the callers that it unblocked: for a part of the time that the
	// entry took, 1/batchShare, and at most batchWaitMax.
	batchShare   = 4
	batchWaitMax = 2 * time.Millisecond
)

// batcher decides how many requests share an entry. The cost of an entry, mostly four disk flushes one after the
// other, hardly depends on its size. So requests that arrive at about the same time should share one, and a
// request that has none to share with should not wait.
//
// A client often sends its next request as soon as it is answered. If the first such request were proposed alone,
// the others would wait for it, and again the next time: the clients would split into groups, one behind the
// other. So after an entry is applied the batcher waits briefly for the requests of the callers that it unblocked.
type batcher struct {
	inFlight int       // requests in flight
	expected int       // how many callers the last applied entry unblocked
	until    time.Time // until when their requests are waited for
}

func (g *batcher) sent(requests int) {
	g.inFlight += requests
	g.expected = 0
}

// completed notes that an entry was answered and how many callers it unblocked, and returns for how long to wait for
// their requests.
func (g *batcher) completed(requests, unblocked int, sent, now time.Time) time.Duration {
	g.inFlight -= requests
	g.expected = unblocked
	wait := min(now.Sub(sent)/batchShare, batchWaitMax)
	g.until = now.Add(wait)
	return wait
}

// ready reports whether so many waiting requests are enough for an entry beside those in flight. A second one is not
// proposed before it is as large as the first, because two small entries cost as much as two large ones.
func (g *batcher) ready(waiting, inFlight int, now time.Time) bool {
	switch {
	case waiting == 0:
		return false
	case inFlight > 0:
		return waiting >= g.inFlight
	}
	return waiting >= g.expected || !now.Before(g.until)
}

// unblocked is how many waiting callers an entry unblocks: those that are answered, unless the answer is to wait, and
// those that were granted what others held.
func unblocked(requests int, a fsm.Applied) int {
	n := requests
	for i := range a.Results {
		switch r := &a.Results[i]; {
		case r.State == fsm.Waiting,
			r.State == fsm.Granted && r.Token == r.Index: // its event is counted
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
