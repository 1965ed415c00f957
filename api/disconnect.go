package api

import (
	"sync"
	"time"

	"zamok/api/push"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// disconnects has the sessions whose stream was broken by its client, and that are to end when their grace
// period has passed without a new attachment.
type disconnects struct {
	mu      sync.Mutex // guards what follows; taken under the state machine's lock
	leading bool
	pending map[session.ID]*disconnect
}

type disconnect struct {
	timer   *time.Timer
	command fsm.Detached
}

// begin starts the grace period of a session, if it has one. A renewal from now on makes the report harmless:
// its index is higher.
func (d *disconnects) begin(node *raftnode.Node, a push.Attachment) {
	if a.Grace == 0 {
		return
	}
	one := &disconnect{command: fsm.Detached{Session: a.Session, Attachment: a.Number}}
	node.View(func(m *fsm.Machine) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s, _ := m.Session(a.Session); s.Attachment != a.Number || !d.leading {
			return // another stream has the session, or it has ended
		}
		one.command.Index = m.Stamp().Index
		one.timer = time.AfterFunc(a.Grace.Duration(), func() { d.report(node, one) })
		d.pending[a.Session] = one
	})
}

// report proposes that the session is detached. It is tried once: if that fails, the session lives until its
// ttl.
func (d *disconnects) report(node *raftnode.Node, one *disconnect) {
	d.mu.Lock()
	due := d.pending[one.command.Session] == one
	if due {
		delete(d.pending, one.command.Session)
	}
	d.mu.Unlock()
	if due {
		node.Submit(&one.command, func(raftnode.Answer, error) {})
	}
}

// applied ends the grace period of sessions that attached again or ended. It runs under the state machine's
// lock.
func (d *disconnects) applied(a fsm.Applied) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 0; i < len(a.Events) && len(d.pending) > 0; i++ {
		if e := &a.Events[i]; e.Kind == fsm.EvAttached || e.Kind == fsm.EvSessionEnded {
			d.cancel(e.Session)
		}
	}
}

// cancel ends a grace period. The caller holds the lock.
func (d *disconnects) cancel(id session.ID) {
	if one := d.pending[id]; one != nil {
		one.timer.Stop()
		delete(d.pending, id)
	}
}

// cancelAll is called when this node's state was replaced or it stops.
func (d *disconnects) cancelAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.pending {
		d.cancel(id)
	}
}

// setLeading is called when this node begins and ends to lead: the next leader has the breaks of its own
// streams.
func (d *disconnects) setLeading(leading bool) {
	d.mu.Lock()
	d.leading = leading
	d.mu.Unlock()
	if !leading {
		d.cancelAll()
	}
}
