package fsm

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"zamok/session"
)

// rule is a condition that must hold, and the complaint if it does not.
type rule struct {
	complaint string
	holds     bool
}

// firstBroken returns the complaint of the first rule that does not hold, or "".
func firstBroken(rules ...rule) string {
	for _, r := range rules {
		if !r.holds {
			return r.complaint
		}
	}
	return ""
}

// The state machine checks every field again after the server, because entries stay in the log. Each check names the
// first field that is out of its limits, or "".

func invalidSettings(c *session.Settings) string {
	return firstBroken(
		rule{"ttl", c.TTL >= TTLMin && c.TTL <= TTLMax},
		rule{"lock_delay", c.LockDelay >= 0 && c.LockDelay <= DelayMax},
		rule{"grace", c.Grace >= 0 && c.Grace <= GraceMax},
		rule{"identity", isText(c.Identity, 0, IdentityBytesMax)},
		rule{"label", isText(c.Label, 0, LabelBytesMax)},
		rule{"metadata", len(c.Metadata) <= MetadataBytesMax},
	)
}

func (c *Acquire) invalid() string {
	return cmp.Or(firstBroken(
		rule{"ticket", c.Ticket != 0},
		rule{"items", len(c.Items) > 0 && len(c.Items) <= ItemsMax},
		rule{"wait_for", c.WaitFor == Forever || c.WaitFor >= 0 && c.WaitFor <= SpanMax},
		rule{"max_hold", c.MaxHold >= 0 && c.MaxHold <= SpanMax},
		rule{"owner", isText(c.Owner, 0, OwnerBytesMax)},
		rule{"metadata", len(c.Metadata) <= MetadataBytesMax},
	), invalidItems(c.Items))
}

func invalidItems(items []Item) string {
	if len(items) == 0 || len(items) > ItemsMax {
		return "items"
	}
	for i, it := range items {
		sameName := func(earlier Item) bool { return earlier.Name == it.Name }
		if field := it.invalid(); field != "" {
			return field
		}
		if slices.ContainsFunc(items[:i], sameName) { // at most 64
			return "name"
		}
	}
	return ""
}

func (it Item) invalid() string {
	permits := it.Mode == Permits
	return firstBroken(
		rule{"name", isName(it.Name)},
		rule{"mode", it.Mode >= Exclusive && it.Mode <= Permits},
		rule{"permits", permits || it.Permits == 0},
		rule{"of", permits || it.Limit == 0},
		rule{"of", !permits || it.Limit > 0 && it.Limit <= PermitsMax},
		rule{"permits", !permits || it.Permits > 0 && it.Permits <= it.Limit},
	)
}

func (c *Member) invalid() string {
	return firstBroken(
		rule{"id", isText(c.ID, 1, NodeIDBytesMax)},
		rule{"client", isText(c.Client, 0, AddressBytesMax)},
		rule{"peer", isText(c.Peer, 0, AddressBytesMax)},
		rule{"http", isText(c.HTTP, 0, AddressBytesMax)},
		rule{"version", isText(c.Version, 0, AddressBytesMax)},
		rule{"version", c.StateVersionMin > 0 && c.StateVersionMin <= c.StateVersionMax},
	)
}

func isName(s string) bool { return isText(s, 1, NameBytesMax) }

// isText reports whether s is UTF-8 of this many bytes without control characters.
func isText(s string, bytesMin, bytesMax int) bool {
	return len(s) >= bytesMin && len(s) <= bytesMax && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
