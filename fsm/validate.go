package fsm

import (
	"unicode"
	"unicode/utf8"

	"zamok/session"
)

// The state machine checks every field again after the server, because entries stay in the log. Each check names the
// first field that is out of its limits, or "".

func invalidSettings(c *session.Settings) string {
	switch {
	case c.TTL < TTLMin || c.TTL > TTLMax:
		return "ttl"
	case c.LockDelay < 0 || c.LockDelay > DelayMax:
		return "lock_delay"
	case c.Grace < 0 || c.Grace > GraceMax:
		return "grace"
	case !isText(c.Identity, 0, IdentityBytesMax):
		return "identity"
	case !isText(c.Label, 0, LabelBytesMax):
		return "label"
	case len(c.Metadata) > MetadataBytesMax:
		return "metadata"
	}
	return ""
}

func (c *Acquire) invalid() string {
	switch {
	case c.Ticket == 0:
		return "ticket"
	case len(c.Items) == 0 || len(c.Items) > ItemsMax:
		return "items"
	case c.WaitFor != Forever && (c.WaitFor < 0 || c.WaitFor > SpanMax):
		return "wait_for"
	case c.MaxHold < 0 || c.MaxHold > SpanMax:
		return "max_hold"
	case !isText(c.Owner, 0, OwnerBytesMax):
		return "owner"
	case len(c.Metadata) > MetadataBytesMax:
		return "metadata"
	}
	return invalidItems(c.Items)
}

func invalidItems(items []Item) string {
	if len(items) == 0 || len(items) > ItemsMax {
		return "items"
	}
	for i, it := range items {
		if field := it.invalid(); field != "" {
			return field
		}
		for _, earlier := range items[:i] { // at most 64
			if earlier.Name == it.Name {
				return "name"
			}
		}
	}
	return ""
}

func (it Item) invalid() string {
	switch {
	case !isName(it.Name):
		return "name"
	case it.Mode != Exclusive && it.Mode != Shared && it.Mode != Permits:
		return "mode"
	case it.Mode != Permits && it.Permits != 0:
		return "permits"
	case it.Mode != Permits && it.Limit != 0:
		return "of"
	case it.Mode == Permits && (it.Limit == 0 || it.Limit > PermitsMax):
		return "of"
	case it.Mode == Permits && (it.Permits == 0 || it.Permits > it.Limit):
		return "permits"
	}
	return ""
}

func (c *Member) invalid() string {
	switch {
	case !isText(c.ID, 1, NodeIDBytesMax):
		return "id"
	case !isText(c.Client, 0, AddressBytesMax):
		return "client"
	case !isText(c.Peer, 0, AddressBytesMax):
		return "peer"
	case !isText(c.HTTP, 0, AddressBytesMax):
		return "http"
	case !isText(c.Version, 0, AddressBytesMax):
		return "version"
	case c.StateVersionMin == 0 || c.StateVersionMin > c.StateVersionMax:
		return "version"
	}
	return ""
}

func isName(s string) bool { return isText(s, 1, NameBytesMax) }

// isText reports whether s is UTF-8 of this many bytes without control characters.
func isText(s string, bytesMin, bytesMax int) bool {
	if len(s) < bytesMin || len(s) > bytesMax || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
