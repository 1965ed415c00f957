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

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// Kind is what is limited: by one limit for the node as a whole, and one for each caller. Without a name there is none.
type Kind struct{ all, each string }

// What may be open, and what may be asked for in a second.
var (
	Streams     = Kind{"streams", "streams-per-identity"}
	HeldCalls   = Kind{"held-calls", "held-calls-per-identity"}
	Watches     = Kind{"", "watches-per-identity"}
	Relays      = Kind{"", "relayed-calls-per-identity"}
	Connections = Kind{"", "connections-per-address"}

	Requests = Kind{"requests", "requests-per-identity"}
	Connects = Kind{"", "connects-per-address"}
)

// AllConnections is the limit of a port's connections, which its listener enforces.
const AllConnections = "connections"

// definition is a limit that can be configured.
type definition struct {
	name   string
	isRate bool
	most   int // by default; 0: none
}

// definitions are those that do not follow from others.
var definitions = []definition{
	{Streams.all, false, 65_536}, {Streams.each, false, 0},
	{HeldCalls.all, false, 65_536}, {HeldCalls.each, false, 0},
	{Watches.each, false, 768}, // of 1024 that package history has
	{Relays.each, false, 12_288},
	{Connections.each, false, 0},
	{Requests.all, true, 0}, {Requests.each, true, 0},
	{Connects.each, true, 0},
}

// Names are the limits that can be configured.
func Names() (names []string) {
	for _, d := range definitions {
		names = append(names, d.name)
	}
	return names
}

// Set is the limits that were configured, by name; 0 is none. Others have their defaults.
type Set map[string]int

// mostMax bounds what is configured: a rate of one in each nanosecond.
const mostMax = 1_000_000_000

// Parse reads limits such as streams=2000, requests-per-identity=1000/s or watches-per-identity=none.
func Parse(texts []string) (Set, error) {
	set := make(Set)
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		i := slices.IndexFunc(definitions, func(d definition) bool { return d.name == name })
		if i < 0 {
			return nil, fmt.Errorf("%q is no limit; there are %s", name, strings.Join(Names(), ", "))
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
			return nil, fmt.Errorf("%q is not %s=%s with N from 1 to %d, or none", text, name, form, mostMax)
		}
		set[name] = most
	}
	return set, nil
}

// Config configures Limits. Connections is how many of them a port takes. Limited is called for each refusal, with the
// limit's name; nil: nobody asks.
type Config struct {
	Set         Set
	Connections int
	Logger      *slog.Logger
	Limited     func(limit string)
	Clock       clock.Source
}

// Limits counts what callers have open, and what they ask for. It may be used by several goroutines at once.
type Limits struct {
	Config
	most map[string]int // in force, by name; 0: none

	mu     sync.Mutex             // guards what follows
	open   map[row]int            // how much is open
	ends   map[row]clock.Instant  // of rates: when all that was asked for is worked off
	swept  clock.Instant          // when idle rows of ends were deleted last
	logged map[string]loggedLimit // by name
}

// row is a caller under a limit; of the node's limits it has no caller.
type row struct{ limit, who string }

type loggedLimit struct {
	at    clock.Instant
	since int // refusals after that
}

const (
	// rowsMax bounds the callers of the last second whose rates are counted.
	rowsMax = 1 << 16
	// others is the caller that stands for those beyond rowsMax.
	others = "others"
	// logEvery is how often refusals by one limit are logged.
	logEvery = 10 * clock.Second
	// openWait is how long a caller is asked to wait until it opens what is refused again.
	openWait = clock.Second
)

// New makes the limits of a node.
func New(config Config) *Limits {
	l := &Limits{
		Config: config, most: make(map[string]int), open: make(map[row]int), ends: make(map[row]clock.Instant),
		logged: make(map[string]loggedLimit),
	}
	for _, d := range definitions {
		l.most[d.name] = d.most
	}
	maps.Copy(l.most, config.Set)
	for each, of := range map[string]int{
		Streams.each: l.most[Streams.all], HeldCalls.each: l.most[HeldCalls.all], Connections.each: config.Connections,
	} {
		if _, set := config.Set[each]; !set {
			l.most[each] = share(of)
		}
	}
	return l
}

// share is what one caller may have by default of what the node has: three quarters, rounded up.
func share(of int) int { return of - of/4 }

// rows are those of a caller. That of the caller is first: the refusal is its own, if it is.
func (k Kind) rows(who string) [2]row { return [2]row{{k.each, who}, {k.all, ""}} }

// Open counts something that is open until end is called, or refuses it: nothing was done.
func (l *Limits) Open(kind Kind, who string) (end func(), err error) {
	l.mu.Lock()
	for _, r := range kind.rows(who) {
		if most := l.most[r.limit]; most > 0 && l.open[r] >= most {
			l.mu.Unlock()
			return nil, l.refusal(zamokpb.Code_CODE_LIMIT_EXCEEDED, r.limit, who, openWait,
				"not done: the limit %s of this node, %d, is reached; end something, or ask another node", r.limit, most)
		}
	}
	defer l.mu.Unlock()
	return l.count(kind, who), nil
}

// Count counts something that is open until end is called, whatever the limit.
func (l *Limits) Count(kind Kind, who string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count(kind, who)
}

// count is Count for one that has the mutex.
func (l *Limits) count(kind Kind, who string) (end func()) {
	for _, r := range kind.rows(who) {
		l.open[r]++
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, r := range kind.rows(who) {
			if l.open[r]--; l.open[r] == 0 {
				delete(l.open, r)
			}
		}
	})
}

// Ask counts something that is asked for once, or refuses it: nothing was done, and the answer says for how long to wait.
func (l *Limits) Ask(kind Kind, who string) error {
	if l.most[kind.each] == 0 && l.most[kind.all] == 0 {
		return nil
	}
	r, wait := l.ask(kind, who)
	if wait <= 0 {
		return nil
	}
	return l.refusal(zamokpb.Code_CODE_OVERLOADED, r.limit, who, wait,
		"not done: the limit %s of this node, %d/s, is reached; ask again in %v", r.limit, l.most[r.limit], wait)
}

// ask returns the limit that is reached, and when it is not any more. It is a token bucket that keeps one number: the
// end of what was asked for, if each took its part of a second. That may be up to a second from now.
func (l *Limits) ask(kind Kind, who string) (at row, wait clock.Span) {
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

// roomFor is the caller under which a rate is counted: itself, unless there are too many others.
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
func (l *Limits) refusal(code zamokpb.Code, limit, who string, wait clock.Span, format string, args ...any) error {
	l.Refused(limit, who)
	e := wire.Errorf(code, format+"; an operator can change it with --limit %s=…", append(args, limit)...)
	e.Info.Field, e.Info.RetryAfter = limit, int64(wait)
	return e
}

// Refused counts a refusal, and logs it unless one by the same limit was logged a moment ago.
func (l *Limits) Refused(limit, who string) {
	if l.Limited != nil {
		l.Limited(limit)
	}
	l.mu.Lock()
	now := l.Clock.Now()
	last, before := l.logged[limit]
	silent := before && now.Since(last.at) < logEvery
	if silent {
		l.logged[limit] = loggedLimit{last.at, last.since + 1}
	} else {
		l.logged[limit] = loggedLimit{at: now}
	}
	l.mu.Unlock()
	if !silent {
		l.Logger.Warn("a limit is reached, and its caller is refused what is beyond it; docs/operations.md says how to change it",
			"limit", limit, "caller", who, "refused_since_last_message", last.since)
	}
}

// Network is what the callers of an address are counted under: the address, of IPv6 the network of 64 bits, which one
// customer has.
func Network(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is4() {
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
