package client_test

import (
	"bytes"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/api/gate/identity"
	"zamok/api/gate/rules"
	"zamok/client"
)

// denials counts the lines of an audit log by what they deny.
type denials struct {
	mu    sync.Mutex // guards calls
	calls map[string]int
}

func (d *denials) Write(line []byte) (int, error) {
	var e struct {
		Call    string
		Omitted int
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := json.Unmarshal(bytes.TrimSpace(line), &e)
	d.calls[e.Call] += max(e.Omitted, 1)
	return len(line), err
}

func (d *denials) of(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[call]
}

// TestADenialIsFinal: a client whose stream is denied asks once, and so does each of its calls. It
// does not wait for the end of its lease.
func TestADenialIsFinal(t *testing.T) {
	t.Parallel()
	var denied atomic.Bool
	nothing, err := rules.Parse([]byte("rules: []"))
	require.NoError(t, err)
	log := &denials{calls: make(map[string]int)}
	c := startNodes(t, 1, func(cfg *api.NodeConfig) {
		cfg.Audit = log
		cfg.Rules = func() *rules.Set {
			if denied.Load() {
				return nothing
			}
			return nil
		}
	})
	g := &gate{}
	cl, ctx := c.client(func(cfg *client.Config) { cfg.Dialer, cfg.TTL = g.dial, time.Minute }),
		soon(t)
	held, err := cl.Lock(ctx, "x")
	require.NoError(t, err)
	g.cut()
	denied.Store(true)
	g.open()
	until(t, held.Lost(), "the end of the session")
	require.Equal(t, 1, log.of("OpenStream"))
	for i := range 3 {
		_, err = cl.Lock(ctx, "x")
		require.ErrorIs(t, err, client.ErrDenied)
		require.Equal(t, 2+i, log.of("OpenStream"))
		for _, err := range cl.Watch(ctx, "", 0) {
			require.ErrorIs(t, err, client.ErrDenied)
		}
		require.Equal(t, 1+i, log.of("Watch"))
	}
}

// TestAClientWithoutAValidTokenAsksNowAndThen: until its lease ends, since the next token may be
// late.
func TestAClientWithoutAValidTokenAsksNowAndThen(t *testing.T) {
	t.Parallel()
	text, line, err := identity.NewToken("alice", time.Time{})
	require.NoError(t, err)
	var known atomic.Pointer[identity.Tokens]
	known.Store(&identity.Tokens{line.ID: line})
	log := &denials{calls: make(map[string]int)}
	c := startNodes(t, 1, func(cfg *api.NodeConfig) {
		cfg.Audit = log
		cfg.Identity.Verifier = func() identity.Verifier {
			return identity.Verifier{Tokens: *known.Load()}
		}
	})
	source, g := &tokenSource{}, &gate{}
	source.Store(&text)
	cl, ctx := c.client(func(cfg *client.Config) {
		cfg.Credentials, cfg.Dialer, cfg.TTL = source, g.dial, 2*time.Second
	}), soon(t)
	held, err := cl.Lock(ctx, "x")
	require.NoError(t, err)
	g.cut()
	known.Store(&identity.Tokens{})
	g.open()
	until(t, held.Lost(), "the end of the lease")
	require.Positive(t, log.of("Session"))
	require.Less(t, log.of("Session"), 20, "with pauses that grow")
}
