package sim

import (
	"time"

	"zamok/fsm"
	"zamok/session"
)

// checkLeases looks for leases that ended early: before the ttl had passed in real time since the
// sending of a transmission that was answered and had been heard.
func checkLeases(ops []Op, entries []Effect) []string {
	var found findingList
	latest := map[session.ID]Op{}
	for _, op := range ops {
		if id := op.Answer.Result.Session; op.Outcome == Done && id != 0 && op.Sent >= latest[id].Sent {
			latest[id] = op
		}
	}
	ttls := map[session.ID]time.Duration{}
	for _, op := range ops {
		if r := op.Answer.Result; op.Outcome == Done && r.TTL != 0 {
			ttls[r.Session] = r.TTL.Duration()
		}
	}
	for i := range entries {
		e := &entries[i]
		for _, ev := range e.Events {
			op, renewed := latest[ev.Session]
			if ev.Kind != fsm.EvSessionEnded || ev.Reason != fsm.Expired || !renewed {
				continue
			}
			if least := op.Sent + ttls[ev.Session]; e.At < least {
				found.add("session %d of %s expired at %v (%d); its %v sent at %v was answered at %d, so it had until %v",
					ev.Session, op.Client, e.At, ev.Index, op.Kind, op.Sent, op.Answer.Stamp.Index, least)
			}
		}
	}
	return found.list()
}
