package api

import (
	"crypto/sha256"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// The door checks everything that comes in before anything is proposed. What the machine limits
// (fsm/limits.go) is checked here first, so that the answer names the field; these limits are the
// door's own.
const (
	secretBytes      = 16
	sentBytesMax     = 32        // the client's clock, opaque to us
	frameMessagesMax = 1024      // messages of one ClientFrame
	receiveBytesMax  = 160 << 10 // one message or frame from a client; the largest Acquire has 39 KB
	listMax          = 1000      // what one listing returns
	showMax          = 200       // holders, and waiters, that Get returns
	showDefault      = 100
	answerBytesMax   = 1 << 20 // a listing, and what Get returns, ends with what brings it above this
)

// hashOf checks a secret and hashes it: from here on nothing knows the secret itself.
func hashOf(secret []byte) (session.Hash, *failure) {
	if len(secret) != secretBytes {
		return session.Hash{}, invalid("secret", "has %d bytes, not %d random ones", len(secret), secretBytes)
	}
	return sha256.Sum256(secret), nil
}

func checkSent(sent []byte) *failure {
	if len(sent) > sentBytesMax {
		return invalid("sent", "has %d bytes, at most %d are carried", len(sent), sentBytesMax)
	}
	return nil
}

// ttlTimeouts is how many election timeouts a session lives at least. A failover takes two to four, and of its ttl a
// session that renews each third has 0.6 left: below four most failovers would end it, and from six on few.
const ttlTimeouts = 4

func ttlMin(timeout time.Duration) clock.Span {
	return max(ttlTimeouts*clock.FromDuration(timeout), fsm.TTLMin)
}

// openCommand checks what opens a session.
func openCommand(secret session.Hash, identity string, p *zamokpb.SessionSettings, timeout time.Duration) (*fsm.OpenSession, *failure) {
	c := &fsm.OpenSession{
		Secret: secret, Identity: identity, Label: p.GetLabel(), Metadata: string(p.GetMetadata()),
		TTL: clock.Span(p.GetTtl()), LockDelay: clock.Span(p.GetLockDelay()),
		Grace: clock.Span(p.GetReleaseOnDisconnect()),
	}
	switch {
	case p == nil:
		return nil, invalid("settings", "are missing: ttl is required")
	case c.TTL < fsm.TTLMin || c.TTL > fsm.TTLMax:
		return nil, invalid("settings.ttl", "is %v, which is not between %v and %v", c.TTL, fsm.TTLMin, fsm.TTLMax)
	case c.TTL < ttlMin(timeout):
		return nil, invalid("settings.ttl", "is %v, and most failovers would end the session: the cluster's election timeout is %v, so a ttl "+
			"is %v at least (--ttl, client.Config.TTL)", c.TTL, timeout, ttlMin(timeout))
	case c.LockDelay < 0 || c.LockDelay > fsm.DelayMax:
		return nil, invalid("settings.lock_delay", "is %v, which is not between 0 and %v", c.LockDelay, fsm.DelayMax)
	case c.Grace < 0 || c.Grace > fsm.GraceMax:
		return nil, invalid("settings.release_on_disconnect", "is %v, which is not between 0 and %v", c.Grace, fsm.GraceMax)
	case len(c.Metadata) > fsm.MetadataBytesMax:
		return nil, tooLong("settings.metadata", len(c.Metadata), fsm.MetadataBytesMax)
	}
	if reason := wrongText(c.Label, 0, fsm.LabelBytesMax); reason != "" {
		return nil, invalid("settings.label", "%s", reason)
	}
	return c, nil
}

// acquireParts is an Acquire of one lock in one piece of memory.
type acquireParts struct {
	fsm.Acquire
	one [1]fsm.Item
}

// acquireCommand checks an acquisition.
func acquireCommand(id session.ID, floor uint64, p *zamokpb.Acquire) (*fsm.Acquire, *failure) {
	a := &acquireParts{Acquire: fsm.Acquire{
		Session: id, Ticket: p.GetTicket(), AckedThrough: floor,
		WaitFor: clock.Span(p.GetWaitFor()), MaxHold: clock.Span(p.GetMaxHold()),
		Owner: p.GetOwner(), Metadata: string(p.GetMetadata()),
	}}
	items := p.GetItems()
	switch {
	case a.Ticket == 0:
		return nil, invalid("ticket", "is 0: tickets are numbered from 1")
	case len(items) == 0 || len(items) > fsm.ItemsMax:
		return nil, invalid("items", "are %d, not 1 to %d locks", len(items), fsm.ItemsMax)
	case a.WaitFor != fsm.Forever && (a.WaitFor < 0 || a.WaitFor > fsm.SpanMax):
		return nil, invalid("wait_for", "is %v, which is neither -1 (for ever) nor between 0 and %v", a.WaitFor, fsm.SpanMax)
	case a.MaxHold < 0 || a.MaxHold > fsm.SpanMax:
		return nil, invalid("max_hold", "is %v, which is not between 0 and %v", a.MaxHold, fsm.SpanMax)
	case len(a.Metadata) > fsm.MetadataBytesMax:
		return nil, tooLong("metadata", len(a.Metadata), fsm.MetadataBytesMax)
	}
	if reason := wrongText(a.Owner, 0, fsm.OwnerBytesMax); reason != "" {
		return nil, invalid("owner", "%s", reason)
	}
	a.Items = a.one[:0]
	if len(items) > 1 {
		a.Items = make([]fsm.Item, 0, len(items))
	}
	for i, p := range items {
		it, f := item(i, p)
		if f != nil {
			return nil, f
		}
		for j := range a.Items { // at most 64
			if a.Items[j].Name == it.Name {
				return nil, invalid(itemFieldName(i, "name"), "%q is asked for twice", it.Name)
			}
		}
		a.Items = append(a.Items, it)
	}
	return &a.Acquire, nil
}

func itemFieldName(i int, field string) string { return fmt.Sprintf("items[%d].%s", i, field) }

func item(i int, p *zamokpb.Item) (fsm.Item, *failure) {
	it := fsm.Item{Name: p.GetName(), Permits: p.GetPermits(), Limit: p.GetLimit()}
	if f := checkName(p.GetName()); f != nil {
		return it, invalid(itemFieldName(i, "name"), "%s", wrongText(it.Name, 1, fsm.NameBytesMax))
	}
	switch p.GetMode() {
	case zamokpb.Mode_MODE_EXCLUSIVE, zamokpb.Mode_MODE_SHARED:
		if it.Permits != 0 || it.Limit != 0 {
			return it, invalid(itemFieldName(i, "permits"), "is set, and the mode is not MODE_PERMITS")
		}
	case zamokpb.Mode_MODE_PERMITS:
		if it.Limit == 0 || it.Limit > fsm.PermitsMax {
			return it, invalid(itemFieldName(i, "of"), "is %d, which is not between 1 and %d", it.Limit, fsm.PermitsMax)
		}
		if it.Permits == 0 || it.Permits > it.Limit {
			return it, invalid(itemFieldName(i, "permits"), "is %d, which is not between 1 and the limit of %d", it.Permits, it.Limit)
		}
	default:
		return it, invalid(itemFieldName(i, "mode"), "is %v, which is none that this server knows", p.GetMode())
	}
	it.Mode = fsm.Mode(p.GetMode())
	return it, nil
}

func checkTicket(ticket uint64) *failure {
	if ticket == 0 {
		return invalid("ticket", "is 0: tickets are numbered from 1")
	}
	return nil
}

// checkName checks the name of a lock.
func checkName(name string) *failure {
	if reason := wrongText(name, 1, fsm.NameBytesMax); reason != "" {
		return invalid("name", "%s", reason)
	}
	return nil
}

// checkText checks a field that people read: an operator's reason, a prefix.
func checkText(field, text string, bytesMax int) *failure {
	if reason := wrongText(text, 0, bytesMax); reason != "" {
		return invalid(field, "%s", reason)
	}
	return nil
}

// checkLimit is how many a listing may return.
func checkLimit(limit uint32, usual, most int) (int, *failure) {
	switch {
	case limit == 0:
		return usual, nil
	case limit > uint32(most):
		return 0, invalid("limit", "is %d, and at most %d are listed at once", limit, most)
	}
	return int(limit), nil
}

func tooLong(field string, bytes, most int) *failure {
	return invalid(field, "has %d bytes, at most %d are kept", bytes, most)
}

// wrongText says what is wrong with a text, or "".
func wrongText(s string, bytesMin, bytesMax int) string {
	switch {
	case len(s) < bytesMin:
		return "is empty"
	case len(s) > bytesMax:
		return fmt.Sprintf("has %d bytes, at most %d are allowed", len(s), bytesMax)
	case !utf8.ValidString(s):
		return "is not UTF-8"
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return fmt.Sprintf("has the control character %U at byte %d", r, i)
		}
	}
	return ""
}
