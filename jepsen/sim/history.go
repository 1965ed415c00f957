package sim

import (
	"errors"
	"sync"
	"time"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// History is what clients sent and what came back, one Op for each transmission.
type History struct {
	began time.Time

	mu     sync.Mutex
	ops    []*Op
	holds  []Hold
	deaths []Death
}

// Op is one transmission: sent once, to one process, and never again.
type Op struct {
	Client string
	Node   string
	Kind   OpKind
	Ref    fsm.TicketRef // the session, and the ticket where there is one
	Items  []fsm.Item    // OpAcquire
	Sent   time.Duration

	// Set when the client stopped waiting.
	Return  time.Duration
	Outcome Outcome
	Answer  raftnode.Answer
	Err     error

	answerCount int // how many answers the node gave, whether or not the client heard; guarded by mu
}

// OpKind says what an Op asked for.
type OpKind uint8

const (
	OpOpen OpKind = 1 + iota
	OpRenew
	OpAcquire
	OpRelease
	OpClose
	OpReadBarrier
)

func (k OpKind) String() string {
	return [...]string{"", "open", "renew", "acquire", "drop", "close", "fence"}[k]
}

// Outcome is what a client knows of an Op.
type Outcome uint8

const (
	Pending Outcome = iota
	Done            // answered from the log
	NotDone         // refused: it has no effect and never will have
	Unknown         // it may take effect, now, later or never
)

func (o Outcome) String() string { return [...]string{"pending", "done", "not done", "unknown"}[o] }

// Hold is a time in which a client believed that it held a lock.
type Hold struct {
	Client   string
	Ref      fsm.TicketRef
	Token    uint64
	Items    []fsm.Item
	From, To time.Duration
}

// Death is a client that fell silent, and what it left behind.
type Death struct {
	Client  string
	Session session.ID
	TTL     time.Duration
	At      time.Duration
}

func newHistory() *History { return &History{began: time.Now()} }

func (h *History) recordSend(op *Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op.Sent = time.Since(h.began)
	h.ops = append(h.ops, op)
}

// countAnswer counts an answer of the node.
func (h *History) countAnswer(op *Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op.answerCount++
}

// recordReturn takes down what the client knows in the end.
func (h *History) recordReturn(op *Op, a raftnode.Answer, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op.Return, op.Answer, op.Err, op.Outcome = time.Since(h.began), a, err, outcomeOf(err)
}

// outcomeOf takes every error for an unknown outcome that does not say otherwise.
func outcomeOf(err error) Outcome {
	if err == nil {
		return Done
	}
	if _, ok := errors.AsType[*raftnode.NotLeaderError](err); ok {
		return NotDone
	}
	for _, definite := range []error{raftnode.ErrOverloaded, raftnode.ErrClosed, raftnode.ErrOtherVersion, errNotRunning} {
		if errors.Is(err, definite) {
			return NotDone
		}
	}
	return Unknown
}

func (h *History) addHold(b Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.To > b.From {
		h.holds = append(h.holds, b)
	}
}

func (h *History) addDeath(d Death) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.At = time.Since(h.began)
	h.deaths = append(h.deaths, d)
}

// Ops are copies of all that was sent, in order of sending.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := make([]Op, len(h.ops))
	for i, op := range h.ops {
		ops[i] = *op
	}
	return ops
}

// Count counts outcomes by kind.
func (h *History) Count() map[OpKind]map[Outcome]int {
	counts := map[OpKind]map[Outcome]int{}
	for _, op := range h.Ops() {
		if counts[op.Kind] == nil {
			counts[op.Kind] = map[Outcome]int{}
		}
		counts[op.Kind][op.Outcome]++
	}
	return counts
}
