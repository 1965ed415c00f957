package check

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"zamok/client"
)

// History is all that was recorded of one run. The order within a slice means nothing, except that
// of two records of one thing the later one counts.
type History struct {
	Plan       Plan
	Ops        []Op
	Holds      []Hold
	Sessions   []Session
	Renewals   []Renewal
	Writes     []Write
	Faults     []Fault
	Stalls     []Stall
	Events     []Event
	NodeStates []NodeState
	IdleCounts []IdleCount

	// TruncatedLines counts the lines that ended in the middle, as those of a killed process do.
	TruncatedLines int
}

// Record is one line: exactly one of its fields is set.
type Record struct {
	Plan      *Plan      `json:"plan,omitempty"`
	Op        *Op        `json:"op,omitempty"`
	Hold      *Hold      `json:"hold,omitempty"`
	Session   *Session   `json:"session,omitempty"`
	Renewal   *Renewal   `json:"renewal,omitempty"`
	Write     *Write     `json:"write,omitempty"`
	Fault     *Fault     `json:"fault,omitempty"`
	Stall     *Stall     `json:"stall,omitempty"`
	Event     *Event     `json:"event,omitempty"`
	NodeState *NodeState `json:"node_state,omitempty"`
	IdleCount *IdleCount `json:"idle_count,omitempty"`
}

// Plan is what the run must contain. A run without it is invalid.
type Plan struct {
	Name   string        `json:"name,omitempty"`
	Seed   uint64        `json:"seed,omitempty"`
	Begin  time.Duration `json:"begin,omitempty"` // moments in findings count from here
	Healed time.Duration `json:"healed"`          // when the last fault had ended
	End    time.Duration `json:"end"`             // when the record stopped
	Drain  time.Duration `json:"drain"`           // after Healed no call takes longer
	Faults []string      `json:"faults,omitempty"`
	// how late the end of a dead session may be seen; 0 = 1 s
	ExpirationSlack time.Duration `json:"expiration_slack,omitempty"`
	// those that must have found something to look at
	Checks []string `json:"checks,omitempty"`
	// fewer successful calls: the load was too low
	OKMin int `json:"min_ok,omitempty"`
	// the events are complete, from Begin to End
	CompleteEvents bool `json:"complete_events,omitempty"`
	// the greatest token of earlier runs on the same data
	TokensAbove uint64 `json:"tokens_above,omitempty"`
	// by what factor a leader's clock may be fast or slow; 0 = 1
	ClockRate float64 `json:"clock_rate,omitempty"`
}

// OpKind is the kind of a call.
type OpKind string

// What clients and operators call.
const (
	OpLock      OpKind = "lock"
	OpTryLock   OpKind = "trylock"
	OpUnlock    OpKind = "unlock"
	OpDowngrade OpKind = "downgrade"
	OpClose     OpKind = "close" // of the session, with all that it holds
	OpCheck     OpKind = "check"
	OpGet       OpKind = "get"
	OpNow       OpKind = "now"
	// operator: ends the holders of Items[0] with a token up to Token
	OpForceRelease  OpKind = "force"
	OpExpireSession OpKind = "expire" // operator: ends Session
)

// Outcome is what the caller knows in the end.
type Outcome string

// The three outcomes are never mixed.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused" // it was not done and never will be
	Unknown Outcome = "unknown" // it may have been done, or be done later, or never
)

// Mode is how a lock is held.
type Mode string

// The modes.
const (
	Exclusive Mode = "exclusive"
	Shared    Mode = "shared"
	Permits   Mode = "permits"
)

// Item is one lock of an acquisition.
type Item struct {
	Name    string `json:"name"`
	Mode    Mode   `json:"mode,omitempty"`
	Permits int    `json:"permits,omitempty"`
	Limit   int    `json:"limit,omitempty"`
}

// Ref names a ticket. Ticket 0 is not known.
type Ref struct {
	Session uint64 `json:"session,omitempty"`
	Ticket  uint64 `json:"ticket,omitempty"`
}

func (r Ref) known() bool    { return r.Ticket != 0 }
func (r Ref) String() string { return fmt.Sprintf("%d/%d", r.Session, r.Ticket) }

// Op is one call, from its beginning to its end.
type Op struct {
	Client string `json:"client"`
	// of this client's call; 0 = there is one record of it
	ID   uint64 `json:"id,omitempty"`
	Kind OpKind `json:"kind"`
	// check: the ticket that is checked; lock: also where it was refused, if known
	Ref
	Items []Item        `json:"items,omitempty"`
	Call  time.Duration `json:"call"`
	// when the client first learned that *this ticket* waits
	Queued  time.Duration `json:"queued,omitempty"`
	Return  time.Duration `json:"return,omitempty"` // 0 = never
	Outcome Outcome       `json:"outcome"`
	// lock: what was granted; check, force: what was named
	Token uint64 `json:"token,omitempty"`
	Error string `json:"error,omitempty"`

	// The answer to a read.
	Term    uint64        `json:"term,omitempty"`
	Index   uint64        `json:"index,omitempty"`
	Time    time.Duration `json:"time,omitempty"`
	Held    bool          `json:"held,omitempty"`
	Holders []Ref         `json:"holders,omitempty"`
}

// Reads reports whether a call changes nothing.
func (op *Op) Reads() bool { return op.Kind == OpCheck || op.Kind == OpGet || op.Kind == OpNow }

func (op *Op) acquires() bool { return op.Kind == OpLock || op.Kind == OpTryLock }

// HoldEnd is how a hold ended.
type HoldEnd string

// The ways in which a client stops to consider itself the holder.
const (
	Unlocked HoldEnd = "unlocked" // it called Unlock or Close, at To
	Lost     HoldEnd = "lost"     // Lost was closed, and the client saw it at To
)

// Hold is a time in which a client considered itself the holder of what a ticket was granted.
type Hold struct {
	Client string `json:"client"`
	Ref
	Token      uint64        `json:"token"`
	Items      []Item        `json:"items"`
	From       time.Duration `json:"from"`
	To         time.Duration `json:"to,omitempty"`         // 0 = until its client died, or the end
	Downgraded time.Duration `json:"downgraded,omitempty"` // when it called Downgrade
	End        HoldEnd       `json:"end,omitempty"`
	// of a loss, as the client saw it: as Event.Reason
	Reason string `json:"reason,omitempty"`
}

// Session is a client's lease.
type Session struct {
	Session             uint64        `json:"session"`
	Client              string        `json:"client"`
	TTL                 time.Duration `json:"ttl"`
	ReleaseOnDisconnect bool          `json:"release_on_disconnect,omitempty"`
	// when it was killed, or began a long pause
	Died time.Duration `json:"died,omitempty"`
}

// Renewal is an answer that proves that its session was renewed.
type Renewal struct {
	Session   uint64        `json:"session"`
	Sent      time.Duration `json:"sent"`
	Confirmed time.Duration `json:"confirmed"`
}

// Write is one write to a fenced resource, as the resource saw it.
type Write struct {
	Resource string `json:"resource"` // the name of the lock that guards it
	Client   string `json:"client"`
	Token    uint64 `json:"token"`
	// the token of a shared grant: it never raises the mark
	Shared   bool          `json:"shared,omitempty"`
	At       time.Duration `json:"at"`
	Accepted bool          `json:"accepted"`
}

// Fault is something that was done to a node, a link or a client.
type Fault struct {
	Kind   string        `json:"kind"`
	Target string        `json:"target"`
	From   time.Duration `json:"from"`
	To     time.Duration `json:"to"`
	// the client Target was paused, or its clock was too far off
	ExcusesClient bool `json:"excuses_client,omitempty"`
}

// Stall is cluster time that did not pass while real time did, or a time in which nothing was
// committed.
type Stall struct {
	Reason string        `json:"reason"`
	From   time.Duration `json:"from"`
	To     time.Duration `json:"to"`
	// a change of leader: To − From + 1 s; a stalled leader: what was cut off
	LostTime time.Duration `json:"lost_time"`
	// no time is lost: what was due in it is done at its end
	CommitsBlocked bool `json:"commits_blocked,omitempty"`
}

// EventKind is the kind of an Event.
type EventKind string

// What happens to tickets, and to sessions.
const (
	EvGranted    EventKind = "granted"
	EvRefused    EventKind = "refused"
	EvLost       EventKind = "lost"
	EvReleased   EventKind = "released"
	EvDowngraded EventKind = "downgraded"
	EvEnded      EventKind = "ended" // a session
)

// Expired is the Reason of a lease that ran out.
const Expired = "expired"

// Event is one effect of the log, as a node applied it or a watch showed it. Several recorders may
// record the same one. A session that a list shows no longer has ended, too; the list shows neither
// the index nor the reason.
type Event struct {
	Node  string        `json:"node,omitempty"`
	At    time.Duration `json:"at"`
	Index uint64        `json:"index,omitempty"` // 0 = not known, of a session's end
	Kind  EventKind     `json:"kind"`
	Ref
	Token  uint64 `json:"token,omitempty"`
	Reason string `json:"reason,omitempty"`
	Items  []Item `json:"items,omitempty"`  // of a grant
	Client string `json:"client,omitempty"` // of a session's end, if known
}

// NodeState is what a node's machine showed.
type NodeState struct {
	Node   string        `json:"node"`
	At     time.Duration `json:"at"`
	Term   uint64        `json:"term,omitempty"`
	Index  uint64        `json:"index"`
	Time   time.Duration `json:"time,omitempty"`
	Digest uint64        `json:"digest,omitempty"` // 0 = not known
}

// IdleCount is what a process counted at rest, before the load or after it.
type IdleCount struct {
	Process   string           `json:"process"`
	AfterLoad bool             `json:"after_load"`
	Counts    map[string]int64 `json:"counts"`
}

// Read adds what another file recorded. A record that the end of the file cuts off is counted in
// TruncatedLines: a killed process leaves one.
func (h *History) Read(r io.Reader) error {
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields() // what is unknown here would go unchecked
	for n := 1; ; n++ {
		var rec Record
		switch err := decoder.Decode(&rec); {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			h.TruncatedLines++
			return nil
		case err != nil:
			return fmt.Errorf("history, record %d: %w", n, err)
		}
		if !h.Add(rec) {
			return fmt.Errorf("history, record %d: there is nothing in it", n)
		}
	}
}

// Add adds a record to the list of its kind. It returns false if the record is empty.
func (h *History) Add(r Record) bool {
	// The n-th field of a Record belongs to the n-th of a History.
	for field, value := range reflect.ValueOf(r).Fields() {
		if value.IsNil() {
			continue
		}
		if to := reflect.ValueOf(h).Elem().FieldByIndex(field.Index); to.Kind() == reflect.Slice {
			to.Set(reflect.Append(to, value.Elem()))
		} else {
			to.Set(value.Elem())
		}
		return true
	}
	return false
}

// Write writes the history, one record a line.
func (h *History) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	if err := lines.Encode(Record{Plan: &h.Plan}); err != nil {
		return err
	}
	for field, list := range reflect.ValueOf(h).Elem().Fields() {
		if list.Kind() != reflect.Slice {
			continue
		}
		for n := range list.Len() {
			var r Record
			reflect.ValueOf(&r).Elem().FieldByIndex(field.Index).Set(list.Index(n).Addr())
			if err := lines.Encode(r); err != nil {
				return err // a full disk would fail every record that follows
			}
		}
	}
	return out.Flush()
}

// OutcomeOf is what a caller of package client knows of its call. In doubt it is Unknown.
func OutcomeOf(err error) Outcome {
	var e *client.Error
	switch {
	case err == nil:
		return OK
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err,
		client.ErrUnavailable):
		return Unknown
	case errors.As(err, &e) && e.Outcome == client.Unknown:
		return Unknown
	}
	return Refused
}

// LossReason is why a lock was lost: nothing if the client found out by itself.
func LossReason(err error) string {
	e := (*client.Error)(nil)
	if errors.As(err, &e) && e.Reason != "" {
		return e.Reason
	}
	if errors.Is(err, client.ErrSessionExpired) {
		return Expired
	}
	return ""
}

// ItemsOf are the items of a request or of an event.
func ItemsOf(items []client.Item) (all []Item) {
	for _, it := range items {
		all = append(all, Item{
			Name: it.Name(), Mode: Mode(it.Mode().String()), Permits: int(it.Permits()),
			Limit: int(it.Of()),
		})
	}
	return all
}
