package fsm_test

import (
	"fmt"
	"strings"

	"zamok/clock"
	"zamok/fsm"
)

// invalidCommand is a command with one field out of its limits.
func (g *generator) invalidCommand() fsm.Command {
	return pickOf(g.pick, g.invalidOpen, g.invalidAcquire, g.invalidItems, g.invalidItems,
		g.invalidTicket,
		g.invalidOperatorCommand, g.invalidNodeCommand)()
}

func (g *generator) tooLongOr(most int, others ...string) string {
	return pickOf(g.pick, append(others, strings.Repeat("x", most+1))...)
}

func (g *generator) badText(most int) string {
	return g.tooLongOr(most, "a\x07b", "\xc3", "\u0085")
}
func (g *generator) badName(most int) string { return g.tooLongOr(most, "", "a\nb", "\xff") }

func (g *generator) badSpan(most clock.Span) clock.Span {
	return pickOf(g.pick, most+1, -2, 1<<63-1, -1<<63)
}

func (g *generator) invalidOpen() fsm.Command {
	c := g.openSession().(*fsm.OpenSession)
	switch g.pick(6) {
	case 0:
		c.Identity = g.badText(fsm.IdentityBytesMax)
	case 1:
		c.Label = g.badText(fsm.LabelBytesMax)
	case 2:
		c.Meta = strings.Repeat("x", fsm.MetaBytesMax+1)
	case 3:
		c.TTL = pickOf(g.pick, 0, fsm.TTLMin-1, g.badSpan(fsm.LongestTTLMax))
	case 4:
		c.LockDelay = g.badSpan(fsm.DelayMax)
	default:
		c.ReleaseOnDisconnect = g.badSpan(fsm.ReleaseOnDisconnectMax)
	}
	return c
}

func (g *generator) invalidAcquire() fsm.Command {
	c := g.acquire().(*fsm.Acquire)
	switch g.pick(6) {
	case 0:
		c.Ticket = 0
	case 1:
		c.Meta = strings.Repeat("x", fsm.MetaBytesMax+1)
	case 2:
		c.Wait = g.badSpan(fsm.SpanMax)
	case 3:
		c.MaxHold = pickOf(g.pick, fsm.Forever, g.badSpan(fsm.SpanMax))
	case 4:
		c.Owner = g.badText(fsm.OwnerBytesMax)
	default:
		c.Items = nil
	}
	return c
}

func (g *generator) invalidItems() fsm.Command {
	c := g.acquire().(*fsm.Acquire)
	item := &c.Items[g.pick(len(c.Items))]
	switch g.pick(5) {
	case 0:
		item.Name = g.badName(fsm.NameBytesMax)
	case 1:
		item.Mode = pickOf[fsm.Mode](g.pick, 0, 4, 255)
	case 2:
		bad := pickOf(g.pick, fsm.Item{Mode: fsm.Exclusive, Permits: 1},
			fsm.Item{Mode: fsm.Shared, Of: 1},
			fsm.Item{Mode: fsm.Permits, Of: 2}, fsm.Item{Mode: fsm.Permits, Permits: 3, Of: 2},
			fsm.Item{Mode: fsm.Permits, Permits: 1, Of: fsm.PermitsMax + 1})
		bad.Name = item.Name
		*item = bad
	case 3:
		c.Items = append(c.Items, *item) // the same name twice
	default:
		for i := len(c.Items); i <= fsm.ItemsMax; i++ {
			c.Items = append(c.Items, fsm.Item{Name: fmt.Sprint(lockPrefix, i), Mode: fsm.Shared})
		}
	}
	return c
}

func (g *generator) invalidTicket() fsm.Command {
	id := g.session()
	switch g.pick(3) {
	case 0:
		return &fsm.Drop{Session: id, AckedThrough: g.ackedThrough(id)}
	case 1:
		return &fsm.DropUnrenewed{Session: id, AckedThrough: g.ackedThrough(id)}
	}
	return &fsm.Downgrade{Session: id, AckedThrough: g.ackedThrough(id)}
}

func (g *generator) invalidOperatorCommand() fsm.Command {
	force, expire := g.forceRelease().(*fsm.ForceRelease), g.expireSession().(*fsm.ExpireSession)
	switch g.pick(6) {
	case 0:
		force.Name = g.badName(fsm.NameBytesMax)
	case 1:
		force.Token = 0
	case 2:
		force.Reason = g.badText(fsm.ReasonBytesMax)
	case 3:
		return &fsm.SetLongestTTL{
			TTL: pickOf(g.pick, 0, fsm.LongestTTLMin-1, g.badSpan(fsm.LongestTTLMax))}
	case 4:
		c := &fsm.SetQuotas{}
		*pickOf(g.pick, &c.Sessions, &c.Tickets, &c.Bytes) = fsm.QuotaBytesMax + 1
		if g.pick.oneIn(4) {
			*c = fsm.SetQuotas{Quotas: fsm.Quotas{Share: fsm.ShareMax + 1}}
		}
		return c
	default:
		expire.Reason = g.badText(fsm.ReasonBytesMax)
		return expire
	}
	return force
}

func (g *generator) invalidNodeCommand() fsm.Command {
	start, member, digest := g.leaderStart().(*fsm.LeaderStart), g.member().(*fsm.Member),
		g.digest().(*fsm.Digest)
	switch g.pick(6) {
	case 0:
		start.Node = g.badName(fsm.NodeIDBytesMax)
	case 1:
		start.Cluster = fsm.ClusterID{}
	case 2:
		start.TokenBase = pickOf[uint64](g.pick, fsm.TokenBaseMax+1, 1<<64-1)
	case 3:
		member.ID = g.badName(fsm.NodeIDBytesMax)
		return member
	case 4:
		member.HTTP = g.badText(fsm.AddressBytesMax)
		return member
	default:
		digest.Node = g.badName(fsm.NodeIDBytesMax)
		return digest
	}
	return start
}
