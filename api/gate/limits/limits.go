package limits

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zamok/api/aggregate"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// Kind is a limited resource, with the names of its limits for the node as a whole and for each
// caller; "": none. The zero Kind is no resource, has no limit, and its end is nil.
type Kind struct{ all, each string }

// The resources that are limited by number, and those that are limited by rate.
var (
	Streams   = Kind{"streams", "streams-per-identity"}
	HeldCalls = Kind{"held-calls", "held-calls-per-identity"}
	// Reads are calls that read much of the state, or wait to do so. They count in the caller's
	// limit of held calls, and not in that of the node, so that no read is refused because of other
	// callers.
	Reads   = Kind{"", HeldCalls.each}
	Watches = Kind{"watches", "watches-per-identity"}
	Relays  = Kind{"", "relayed-calls-per-identity"}
	// PublicStreams are those of gRPC's own services, health and reflection: they serve everybody,
	// and are counted by address.
	PublicStreams = Kind{"public-streams", "public-streams-per-address"}
	// RelayedBytes are those of requests that are passed on to another node and wait there or on
	// their way.
	RelayedBytes = Kind{"relayed-bytes", "relayed-bytes-per-identity"}

	Requests = Kind{"requests", "requests-per-identity"}
	Connects = Kind{"", "connects-per-address"}

	// Lines of the audit log. Callers without an identity are kept apart from the others, since
	// there may be any number.
	denialLines          = Kind{"denial-lines", "denial-lines-per-identity"}
	anonymousDenialLines = Kind{"anonymous-denial-lines", "denial-lines-per-identity"}
)

// The limits that are enforced elsewhere: the connections of a port and of an address, the bytes of
// all connections, and the calls on connections to the leader.
const (
	AllConnections     = "connections"
	AddressConnections = "connections-per-address"
	UnreadBytes        = "unread-bytes"
	RelayedCalls       = "relayed-calls"
)

// CallsDefault is the default limit of Streams, and of HeldCalls.
const CallsDefault = 65_536

// definition is a limit that can be configured.
type definition struct {
	name   string
	isRate bool
	most   int // by default; 0: none
}

// definitions are all limits with their defaults; some defaults follow from others, see New.
var definitions = []definition{
	{Streams.all, false, CallsDefault}, {Streams.each, false, 0},
	{HeldCalls.all, false, CallsDefault}, {HeldCalls.each, false, 0},
	{Watches.all, false, 1024}, // an entry wakes those of its prefixes
	{Watches.each, false, 0},
	{Relays.each, false, 12_288},
	{AddressConnections, false, 0},
	{PublicStreams.all, false, 1024}, {PublicStreams.each, false, 0},
	{RelayedBytes.all, false, 64 << 20}, {RelayedBytes.each, false, 0},
	{Requests.all, true, 0}, {Requests.each, true, 0},
	{Connects.each, true, 0},
	{denialLines.all, true, 50}, {anonymousDenialLines.all, true, 50}, {denialLines.each, true, 10},
}

// Names are the limits that can be configured.
func Names() (names []string) {
	for _, d := range definitions {
		names = append(names, d.name)
	}
	return names
}

// Set is the configured limits by name; 0 means no limit. Limits that are not in it have their
// defaults.
type Set map[string]int

// mostMax bounds a configured limit: a rate of one per nanosecond.
const mostMax = 1_000_000_000

// Parse reads limits such as streams=2000, requests-per-identity=1000/s or
// watches-per-identity=none.
func Parse(texts []string) (Set, error) {
	set := make(Set)
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		i := slices.IndexFunc(definitions, func(d definition) bool { return d.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown limit %q; use one of %s", name,
				strings.Join(Names(), ", "))
		}
		if value == "none" {
			set[name] = 0
			continue
		}
		number, form := value, "N"
		if definitions[i].isRate {
			form = "N/s"
			number = strings.TrimSuffix(value, "/s")
		}
		most, err := strconv.Atoi(number)
		if err != nil || most < 1 || most > mostMax || definitions[i].isRate == (number == value) {
			return nil, fmt.Errorf("%q is not %s=%s with N from 1 to %d, or none", text, name, form,
				mostMax)
		}
		set[name] = most
	}
	return set, nil
}

// Config configures Limits. Connections is the maximum number of connections of a port.
// LimitReached, if set, is called for each refusal with the limit's name.
type Config struct {
	Set          Set
	Connections  int
	Logger       *slog.Logger
	LimitReached func(limit string)
	Clock        clock.Source
}

// Limits counts what callers have open, and their requests. It is safe for concurrent use.
type Limits struct {
	Config
	most map[string]int // in force, by name; 0: none

	refusals *aggregate.Counter[row, struct{}] // that are not logged yet

	mu    sync.Mutex            // guards what follows
	open  map[row]int           // what is open
	ends  map[row]clock.Instant // of rates: when the bucket is full again
	swept clock.Instant         // when idle rows of ends were deleted last
}

// row is a limit and the caller that it is counted for; who is empty for limits of the node.
type row struct{ limit, who string }

const (
	// rowsMax bounds the callers of the last second whose rates are counted.
	rowsMax = 1 << 16
	// others is the shared row of callers beyond rowsMax.
	others = "others"
	// logEvery is how often refusals are logged, in one line for each limit and caller, and
	// loggedMax how many lines there are then at most, beside one for each limit.
	logEvery  = 10 * time.Second
	loggedMax = 100
	// openWait is the time to wait that a refusal of Open contains.
	openWait = clock.Second
)

// New makes the limits of a node.
func New(config Config) *Limits {
	l := &Limits{
		Config: config, most: make(map[string]int), open: make(map[row]int),
		ends: make(map[row]clock.Instant),
	}
	l.refusals = aggregate.New(logEvery, loggedMax, l.logRefusals)
	for _, d := range definitions {
		l.most[d.name] = d.most
	}
	maps.Copy(l.most, config.Set)
	for each, of := range map[string]int{
		Streams.each: l.most[Streams.all], HeldCalls.each: l.most[HeldCalls.all],
		Watches.each:       l.most[Watches.all],
		AddressConnections: config.Connections, PublicStreams.each: l.most[PublicStreams.all],
		RelayedBytes.each: l.most[RelayedBytes.all],
	} {
		if _, set := config.Set[each]; !set {
			l.most[each] = perCaller(of)
		}
	}
	return l
}

// Most is a limit that is enforced elsewhere; 0: none.
func (l *Limits) Most(limit string) int { return l.most[limit] }

// perCaller is a caller's default part of a node's limit: three quarters, rounded up.
func perCaller(of int) int { return of - of/4 }

// rows are the rows that a caller counts in. Its own is first, so that a refusal names the caller's
// limit if both are reached.
func (k Kind) rows(who string) [2]row { return [2]row{{k.each, who}, {k.all, ""}} }

// Open counts something as open until end is called, or refuses it.
func (l *Limits) Open(kind Kind, who string) (end func(), err error) {
	return l.OpenMany(kind, who, 1)
}

// relayedAlways is the part of the relayed bytes that every caller may have, whatever others have:
// 32 KiB by default, enough for its releases and renewals.
const relayedAlways = 2048

// OpenMany is Open for n of a kind, such as bytes.
func (l *Limits) OpenMany(kind Kind, who string, n int) (end func(), err error) {
	if kind == (Kind{}) {
		return nil, nil
	}
	l.mu.Lock()
	rows := kind.rows(who)
	for _, r := range rows {
		if kind == RelayedBytes && r != rows[0] &&
			l.open[rows[0]]+n <= l.most[kind.all]/relayedAlways {
			continue
		}
		if most := l.most[r.limit]; most > 0 && l.open[r]+n > most {
			l.mu.Unlock()
			return nil, l.refusal(zamokpb.Code_CODE_LIMIT_EXCEEDED, r.limit, who, openWait,
				"not done: the limit %s of this node, %d, is reached; close something, or use "+
					"another node", r.limit, most)
		}
	}
	defer l.mu.Unlock()
	return l.count(kind, who, n), nil
}

// Count counts something as open until end is called, even beyond the limit.
func (l *Limits) Count(kind Kind, who string) (end func()) {
	if kind == (Kind{}) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count(kind, who, 1)
}

// count is Count with the mutex held.
func (l *Limits) count(kind Kind, who string, n int) (end func()) {
	for _, r := range kind.rows(who) {
		l.open[r] += n
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, r := range kind.rows(who) {
			if l.open[r] -= n; l.open[r] == 0 {
				delete(l.open, r)
			}
		}
	})
}

// AllowDenialLine reports whether a denial of a caller may have a line of the audit log, and counts
// it. It is no refusal.
func (l *Limits) AllowDenialLine(who string, anonymous bool) bool {
	kind := denialLines
	if anonymous {
		kind = anonymousDenialLines
	}
	_, wait := l.take(kind, who)
	return wait <= 0
}

// Take counts a request against a rate, or refuses it with the time to wait.
func (l *Limits) Take(kind Kind, who string) error {
	r, wait := l.take(kind, who)
	if wait <= 0 {
		return nil
	}
	return l.refusal(zamokpb.Code_CODE_OVERLOADED, r.limit, who, wait,
		"not done: the limit %s of this node, %d/s, is reached; send it again in %v", r.limit,
		l.most[r.limit], wait.Duration().Truncate(time.Millisecond)+time.Millisecond)
}

// take returns the rate that is exceeded, and the time to wait. A rate is a token bucket in the
// form of one instant: each request moves it on by 1/N of a second, and it may be at most a second
// ahead of now.
func (l *Limits) take(kind Kind, who string) (at row, wait clock.Span) {
	if l.most[kind.each] == 0 && l.most[kind.all] == 0 {
		return at, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Clock.Now()
	who = l.roomFor(row{kind.each, who}, now)
	rows := kind.rows(who)
	var ends [len(rows)]clock.Instant
	for i, r := range rows {
		if most := l.most[r.limit]; most > 0 {
			ends[i] = l.ends[r].Later(now).Add(clock.Second / clock.Span(most))
			if wait := now.Until(ends[i]) - clock.Second; wait > 0 {
				return r, wait
			}
		}
	}
	for i, r := range rows {
		if l.most[r.limit] > 0 {
			l.ends[r] = ends[i]
		}
	}
	return at, 0
}

// roomFor is the caller that a rate is counted for: who, or others if there are too many.
func (l *Limits) roomFor(r row, now clock.Instant) string {
	if _, known := l.ends[r]; known {
		return r.who
	}
	if now.Since(l.swept) >= clock.Second {
		l.swept = now
		maps.DeleteFunc(l.ends, func(_ row, end clock.Instant) bool { return now.Reached(end) })
	}
	if len(l.ends) >= rowsMax {
		return others
	}
	return r.who
}

// refusal counts a refusal and makes its answer.
func (l *Limits) refusal(code zamokpb.Code, limit, who string, wait clock.Span, format string,
	args ...any) error {
	l.CountRefusal(limit, who)
	e := wire.Errorf(code, format+"; an operator can change it with --limit %s=…",
		append(args, limit)...)
	e.Info.Field, e.Info.RetryAfter = limit, int64(wait)
	return e
}

// CountRefusal counts a refusal, also one by a limit or a quota that is checked elsewhere, and logs
// it within logEvery.
func (l *Limits) CountRefusal(limit, who string) {
	if l.LimitReached != nil {
		l.LimitReached(limit)
	}
	l.refusals.Add(row{limit, who}, row{limit, others}, struct{}{})
}

func (l *Limits) logRefusals(of row, c aggregate.Count[struct{}]) {
	l.Logger.Warn("requests or connections were refused, because a limit or a quota is reached; "+
		"see Limits in docs/operations.md",
		"limit", of.limit, "caller", of.who, "refused", c.N)
}

// Stop logs the refusals that are not logged yet. Later ones are not logged.
func (l *Limits) Stop() { l.refusals.Stop() }

// Network is the key of an address for limits: an IPv4 address, or the /64 network of an IPv6
// address, which usually belongs to one customer. The loopback address is one machine's.
func Network(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is4() || ip.IsLoopback() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}

// HostOf is the host of an address, or all of it if it has no port.
func HostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
