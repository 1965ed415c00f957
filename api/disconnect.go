package api

import (
	"time"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// disconnect is a session whose stream its client broke, and which asked to end soon after that.
type disconnect struct {
	timer   *time.Timer
	command fsm.Detached
}

// disconnected says that a send queue's stream was broken by its client, and begins the grace if the session asked
// for one. Whatever is heard of the session from now on makes the report harmless: its index is above.
func (h *hub) disconnected(o *sendQueue) {
	if o.grace == 0 {
		return
	}
	d := &disconnect{command: fsm.Detached{Session: o.session, Attachment: o.attachment}}
	h.node.View(func(m *fsm.Machine) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if s, _ := m.Session(o.session); s.Attachment != o.attachment || !h.leading {
			return // the session continues elsewhere, or is over
		}
		d.command.Index = m.Stamp().Index
		d.timer = time.AfterFunc(o.grace.Duration(), func() { h.detach(d) })
		h.disconnects[o.session] = d
	})
}

// detach reports a break at the end of its grace. It is tried once: if that fails, the session has its
// ttl, like any other.
func (h *hub) detach(d *disconnect) {
	h.mu.Lock()
	due := h.disconnects[d.command.Session] == d
	if due {
		delete(h.disconnects, d.command.Session)
	}
	h.mu.Unlock()
	if due {
		h.node.Submit(&d.command, func(raftnode.Answer, error) {})
	}
}

// cancelDisconnect forgets a break: the session attached again, is over, or is another leader's now. The caller
// holds the lock.
func (h *hub) cancelDisconnect(id session.ID) {
	if d := h.disconnects[id]; d != nil {
		d.timer.Stop()
		delete(h.disconnects, id)
	}
}

func (h *hub) stopDisconnects() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.disconnects {
		h.cancelDisconnect(id)
	}
}
