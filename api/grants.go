package api

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"zamok/api/audit"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// grantLog writes a line of the audit log for each grant and for the end of each hold, if
// NodeConfig.AuditGrants is set. The node whose epoch an entry belongs to writes its lines, so each
// is written once in a cluster, also if the node no longer leads when the entry is applied. It is
// not written if that node ends first.
type grantLog struct {
	log  *audit.Log
	wake chan struct{} // capacity 1: there are events, or it is to end
	done chan struct{} // closed when run has returned

	mu sync.Mutex // guards what follows
	// the epoch of the state machine, if this node began it, now or before it was started anew;
	// else 0
	started uint64
	first   []*fsm.Event // what expired in the entry that started it, until this node leads in it
	epoch   uint64       // the one that this node began last, since it was started
	through uint64       // what was applied: a state machine that starts over applies entries again
	events  []audit.Event
	ended   bool
}

// grantsMax bounds the events that wait for the disk: some seconds of all that a cluster can do.
const grantsMax = 1 << 16

// errGrantsLost is the failure of a line for which there is no room.
var errGrantsLost = errors.New(
	"a line of the audit log was not written: the disk is slower than the grants, and " +
		"--audit-grants is set")

// newGrantLog starts to write. stop follows.
func newGrantLog(log *audit.Log) *grantLog {
	g := &grantLog{log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go g.run()
	return g
}

// SetLeading is called when this node begins and ends to lead.
func (g *grantLog) SetLeading(leading bool) {
	if g == nil || !leading {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch = g.started
	for _, e := range g.first {
		g.add(e)
	}
	g.first = nil
}

// Applied takes the events of an entry. It runs under the state machine's lock, so the lines are
// written later.
func (g *grantLog) Applied(m *fsm.Machine, a fsm.Applied) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	ours := m.Epoch() == g.epoch && a.Index > g.through
	for i := range a.Events {
		switch e := &a.Events[i]; e.Kind {
		case fsm.EvEpochStarted:
			if g.started, g.first = 0, nil; e.Epoch.Node == g.log.Node {
				g.started = e.Index
				if a.Index > g.through {
					g.first = grants(a.Events[:i])
				}
			}
		default:
			if ours && isGrant(e) {
				g.add(e)
			}
		}
	}
	g.through = max(g.through, a.Stamp.Index)
}

// isGrant reports whether an event is a grant or the end of a hold.
func isGrant(e *fsm.Event) bool {
	return e.Token != 0 && (e.Kind == fsm.EvGranted || e.Kind == fsm.EvLost ||
		e.Kind == fsm.EvReleased)
}

// grants are the grants and ends of holds among events.
func grants(events []fsm.Event) (grants []*fsm.Event) {
	for i := range events {
		if isGrant(&events[i]) {
			grants = append(grants, &events[i])
		}
	}
	return grants
}

// add queues a line. The caller holds the lock.
func (g *grantLog) add(e *fsm.Event) {
	if len(g.events) == grantsMax {
		g.log.Failed(errGrantsLost)
		return
	}
	g.events = append(g.events, grantEvent(e))
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// grantEvent is the line for a grant or the end of a hold.
func grantEvent(e *fsm.Event) audit.Event {
	on := map[string]string{"session": fmt.Sprint(e.Session), "ticket": fmt.Sprint(e.Ticket),
		"token": fmt.Sprint(e.Token)}
	for i := range e.Items {
		on[fmt.Sprintf("lock %d", i+1)] = e.Items[i].Name
	}
	call := "granted"
	switch e.Kind {
	case fsm.EvReleased:
		call = "released"
	case fsm.EvLost:
		call, on["reason"] = "lost", wire.EnumName(zamokpb.Reason(e.Reason))
		if e.Text != "" {
			on["text"] = e.Text // an operator's
		}
	}
	return audit.Event{Time: time.Now(), Who: e.Identity, Call: call, On: on, Outcome: "done"}
}

// run writes until stop.
func (g *grantLog) run() {
	defer close(g.done)
	for range g.wake {
		g.mu.Lock()
		events, ended := g.events, g.ended
		g.events = nil
		g.mu.Unlock()
		for _, e := range events {
			g.log.Record(e)
		}
		if ended {
			return
		}
	}
}

// stop writes what is queued. Nothing is applied any more.
func (g *grantLog) stop() {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
	<-g.done
}
