package fsm_test

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"zamok/clock"
	"zamok/fsm"
)

// invalidField is the first field of a command that is out of its limits, "" if none is.
func invalidField(c fsm.Command) string {
	var bad string
	check := func(field string, good bool) {
		if !good && bad == "" {
			bad = field
		}
	}
	switch c := c.(type) {
	case *fsm.OpenSession:
		check("identity", isPlainText(c.Identity, fsm.IdentityBytesMax))
		check("label", isPlainText(c.Label, fsm.LabelBytesMax))
		check("meta", len(c.Meta) <= fsm.MetaBytesMax)
		check("ttl", fsm.TTLMin <= c.TTL && c.TTL <= fsm.LongestTTLMax)
		check("lock_delay", 0 <= c.LockDelay && c.LockDelay <= fsm.DelayMax)
		check("release_on_disconnect",
			0 <= c.ReleaseOnDisconnect && c.ReleaseOnDisconnect <= fsm.ReleaseOnDisconnectMax)
	case *fsm.Acquire:
		check("ticket", c.Ticket > 0)
		check("items", 1 <= len(c.Items) && len(c.Items) <= fsm.ItemsMax)
		for i, item := range c.Items {
			check("name", isName(item.Name))
			check("name", !slices.ContainsFunc(c.Items[:i],
				func(o fsm.Item) bool { return o.Name == item.Name }))
			check("mode", fsm.Exclusive <= item.Mode && item.Mode <= fsm.Permits)
			if item.Mode == fsm.Permits {
				check("of", 1 <= item.Of && item.Of <= fsm.PermitsMax)
				check("permits", 1 <= item.Permits && item.Permits <= item.Of)
			} else {
				check("permits", item.Permits == 0)
				check("of", item.Of == 0)
			}
		}
		check("wait", c.Wait == fsm.Forever || isSpan(c.Wait))
		check("max_hold", isSpan(c.MaxHold))
		check("owner", isPlainText(c.Owner, fsm.OwnerBytesMax))
		check("meta", len(c.Meta) <= fsm.MetaBytesMax)
	case *fsm.Drop:
		check("ticket", c.Ticket > 0)
	case *fsm.DropUnrenewed:
		check("ticket", c.Ticket > 0)
	case *fsm.Downgrade:
		check("ticket", c.Ticket > 0)
	case *fsm.ForceRelease:
		check("name", isName(c.Name))
		check("token", c.Token > 0)
		check("reason", isPlainText(c.Reason, fsm.ReasonBytesMax))
	case *fsm.ExpireSession:
		check("reason", isPlainText(c.Reason, fsm.ReasonBytesMax))
	case *fsm.LeaderStart:
		check("node", isNode(c.Node))
		check("cluster", c.Cluster != fsm.ClusterID{})
		check("token_base", c.TokenBase <= fsm.TokenBaseMax)
	case *fsm.Member:
		check("id", isNode(c.ID))
		check("client", isPlainText(c.Client, fsm.AddressBytesMax))
		check("peer", isPlainText(c.Peer, fsm.AddressBytesMax))
		check("http", isPlainText(c.HTTP, fsm.AddressBytesMax))
		check("version", isPlainText(c.Version, fsm.AddressBytesMax))
		check("version", c.StateVersionMin <= c.StateVersionMax)
	case *fsm.SetLongestTTL:
		check("longest_ttl", fsm.LongestTTLMin <= c.TTL && c.TTL <= fsm.LongestTTLMax)
	case *fsm.SetQuotas:
		check("sessions", c.Sessions <= fsm.SessionsMax)
		check("tickets", c.Tickets <= fsm.QuotaTicketsMax)
		check("bytes", c.Bytes <= fsm.QuotaBytesMax)
		check("share", c.Share <= fsm.ShareMax)
	case *fsm.Digest:
		check("node", isNode(c.Node))
	}
	return bad
}

func isName(s string) bool     { return s != "" && isPlainText(s, fsm.NameBytesMax) }
func isNode(s string) bool     { return s != "" && isPlainText(s, fsm.NodeIDBytesMax) }
func isSpan(s clock.Span) bool { return 0 <= s && s <= fsm.SpanMax }
func isPlainText(s string, m int) bool {
	return len(s) <= m && utf8.ValidString(s) && !hasControl(s)
}

func hasControl(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return true
		}
	}
	return false
}
