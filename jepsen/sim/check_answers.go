package sim

import (
	"zamok/fsm"
	"zamok/session"
)

// checkAnswers holds what clients were told against what the machines did: an acknowledged effect
// is in the log, exactly once (checkLog sees to the once); what was definitely not done is not; and
// every transmission was answered exactly once by the node that took it.
func checkAnswers(ops []Op, entries []Effect) []string {
	begins := map[uint64]uint64{} // the first index of an entry, by its last
	for i := range entries {
		begins[entries[i].Stamp.Index] = entries[i].Index
	}
	var found findings
	fates := fatesOf(entries)
	ended := endsOf(entries)
	tried := map[fsm.TicketRef]bool{} // an acquisition that may have had an effect
	for _, op := range ops {
		if op.Kind == OpAcquire {
			tried[op.Ref] = tried[op.Ref] || op.Outcome != NotDone
		}
		if op.answers != 1 {
			found.add("%v of %s to %s, sent at %v, was answered %d times (%v, %v)",
				op.Kind, op.Client, op.Node, op.Sent, op.answers, op.Outcome, op.Err)
		}
		if op.Outcome == Done {
			checkDone(&found, &op, fates[op.Ref], ended, begins)
		}
	}
	for ref, may := range tried {
		if f, happened := fates[ref]; happened && !may {
			found.add("%v: every transmission was refused, and it took effect: %+v", ref, f)
		}
	}
	return found.list()
}

// checkDone looks at one answer from the log.
func checkDone(found *findings, op *Op, f fate, ended map[session.ID]uint64, begins map[uint64]uint64) {
	r, at := op.Answer.Result, op.Answer.Stamp.Index
	complain := func(why string) {
		found.add("%v %v of %s, sent at %v, answered %+v at %d: %s; it was %+v", op.Kind, op.Ref, op.Client, op.Sent, r, at, why, f)
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
		if f.gone != 0 && f.gone <= r.Index {
			complain("it had ended")
		}
	case op.Kind == OpAcquire && r.State == fsm.Waiting:
		if f.granted != 0 && f.granted <= r.Index || f.gone != 0 && f.gone <= r.Index {
			complain("it did not wait any more")
		}
	case op.Kind == OpDrop && r.Code == fsm.OK:
		if f.granted > r.Index {
			complain("it was granted afterwards")
		}
		if f.granted != 0 && (f.gone == 0 || f.gone > r.Index) {
			complain("it went on")
		}
	}
}

// fate is what became of a ticket: the indexes of its grant and of its end, 0 = none.
type fate struct {
	granted, token, gone uint64
	why                  fsm.Reason
}

func fatesOf(entries []Effect) map[fsm.TicketRef]fate {
	fates := map[fsm.TicketRef]fate{}
	for i := range entries {
		for _, ev := range entries[i].Events {
			f := fates[ev.TicketRef]
			switch ev.Kind {
			case fsm.EvGranted:
				f.granted, f.token = ev.Index, ev.Token
			case fsm.EvLost, fsm.EvReleased, fsm.EvRefused:
				f.gone, f.why = ev.Index, ev.Reason
			default:
				continue
			}
			fates[ev.TicketRef] = f
		}
	}
	return fates
}

// endsOf are the indexes at which sessions ended.
func endsOf(entries []Effect) map[session.ID]uint64 {
	ends := map[session.ID]uint64{}
	for i := range entries {
		for _, ev := range entries[i].Events {
			if ev.Kind == fsm.EvEnded {
				ends[ev.Session] = ev.Index
			}
		}
	}
	return ends
}
