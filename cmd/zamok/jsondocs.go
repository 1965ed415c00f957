package main

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"zamok/client"
)

// The documents of -o json. Numbers of 64 bits are strings, since many languages would round them; times are
// durations as "1m30s", those of the cluster's clock turned into how long ago or how long from now.

type stampDoc struct {
	Term  uint64 `json:"term,string"`
	Index uint64 `json:"index,string"`
	Time  string `json:"time"`
}

func newStampDoc(s client.Stamp) stampDoc { return stampDoc{s.Term, s.Index, s.Time.String()} }

type lockDoc struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // mutex or permits
	Limit   uint32 `json:"of,omitempty"`
	Holders int    `json:"holders"`
	Waiters int    `json:"waiters"`
	Delay   string `json:"delay,omitempty"`    // for how long it stays closed
	HoldOff string `json:"hold_off,omitempty"` // for how long no lock is granted, after a restore
	// Reserved is for how long the first holder has reserved the lock, if it is a reservation.
	Reserved      string `json:"reserved_left,omitempty"`
	reservedUntil string
}

func newLockDoc(l client.LockInfo, now time.Duration) lockDoc {
	d := lockDoc{Name: l.Name, Kind: "mutex", Limit: l.Limit, Holders: l.Holders, Waiters: l.Waiters,
		Delay: remainingText(l.DelayedUntil, now), HoldOff: remainingText(l.HoldOffUntil, now),
		Reserved: remainingText(l.ReservedUntil, now), reservedUntil: timeOfDayText(l.ReservedUntil, now)}
	if l.Limit > 0 {
		d.Kind = "permits"
	}
	return d
}

func (l lockDoc) kindText() string {
	if l.Limit > 0 {
		return fmt.Sprintf("%d permits", l.Limit)
	}
	return l.Kind
}

type itemDoc struct {
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Permits uint32 `json:"permits,omitempty"`
	Limit   uint32 `json:"of,omitempty"`
}

func newItemDoc(i client.Item) itemDoc {
	return itemDoc{i.Name(), i.Mode().String(), i.Permits(), i.Limit()}
}

func (i itemDoc) modeText() string {
	if i.Permits > 0 {
		return fmt.Sprintf("%d of %d", i.Permits, i.Limit)
	}
	return i.Mode
}

type blockerDoc struct {
	Name      string `json:"name"`
	By        string `json:"by"` // holder, waiter, delay or hold-off
	Session   uint64 `json:"session,string,omitempty"`
	Ticket    uint64 `json:"ticket,string,omitempty"`
	Token     uint64 `json:"token,string,omitempty"`
	Owner     string `json:"owner,omitempty"`
	Label     string `json:"label,omitempty"`
	Remaining string `json:"left,omitempty"` // of a delay or hold-off
}

func newBlockerDoc(b client.Blocker, now time.Duration) blockerDoc {
	by := map[client.BlockedBy]string{client.ByHolder: "holder", client.ByWaiter: "waiter", client.ByDelay: "delay",
		client.ByHoldOff: "hold-off"}[b.By]
	return blockerDoc{b.Name, by, b.Session, b.Ticket, uint64(b.Token), b.Owner, b.Label, remainingText(b.Until, now)}
}

type ticketDoc struct {
	Session  uint64 `json:"session,string"`
	Ticket   uint64 `json:"ticket,string"`
	Token    uint64 `json:"token,string,omitempty"`
	Label    string `json:"label,omitempty"`
	Identity string `json:"identity,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Metadata string `json:"metadata,omitempty"`

	Waited    string `json:"waited,omitempty"`     // for how long it waits, or waited
	Held      string `json:"held,omitempty"`       // for how long it has been held
	LeaseLeft string `json:"lease_left,omitempty"` // if it is not renewed
	Reserved  bool   `json:"reserved,omitempty"`   // no process renews it
	HoldLeft  string `json:"hold_left,omitempty"`  // of a maximum hold
	WaitLeft  string `json:"wait_left,omitempty"`  // of a wait with a limit

	reservedUntil string // by this machine's clock

	Items    []itemDoc    `json:"items"`
	Blockers []blockerDoc `json:"blockers,omitempty"`
}

func newTicketDoc(t client.TicketInfo, now time.Duration) ticketDoc {
	waited := now
	if t.State == client.Granted {
		waited = t.GrantedAt
	}
	d := ticketDoc{
		Session: t.Session, Ticket: t.Ticket, Token: uint64(t.Token), Label: t.Label, Identity: t.Identity, Owner: t.Owner,
		Metadata: metadataText(t.Metadata),
		Waited:   elapsedText(t.EnqueuedAt, waited), Held: elapsedText(t.GrantedAt, now),
		LeaseLeft: remainingText(t.LeaseUntil, now), Reserved: t.State == client.Granted && !t.Attached, HoldLeft: remainingText(t.HoldUntil, now), WaitLeft: remainingText(t.WaitUntil, now),
		Items:    mapSlice(t.Items, newItemDoc),
		Blockers: mapSlice(t.Blockers, func(b client.Blocker) blockerDoc { return newBlockerDoc(b, now) }),
	}
	if d.Reserved {
		d.reservedUntil = timeOfDayText(t.LeaseUntil, now)
	}
	return d
}

// displayName is what a person recognises it by.
func (t ticketDoc) displayName() string { return firstNonEmpty(t.Metadata, t.Label, t.Identity) }

// modeOn is how the ticket wants or has one lock.
func (t ticketDoc) modeOn(name string) string {
	for _, i := range t.Items {
		if i.Name == name {
			return i.modeText()
		}
	}
	return ""
}

type sessionDoc struct {
	Session   uint64 `json:"session,string"`
	Label     string `json:"label,omitempty"`
	Identity  string `json:"identity,omitempty"`
	Metadata  string `json:"metadata,omitempty"`
	Age       string `json:"age"`
	TTL       string `json:"ttl"`
	LeaseLeft string `json:"lease_left"`
	LockDelay string `json:"lock_delay,omitempty"`
	Tickets   int    `json:"tickets"`
	Connected bool   `json:"stream"`
}

func newSessionDoc(s client.SessionInfo, now time.Duration) sessionDoc {
	d := sessionDoc{
		Session: s.Session, Label: s.Label, Identity: s.Identity, Metadata: metadataText(s.Metadata),
		Age: durationText(now - s.Opened), TTL: s.TTL.String(), LeaseLeft: durationText(s.Deadline - now), Tickets: s.Tickets, Connected: s.Attached,
	}
	if s.LockDelay > 0 {
		d.LockDelay = s.LockDelay.String()
	}
	return d
}

// elapsedText and until are how far a moment of the cluster's clock is; "" = there is none, or it is not known.
func elapsedText(at, now time.Duration) string {
	if at == 0 {
		return ""
	}
	return durationText(now - at)
}

func remainingText(at, now time.Duration) string {
	if at == 0 {
		return ""
	}
	return durationText(at - now)
}

// timeOfDayText is a moment of the cluster's clock on this machine's; "" = there is none.
func timeOfDayText(at, now time.Duration) string {
	if at == 0 {
		return ""
	}
	today := time.Now()
	return clockText(today.Add(at-now), today)
}

// durationText rounds a time to what a person wants to know.
func durationText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

// metadataText is metadata as a text, quoted if it is none.
func metadataText(data []byte) string {
	if !utf8.Valid(data) {
		return strconv.Quote(string(data))
	}
	return string(data)
}

// mapSlice turns a list into another; never nil, which would be null in JSON.
func mapSlice[T, D any](list []T, f func(T) D) []D {
	out := make([]D, len(list))
	for i := range list {
		out[i] = f(list[i])
	}
	return out
}

// firstNonEmpty is the first text that is not empty.
func firstNonEmpty(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return "-"
}
