package fsm_test

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"zamok/clock"
	"zamok/fsm"
)

// badField is the first field of a command that is out of its limits, "" if none is.
func badField(c fsm.Command) string {
	var bad string
	is := func(field string, good bool) {
		if !good && bad == "" {
			bad = field
		}
	}
	switch c := c.(type) {
	case *fsm.OpenSession:
		is("identity", plain(c.Identity, fsm.IdentityBytesMax))
		is("label", plain(c.Label, fsm.LabelBytesMax))
		is("metadata", len(c.Metadata) <= fsm.MetadataBytesMax)
		is("ttl", fsm.TTLMin <= c.TTL && c.TTL <= fsm.TTLMax)
		is("lock_delay", 0 <= c.LockDelay && c.LockDelay <= fsm.DelayMax)
		is("grace", 0 <= c.Grace && c.Grace <= fsm.GraceMax)
	case *fsm.Acquire:
		is("ticket", c.Ticket > 0)
		is("items", 1 <= len(c.Items) && len(c.Items) <= fsm.ItemsMax)
		for i, item := range c.Items {
			is("name", isName(item.Name))
			is("name", !slices.ContainsFunc(c.Items[:i], func(o fsm.Item) bool { return o.Name == item.Name }))
			is("mode", fsm.Exclusive <= item.Mode && item.Mode <= fsm.Permits)
			if item.Mode == fsm.Permits {
				is("of", 1 <= item.Limit && item.Limit <= fsm.PermitsMax)
				is("permits", 1 <= item.Permits && item.Permits <= item.Limit)
			} else {
				is("permits", item.Permits == 0)
				is("of", item.Limit == 0)
			}
		}
		is("wait_for", c.WaitFor == fsm.Forever || isSpan(c.WaitFor))
		is("max_hold", isSpan(c.MaxHold))
		is("owner", plain(c.Owner, fsm.OwnerBytesMax))
		is("metadata", len(c.Metadata) <= fsm.MetadataBytesMax)
	case *fsm.Drop:
		is("ticket", c.Ticket > 0)
	case *fsm.Downgrade:
		is("ticket", c.Ticket > 0)
	case *fsm.ForceRelease:
		is("name", isName(c.Name))
		is("token", c.Token > 0)
		is("reason", plain(c.Reason, fsm.ReasonBytesMax))
	case *fsm.ExpireSession:
		is("reason", plain(c.Reason, fsm.ReasonBytesMax))
	case *fsm.LeaderStart:
		is("node", isNode(c.Node))
		is("cluster", c.Cluster != fsm.ClusterID{})
		is("token_base", c.TokenBase <= fsm.TokenBaseMax)
	case *fsm.Member:
		is("id", isNode(c.ID))
		is("client", plain(c.Client, fsm.AddressBytesMax))
		is("peer", plain(c.Peer, fsm.AddressBytesMax))
		is("http", plain(c.HTTP, fsm.AddressBytesMax))
		is("version", plain(c.Version, fsm.AddressBytesMax))
		is("version", c.StateVersionMin <= c.StateVersionMax)
	case *fsm.Digest:
		is("node", isNode(c.Node))
	}
	return bad
}

func isName(s string) bool       { return s != "" && plain(s, fsm.NameBytesMax) }
func isNode(s string) bool       { return s != "" && plain(s, fsm.NodeIDBytesMax) }
func isSpan(s clock.Span) bool   { return 0 <= s && s <= fsm.SpanMax }
func plain(s string, m int) bool { return len(s) <= m && utf8.ValidString(s) && !hasControl(s) }

func hasControl(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return true
		}
	}
	return false
}
