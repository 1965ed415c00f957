package limits

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// these are limits with a clock that is the bubble's in a synctest, and the refusals that they
// count.
func these(t *testing.T, texts ...string) (l *Limits, refusals map[string]int) {
	t.Helper()
	set, err := Parse(texts)
	require.NoError(t, err)
	refusals = make(map[string]int)
	return New(Config{
		Set: set, Connections: 100, Logger: slog.New(slog.DiscardHandler), Clock: clock.Runtime(),
		LimitReached: func(limit string) { refusals[limit]++ },
	}), refusals
}

// refusal returns the limit and the time to wait in an error.
func refusal(t *testing.T, err error) *zamokpb.ErrorInfo {
	t.Helper()
	require.Error(t, err)
	info := wire.Explain(err).Info
	require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	require.Positive(t, info.RetryAfter)
	require.Contains(t, info.Message, info.Field)
	return info
}

// TestAFloodLeavesTheRateOfOthers: a flooding caller gets its rate, another caller is not refused,
// and a caller that waits for the time in a refusal is served.
func TestAFloodLeavesTheRateOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, refusals := these(t, "requests-per-identity=100/s")
		served := 0
		const seconds = 10
		for range seconds * 1000 {
			if l.Take(Requests, "flood") == nil {
				served++
			}
			time.Sleep(time.Millisecond)
			if served%100 == 0 {
				require.NoError(t, l.Take(Requests, fmt.Sprint("bystander", served)))
			}
		}
		// what is saved in a second, and what comes after
		assert.InDelta(t, 100+seconds*100, served, 2)
		assert.Equal(t, map[string]int{"requests-per-identity": seconds*1000 - served}, refusals)
		err := l.Take(Requests, "flood")
		for err == nil {
			err = l.Take(Requests, "flood")
		}
		info := refusal(t, err)
		assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
		assert.Equal(t, "requests-per-identity", info.Field)
		time.Sleep(time.Duration(info.RetryAfter) - time.Nanosecond)
		refusal(t, l.Take(Requests, "flood"))
		time.Sleep(time.Nanosecond)
		require.NoError(t, l.Take(Requests, "flood"))
	})
}

// TestARateOfTheNode: it is shared, and a refusal by one limit uses up nothing of the other.
func TestARateOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := these(t, "requests=10/s", "requests-per-identity=8/s")
		for range 8 {
			require.NoError(t, l.Take(Requests, "a"))
		}
		for range 100 {
			assert.Equal(t, "requests-per-identity", refusal(t, l.Take(Requests, "a")).Field)
		}
		require.NoError(t, l.Take(Requests, "b"))
		require.NoError(t, l.Take(Requests, "b"))
		for range 100 {
			assert.Equal(t, "requests", refusal(t, l.Take(Requests, "b")).Field)
		}
		time.Sleep(time.Second)
		for range 8 {
			require.NoError(t, l.Take(Requests, "b"))
		}
	})
}

// TestOpen: what is open is counted until it ends, in all and by caller.
func TestOpen(t *testing.T) {
	l, refusals := these(t, "streams=4", "watches=none", "watches-per-identity=none")
	var ends []func()
	for range 3 { // three quarters of four
		end, err := l.Open(Streams, "greedy")
		require.NoError(t, err)
		ends = append(ends, end)
	}
	_, err := l.Open(Streams, "greedy")
	info := refusal(t, err)
	assert.Equal(t, "streams-per-identity", info.Field)
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, info.Code)
	last, err := l.Open(Streams, "modest")
	require.NoError(t, err)
	_, err = l.Open(Streams, "late")
	assert.Equal(t, "streams", refusal(t, err).Field)
	forced := l.Count(Streams, "late")
	ends[0]()
	ends[0]() // twice is once
	_, err = l.Open(Streams, "late")
	assert.Equal(t, "streams", refusal(t, err).Field, "Count takes a place, too")
	forced()
	again, err := l.Open(Streams, "late")
	require.NoError(t, err)
	for _, end := range append(ends, last, again) {
		end()
	}
	assert.Empty(t, l.open, "callers that have nothing open take no memory")
	for range 10_000 {
		_, err := l.Open(Watches, "x")
		require.NoError(t, err)
	}
	assert.Equal(t, map[string]int{"streams-per-identity": 1, "streams": 2}, refusals)

	l, _ = these(t, "relayed-bytes=4000000")
	most, err := l.OpenMany(RelayedBytes, "greedy", 3000000)
	require.NoError(t, err)
	_, err = l.OpenMany(RelayedBytes, "greedy", 1)
	assert.Equal(t, "relayed-bytes-per-identity", refusal(t, err).Field)
	_, err = l.OpenMany(RelayedBytes, "modest", 1000001)
	assert.Equal(t, "relayed-bytes", refusal(t, err).Field)
	least, err := l.OpenMany(RelayedBytes, "modest", 1000000)
	require.NoError(t, err)
	release, err := l.OpenMany(RelayedBytes, "late", 4000000/relayedAlways)
	require.NoError(t, err, "others leave room for its releases")
	_, err = l.OpenMany(RelayedBytes, "late", 1)
	assert.Equal(t, "relayed-bytes", refusal(t, err).Field)
	most()
	least()
	release()
	assert.Empty(t, l.open)
}

// TestEachLimit: each limit that can be configured refuses with its name, a code, the outcome and a
// time to wait, and counts that. Without the limit nothing is refused.
func TestEachLimit(t *testing.T) {
	kinds := []Kind{Streams, HeldCalls, Watches, Relays, {"", AddressConnections}, PublicStreams,
		RelayedBytes, Requests, Connects, denialLines, anonymousDenialLines}
	tested := 0
	for _, d := range definitions {
		i := slices.IndexFunc(kinds,
			func(k Kind) bool { return k.all == d.name || k.each == d.name })
		require.GreaterOrEqual(t, i, 0, d.name)
		kind, texts := kinds[i], []string{d.name + "=1"}
		use, code := func(l *Limits) error { _, err := l.Open(kind, "he"); return err },
			zamokpb.Code_CODE_LIMIT_EXCEEDED
		if d.isRate {
			texts[0] += "/s"
			use, code = func(l *Limits) error { return l.Take(kind, "he") },
				zamokpb.Code_CODE_OVERLOADED
		}
		for _, other := range []string{kind.all, kind.each} {
			if other != d.name && other != "" {
				texts = append(texts, other+"=none")
			}
		}
		l, refusals := these(t, texts...)
		require.NoError(t, use(l), d.name)
		info := refusal(t, use(l))
		assert.Equal(t, code, info.Code, d.name)
		assert.Equal(t, d.name, info.Field)
		assert.Contains(t, info.Message, "--limit "+d.name+"=")
		assert.Equal(t, map[string]int{d.name: 1}, refusals)
		texts[0] = d.name + "=none"
		l, _ = these(t, texts...)
		for range 10 {
			require.NoError(t, use(l), d.name)
		}
		tested++
	}
	assert.Equal(t, tested, len(Names()))
}

// TestTheRatesOfManyAreBounded: idle callers are forgotten, and those above rowsMax share a rate.
func TestTheRatesOfManyAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := these(t, "requests-per-identity=2/s")
		for i := range rowsMax {
			require.NoError(t, l.Take(Requests, fmt.Sprint(i)))
		}
		require.NoError(t, l.Take(Requests, "new"))
		require.NoError(t, l.Take(Requests, "newer"))
		refusal(t, l.Take(Requests, "newest"))
		require.NoError(t, l.Take(Requests, "0"), "a caller that is counted has its own rate")
		assert.LessOrEqual(t, len(l.ends), rowsMax+1)
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Take(Requests, "newest"))
		assert.Len(t, l.ends, 1)
	})
}

// log is what was logged since it was taken last.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// TestRefusalsAreLogged: every ten seconds in one line for each limit and caller, with their
// number, and the rest at the end. Callers without a line of their own share one.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := these(t, "requests-per-identity=1/s")
		var text log
		l.Logger = slog.New(slog.NewTextHandler(&text, nil))
		logged := func() (lines []string) {
			for line := range strings.Lines(text.take()) {
				_, fields, _ := strings.Cut(strings.TrimSpace(line), " limit=")
				lines = append(lines, fields)
			}
			return lines
		}
		for range 1000 {
			_ = l.Take(Requests, "flood")
		}
		l.CountRefusal("identity_bytes", "flood")
		_ = l.Take(Requests, "modest")
		assert.Empty(t, logged())
		time.Sleep(logEvery)
		synctest.Wait()
		assert.Equal(t, []string{"requests-per-identity caller=flood refused=999",
			"identity_bytes caller=flood refused=1"}, logged())

		for i := range 1000 {
			l.CountRefusal("streams", fmt.Sprint(i))
		}
		l.Stop()
		lines := logged()
		assert.Len(t, lines, loggedMax+1)
		assert.Contains(t, lines, fmt.Sprintf("streams caller=others refused=%d", 1000-loggedMax))
		l.CountRefusal("streams", "late")
		time.Sleep(logEvery)
		synctest.Wait()
		assert.Empty(t, logged())
	})
}

// TestParse: each limit has its form, and a wrong one names what there is.
func TestParse(t *testing.T) {
	set, err := Parse([]string{"streams=7", "requests=1000/s", "watches-per-identity=none"})
	require.NoError(t, err)
	assert.Equal(t, Set{"streams": 7, "requests": 1000, "watches-per-identity": 0}, set)
	for _, wrong := range []string{"", "streams", "streams=", "streams=0", "streams=-1",
		"streams=7/s", "requests=7", "requests=/s", "requests=2000000000/s", "streams=1e3"} {
		_, err := Parse([]string{wrong})
		require.Error(t, err, wrong)
	}
	_, err = Parse([]string{"sessions=7"})
	for _, name := range Names() {
		require.ErrorContains(t, err, name)
	}
}

// TestDefaults: they are three quarters of what there is, as it is configured.
func TestDefaults(t *testing.T) {
	l, _ := these(t, "held-calls=10")
	assert.Equal(t, map[string]int{
		"streams": 65_536, "streams-per-identity": 49_152, "held-calls": 10,
		"held-calls-per-identity": 8,
		"watches":                 1024, "watches-per-identity": 768,
		"relayed-calls-per-identity": 12_288,
		"connections-per-address":    75,
		"public-streams":             1024, "public-streams-per-address": 768,
		"requests": 0, "requests-per-identity": 0, "connects-per-address": 0,
		"relayed-bytes": 64 << 20, "relayed-bytes-per-identity": 48 << 20,
		"denial-lines": 50, "anonymous-denial-lines": 50, "denial-lines-per-identity": 10,
	}, l.most)
}

// TestNetwork: an address of IPv6 stands for its network.
func TestNetwork(t *testing.T) {
	for host, network := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::9": "2001:db8:1:2::/64",
		"fe80::1%eth0": "fe80::/64", "::1": "::1", "bufconn": "bufconn", "": "",
	} {
		assert.Equal(t, network, Network(host), host)
	}
	assert.Equal(t, "2001:db8::1", HostOf("[2001:db8::1]:5750"))
	assert.Equal(t, "bufconn", HostOf("bufconn"))
}

// TestLimitsAreDocumented: each limit has a row in the table for operators.
func TestLimitsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	require.NoError(t, err)
	for _, name := range append(Names(), UnreadBytes) {
		assert.Contains(t, string(page), "\n| `"+name+"` | ")
	}
}
