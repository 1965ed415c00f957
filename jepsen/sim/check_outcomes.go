package sim

import (
	"zamok/fsm"
	"zamok/session"
)

// checkOutcomes holds what clients were told against what the machines did: an acknowledged effect
// is in the log, exactly once (checkLog sees to the once); what was definitely not done is not; and
// every transmission was answered exactly once by the node that took it.
func checkOutcomes(ops []Op, entries []Effect) []string {
	begins := map[uint64]uint64{} // the first index of an entry, by its last
	for i := range entries {
		begins[entries[i].Stamp.Index] = entries[i].Index
	}
	var found findingList
	fates := ticketEnds(entries)
	ended := sessionEnds(entries)
	failedTries := map[fsm.TicketRef]bool{} // an acquisition that may have had an effect
	for _, op := range ops {
		if op.Kind == OpAcquire {
			failedTries[op.Ref] = failedTries[op.Ref] || op.Outcome != NotDone
		}
		if op.answerCount != 1 {
			found.add("%v of %s to %s, sent at %v, was answered %d times (%v, %v)",
				op.Kind, op.Client, op.Node, op.Sent, op.answerCount, op.Outcome, op.Err)
		}
		if op.Outcome == Done {
			checkAnswer(&found, &op, fates[op.Ref], ended, begins)
		}
	}
	for ref, may := range failedTries {
		if f, happened := fates[ref]; happened && !may {
			found.add("%v: every transmission was refused, and it took effect: %+v", ref, f)
		}
	}
	return found.list()
}

// checkAnswer looks at one answer from the log.
func checkAnswer(found *findingList, op *Op, f ticketEnd, ended map[session.ID]uint64, begins map[uint64]uint64) {
	r, at := op.Answer.Result, op.Answer.Stamp.Index
	complain := func(reason string) {
		found.add("%v %v of %s, sent at %v, answered %+v at %d: %s; it was %+v", op.Kind, op.Ref, op.Client, op.Sent, r, at, reason, f)
	}
	if end, over := ended[op.Ref.Session]; over && r.Code == fsm.OK && op.Ref.Session != 0 && end <= r.Index && op.Kind != OpRenew && op.Kind != OpClose {
		complain("its session had ended")
	}
	switch {
	case op.Kind == OpRenew && r.Code == fsm.OK:
		begin, known := begins[at]
		if !known {
			begin = at
		}
		if end, over := ended[op.Ref.Session]; over && end < begin { // renewals come first in an entry
			complain("its session had ended")
		}
	case op.Kind == OpAcquire && r.State == fsm.Granted:
		if f.token != r.Token || f.granted == 0 || f.granted > at {
			complain("there is no such grant")
		}
		if f.ended != 0 && f.ended <= r.Index {
			complain("it had ended")
		}
	case op.Kind == OpAcquire && r.State == fsm.Waiting:
		if f.granted != 0 && f.granted <= r.Index || f.ended != 0 && f.ended <= r.Index {
			complain("it did not wait any more")
		}
	case op.Kind == OpRelease && r.Code == fsm.OK:
		if f.granted > r.Index {
			complain("it was granted afterwards")
		}
		if f.granted != 0 && (f.ended == 0 || f.ended > r.Index) {
			complain("it went on")
		}
	}
}

// ticketEnd is what became of a ticket: the indexes of its grant and of its end, 0 = none.
type ticketEnd struct {
	granted, token, ended uint64
	reason                fsm.Reason
}

func ticketEnds(entries []Effect) map[fsm.TicketRef]ticketEnd {
	fates := map[fsm.TicketRef]ticketEnd{}
	for i := range entries {
		for _, ev := range entries[i].Events {
			f := fates[ev.TicketRef]
			switch ev.Kind {
			case fsm.EvGranted:
				f.granted, f.token = ev.Index, ev.Token
			case fsm.EvLost, fsm.EvReleased, fsm.EvRefused:
				f.ended, f.reason = ev.Index, ev.Reason
			default:
				continue
			}
			fates[ev.TicketRef] = f
		}
	}
	return fates
}

// sessionEnds are the indexes at which sessions ended.
func sessionEnds(entries []Effect) map[session.ID]uint64 {
	ends := map[session.ID]uint64{}
	for i := range entries {
		for _, ev := range entries[i].Events {
			if ev.Kind == fsm.EvSessionEnded {
				ends[ev.Session] = ev.Index
			}
		}
	}
	return ends
}
