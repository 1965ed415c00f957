package sim

import (
	"context"
	"time"

	"zamok/fsm"
)

// Holder is a client that a story speaks of by name: it holds or awaits one lock, as its ticket 1,
// and renews until it dies.
type Holder struct {
	*Client
	*History
	Ref   fsm.TicketRef
	Token uint64 // 0: it waits

	die     context.CancelFunc
	stopped chan struct{} // closed when it renews no more
}

// Holder lets a new client acquire a lock, or begin to wait for it, and renew.
func (s *Sim) Holder(name, lock string, ttl time.Duration) *Holder {
	s.Helper()
	h := &Holder{History: newHistory(), stopped: make(chan struct{})}
	h.began = s.began
	h.Client = s.newClient(h.History, name, ttl)
	start := s.Within(electionTimeMax)
	if err := h.open(start); err != nil {
		s.Fatalf("%s opened no session: %v", name, err)
	}
	h.Ref, _ = h.nextTicket()
	a, err := h.retryUntilAnswered(start, OpAcquire, h.Ref, func() fsm.Command { return acquireExclusive(h.Ref.Session, h.Ref.Ticket, lock) })
	if err != nil || a.Result.Code != fsm.OK {
		s.Fatalf("%s does not even wait for %s: %v, code %d", name, lock, err, a.Result.Code)
	}
	h.Token = a.Result.Token
	var ctx context.Context
	ctx, h.die = context.WithCancel(context.Background())
	s.cleanup(h.Die)
	go func() {
		defer close(h.stopped)
		h.renewLoop(ctx)
	}()
	return h
}

// Die lets the client fall silent.
func (h *Holder) Die() {
	h.die()
	<-h.stopped
}

// LastConfirmedSend is when the last transmission was sent that was answered.
func (h *Holder) LastConfirmedSend() (sent time.Duration) {
	for _, op := range h.Ops() {
		if op.Outcome == Done {
			sent = max(sent, op.Sent)
		}
	}
	return sent
}
