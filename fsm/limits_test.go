package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// Bad input, and each limit of limits.go at its edge: at the limit a command is accepted, one above
// it is refused with a code and the name of the field, on every machine alike, and nothing but the
// index has changed.

// replicaPair are two machines that are given the same bytes, and must stay the same.
type replicaPair struct {
	t       *testing.T
	m       *Machine
	replica *Machine
}

// newReplicaPair returns two machines with an epoch and the sessions 102, 103 and so on.
func newReplicaPair(t *testing.T, sessions int) *replicaPair {
	w := &replicaPair{t, New(), New()}
	commands := []Command{&LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1},
		TokenBase: firstSession - 1}}
	for i := range sessions {
		commands = append(commands,
			&OpenSession{Secret: session.Hash{byte(i + 1)},
				Settings: session.Settings{TTL: clock.Hour}})
	}
	w.do(commands...)
	return w
}

const firstSession = 102

// do applies the commands as one entry and returns their results.
func (w *replicaPair) do(commands ...Command) []Result {
	w.t.Helper()
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: w.m.Epoch()}, Commands: commands}
	a := w.apply(e.Append(nil))
	require.Equal(w.t, OK, a.Refused)
	require.Len(w.t, a.Results, len(commands))
	return a.Results
}

func (w *replicaPair) apply(entry []byte) Applied {
	w.t.Helper()
	a, err := w.m.Apply(1, bytes.Clone(entry))
	require.NoError(w.t, err)
	b, err := w.replica.Apply(1, entry)
	require.NoError(w.t, err)
	require.Equal(w.t, a, b)
	require.Equal(w.t, w.m.Digest(), w.replica.Digest())
	return a
}

// comparableState is all of the state but the index, and when a session was last heard.
func (w *replicaPair) comparableState() any {
	state := w.m.Freeze()
	state.index = 0
	for _, s := range w.m.Sessions(0, 100) {
		state.sessions.Ref(s.ID).Renewed = 0
	}
	return []any{w.m.Counts(), state.Digest()}
}

// requireRefused insists that the command is refused for this field, changes nothing, and does not
// stop the rest of its entry.
func (w *replicaPair) requireRefused(c Command, code Code, field string) {
	w.t.Helper()
	before, index := w.comparableState(), w.m.index
	results := w.do(c, &ExpireSession{Session: 1})
	require.Equal(w.t, code, results[0].Code)
	require.NotNil(w.t, results[0].Detail)
	require.Equal(w.t, field, results[0].Detail.Field)
	require.Equal(w.t, NoSession, results[1].Code)
	require.Equal(w.t, index+3, w.m.index)
	require.Equal(w.t, before, w.comparableState())
	require.NoError(w.t, w.m.Check())
}

func (w *replicaPair) requireAccepted(c Command) Result {
	w.t.Helper()
	r := w.do(c)[0]
	require.Equal(w.t, OK, r.Code, "%+v", r.Detail)
	require.NoError(w.t, w.m.Check())
	return r
}

// fieldLimit is a limit: commands that are just within it, and commands that are just beyond.
type fieldLimit struct {
	field   string
	valid   []Command
	invalid []Command
}

func TestFieldLimits(t *testing.T) {
	for kind, limits := range map[string][]fieldLimit{
		"acquire": acquireLimits(), "open": openLimits(), "operators": operatorLimits(),
		"nodes": nodeLimits(),
	} {
		for _, e := range limits {
			for i, c := range e.valid {
				t.Run(fmt.Sprintf("%s/%s/within/%d", kind, e.field, i), func(t *testing.T) {
					newReplicaPair(t, 1).requireAccepted(c)
				})
			}
			for i, c := range e.invalid {
				t.Run(fmt.Sprintf("%s/%s/beyond/%d", kind, e.field, i), func(t *testing.T) {
					newReplicaPair(t, 1).requireRefused(c, Invalid, e.field)
				})
			}
		}
	}
}

func longText(n int) string { return strings.Repeat("x", n) }

func acquireLimits() []fieldLimit {
	acquire := func(change func(c *Acquire)) Command {
		c := &Acquire{Session: firstSession, Ticket: 1, Items: exclusive("stock")}
		change(c)
		return c
	}
	items := func(items ...Item) Command { return acquire(func(c *Acquire) { c.Items = items }) }
	named := func(name string) Command { return items(Item{Name: name, Mode: Exclusive}) }
	many := func(n int) Command {
		return acquire(func(c *Acquire) {
			c.Items = nil
			for i := range n {
				c.Items = append(c.Items, exclusive(fmt.Sprint(i))...)
			}
		})
	}
	permits := func(n, of uint32) Command { return items(Item{"seats", Permits, n, of}) }
	wait := func(s clock.Span) Command { return acquire(func(c *Acquire) { c.Wait = s }) }
	hold := func(s clock.Span) Command { return acquire(func(c *Acquire) { c.MaxHold = s }) }
	owner := func(s string) Command { return acquire(func(c *Acquire) { c.Owner = s }) }
	meta := func(n int) Command { return acquire(func(c *Acquire) { c.Meta = longText(n) }) }
	return []fieldLimit{
		{
			"name",
			[]Command{named("x"), named(longText(NameBytesMax)), named("замок"),
				named("a b/c\u2028\U0010ffff")},
			[]Command{
				named(""), named(longText(NameBytesMax + 1)), named("\xff"), named("a\xc3"),
				named("\xed\xa0\x80"),
				named("a\x00"), named("a\nb"), named("\x7f"), named("\u0085"),
				items(Item{Name: "tea", Mode: Exclusive}, Item{Name: "milk", Mode: Shared},
					Item{Name: "tea", Mode: Shared}),
				items(Item{Name: "tea", Mode: Exclusive}, Item{Mode: Exclusive}),
			},
		},
		{"items", []Command{many(1), many(ItemsMax)}, []Command{many(0), many(ItemsMax + 1)}},
		{
			"mode",
			[]Command{items(Item{Name: "x", Mode: Shared})},
			[]Command{items(Item{Name: "x"}), items(Item{Name: "x", Mode: Permits + 1}),
				items(Item{Name: "x", Mode: 255})},
		},
		{
			"permits",
			[]Command{permits(1, 1), permits(PermitsMax, PermitsMax)},
			[]Command{
				permits(0, 3), permits(4, 3), permits(1<<32-1, PermitsMax),
				items(Item{"x", Exclusive, 1, 1}), items(Item{"x", Shared, 1, 0}),
			},
		},
		{
			"of",
			[]Command{permits(1, PermitsMax)},
			[]Command{
				permits(1, 0), permits(0, 0), permits(1, PermitsMax+1), permits(1<<32-1, 1<<32-1),
				items(Item{"x", Exclusive, 0, 1}), items(Item{"x", Shared, 0, 1}),
			},
		},
		{
			"wait",
			[]Command{wait(0), wait(1), wait(SpanMax), wait(Forever)},
			[]Command{wait(-2), wait(SpanMax + 1), wait(1<<63 - 1), wait(-1 << 63)},
		},
		{
			"max_hold",
			[]Command{hold(0), hold(1), hold(SpanMax)},
			[]Command{hold(-1), hold(SpanMax + 1), hold(1<<63 - 1), hold(-1 << 63)},
		},
		{
			"owner",
			[]Command{owner(""), owner(longText(OwnerBytesMax))},
			[]Command{owner(longText(OwnerBytesMax + 1)), owner("\xff"), owner("\t")},
		},
		{
			"meta",
			[]Command{meta(MetaBytesMax), acquire(func(c *Acquire) { c.Meta = "\xff\x00" })},
			[]Command{meta(MetaBytesMax + 1)},
		},
		{
			"ticket",
			[]Command{acquire(func(c *Acquire) { c.Ticket = TicketWindow }),
				&Drop{Session: firstSession, Ticket: TicketWindow}},
			[]Command{
				acquire(func(c *Acquire) { c.Ticket = 0 }),
				&Drop{Session: firstSession},
				&Downgrade{Session: firstSession},
			},
		},
	}
}

func openLimits() []fieldLimit {
	open := func(change func(c *OpenSession)) Command {
		c := &OpenSession{Secret: session.Hash{99}, Settings: session.Settings{TTL: clock.Minute}}
		change(c)
		return c
	}
	ttl := func(s clock.Span) Command { return open(func(c *OpenSession) { c.TTL = s }) }
	delay := func(s clock.Span) Command { return open(func(c *OpenSession) { c.LockDelay = s }) }
	grace := func(s clock.Span) Command {
		return open(func(c *OpenSession) { c.ReleaseOnDisconnect = s })
	}
	identity := func(s string) Command { return open(func(c *OpenSession) { c.Identity = s }) }
	label := func(s string) Command { return open(func(c *OpenSession) { c.Label = s }) }
	meta := func(n int) Command { return open(func(c *OpenSession) { c.Meta = longText(n) }) }
	const most, least = clock.Span(1<<63 - 1), clock.Span(-1 << 63)
	return []fieldLimit{
		{"ttl", []Command{ttl(TTLMin), ttl(LongestTTLDefault)},
			[]Command{ttl(TTLMin - 1), ttl(LongestTTLDefault + 1), ttl(LongestTTLMax + 1), ttl(0),
				ttl(-1), ttl(most), ttl(least)}},
		{"lock_delay", []Command{delay(0), delay(DelayMax)},
			[]Command{delay(-1), delay(DelayMax + 1), delay(most), delay(least)}},
		{"release_on_disconnect", []Command{grace(0), grace(ReleaseOnDisconnectMax)},
			[]Command{grace(-1), grace(ReleaseOnDisconnectMax + 1), grace(most), grace(least)}},
		{"identity", []Command{identity(longText(IdentityBytesMax))},
			[]Command{identity(longText(IdentityBytesMax + 1)), identity("\xff"),
				identity("\x1b")}},
		{"label", []Command{label(longText(LabelBytesMax))},
			[]Command{label(longText(LabelBytesMax + 1)), label("\xff"), label("\r")}},
		{"meta", []Command{meta(MetaBytesMax)}, []Command{meta(MetaBytesMax + 1)}},
	}
}

func operatorLimits() []fieldLimit {
	force := func(name string, token uint64, reason string) Command {
		return &ForceRelease{Name: name, Token: token, Reason: reason}
	}
	longest := func(s clock.Span) Command { return &SetLongestTTL{TTL: s} }
	return []fieldLimit{
		{
			"longest_ttl",
			[]Command{longest(LongestTTLMin), longest(LongestTTLMax)},
			[]Command{longest(LongestTTLMin - 1), longest(LongestTTLMax + 1), longest(0),
				longest(-1), longest(1<<63 - 1), longest(-1 << 63)},
		},
		{"name", []Command{force("x", 1, ""), force(longText(NameBytesMax), 1, "")},
			[]Command{force("", 1, ""), force(longText(NameBytesMax+1), 1, ""),
				force("\xff", 1, "")}},
		{"token", []Command{force("x", 1, "")},
			[]Command{force("x", 0, ""), force("x", 1<<64-1, "")}},
		{
			"reason",
			[]Command{
				force("x", 1, longText(ReasonBytesMax)),
				&ExpireSession{Session: firstSession, Reason: longText(ReasonBytesMax)},
			},
			[]Command{
				force("x", 1, longText(ReasonBytesMax+1)), force("x", 1, "\xff"),
				&ExpireSession{Session: firstSession, Reason: longText(ReasonBytesMax + 1)},
				&ExpireSession{Session: firstSession, Reason: "\n"},
			},
		},
	}
}

func nodeLimits() []fieldLimit {
	start := func(node string, cluster byte, base uint64) Command {
		return &LeaderStart{Node: node, Cluster: ClusterID{cluster}, TokenBase: base}
	}
	member := func(change func(c *Member)) Command {
		c := &Member{ID: "n1", StateVersionMin: 1, StateVersionMax: 1}
		change(c)
		return c
	}
	text := func(field string, set func(c *Member, s string)) fieldLimit {
		one := func(s string) Command { return member(func(c *Member) { set(c, s) }) }
		return fieldLimit{
			field,
			[]Command{one(""), one(longText(AddressBytesMax))},
			[]Command{one(longText(AddressBytesMax + 1)), one("\xff"), one("\x00")},
		}
	}
	id := func(s string) Command { return member(func(c *Member) { c.ID = s }) }
	rules := func(low, high uint32) Command {
		return member(func(c *Member) { c.StateVersionMin, c.StateVersionMax = low, high })
	}
	digest := func(node string) Command { return &Digest{Node: node, Index: 1, Value: 2} }
	return []fieldLimit{
		{
			"node",
			[]Command{start("n", 1, 1), start(longText(NodeIDBytesMax), 1, 1),
				digest(longText(NodeIDBytesMax))},
			[]Command{start("", 1, 1), start(longText(NodeIDBytesMax+1), 1, 1), start("\xff", 1, 1),
				digest(""), digest(longText(NodeIDBytesMax + 1)), digest("\x01")},
		},
		{"cluster", []Command{start("n1", 2, 1)}, []Command{start("n1", 0, 1)}},
		{"token_base", []Command{start("n1", 1, TokenBaseMax)},
			[]Command{start("n1", 1, TokenBaseMax+1), start("n1", 1, 1<<64-1)}},
		{"id", []Command{id("n"), id(longText(NodeIDBytesMax))},
			[]Command{id(""), id(longText(NodeIDBytesMax + 1)), id("\xff")}},
		text("client", func(c *Member, s string) { c.Client = s }),
		text("peer", func(c *Member, s string) { c.Peer = s }),
		text("http", func(c *Member, s string) { c.HTTP = s }),
		text("version", func(c *Member, s string) { c.Version = s }),
		{"version", []Command{rules(1, 1), rules(1, 1<<32-1)},
			[]Command{rules(0, 1), rules(2, 1), &Upgrade{0}, &Upgrade{1}, &Upgrade{3}}},
	}
}
