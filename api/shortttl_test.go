package api

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// A ttl that survives few failovers is accepted, with a notice in each answer, and operators see
// that there is one.
func TestAShortTTL(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.ElectionTimeout = 1500 * time.Millisecond
	})
	ctx, n := soon(t), c.leader()
	before := send(ctx, t, n, "GET", "/v1/members", "")
	require.NotContains(t, before.fields, "short_ttls")
	long := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"long","ttl":"1m"}`)
	require.NotContains(t, long.fields, "ttl_min")

	short := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"short","ttl":"5s"}`)
	require.Equal(t, 200, short.code, short.text)
	require.Equal(t, "6s", short.fields["ttl_min"])
	key := hex.EncodeToString(newSecret())
	const queued = `{"name":"short","ttl":"5s","wait":"1m","poll":"1ms"}`
	waits := send(ctx, t, n, "POST", "/v1/acquire", queued, "Idempotency-Key", key)
	require.Equal(t, 202, waits.code, waits.text)
	waits = send(ctx, t, n, "POST", "/v1/acquire", queued, "Idempotency-Key", key)
	require.Equal(t, 202, waits.code, "it keeps its place")
	renewed := send(ctx, t, n, "POST", "/v1/renew", short.text)
	require.Equal(t, 200, renewed.code, renewed.text)
	require.Equal(t, "6s", renewed.fields["ttl_min"])

	require.Eventually(t, func() bool {
		// a busy machine may take longer than its ttl
		send(ctx, t, n, "POST", "/v1/renew", short.text)
		send(ctx, t, n, "POST", "/v1/acquire", queued, "Idempotency-Key", key)
		return send(ctx, t, n, "GET", "/v1/members", "").fields["short_ttls"] == "2"
	}, patience, 20*time.Millisecond, "they are counted once a second")
	_, text := fetch(t, n.HTTP(), "/metrics")
	samples, _ := scrape(t, text)
	assert.EqualValues(t, 2, samples["zamok_sessions_short_ttl"])

	z := call(t, n)
	opened, err := z.OpenSession(ctx,
		&zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(fsm.TTLMin)})
	require.NoError(t, err)
	assert.EqualValues(t, 6*time.Second, opened.TtlMin)
	taken, err := z.Acquire(ctx, &zamokpb.AcquireRequest{
		Secret: newSecret(), Settings: settings(fsm.TTLMin),
		Acquire: &zamokpb.Acquire{Ticket: 1,
			Items: []*zamokpb.Item{{Name: "other", Mode: zamokpb.Mode_MODE_EXCLUSIVE}}},
	})
	require.NoError(t, err)
	assert.EqualValues(t, 6*time.Second, taken.TtlMin)
}
