package leaderelection

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
	"zamok/client/admin"
)

const election = "controller"

// candidate is a program that runs for the election.
type candidate struct {
	*LeaderElector
	started chan context.Context // from OnStartedLeading
	release chan struct{}        // lets the work return after its context has ended
	worked  chan struct{}        // the work has returned
	stopped chan struct{}        // from OnStoppedLeading
	ended   chan error           // from Run
	cancel  context.CancelFunc

	mu      sync.Mutex
	leaders []string // from OnNewLeader
}

func join(t *testing.T, nodes []*api.Node, identity string, cfg client.Config) *candidate {
	c := &candidate{
		started: make(chan context.Context, 1), release: make(chan struct{}),
		worked:  make(chan struct{}),
		stopped: make(chan struct{}), ended: make(chan error, 1),
	}
	var err error
	c.LeaderElector, err = NewLeaderElector(LeaderElectionConfig{
		Client: dial(t, nodes, cfg), Name: election, Identity: identity,
		Callbacks: LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				c.started <- ctx
				<-ctx.Done()
				<-c.release
				close(c.worked)
			},
			OnStoppedLeading: func() { close(c.stopped) },
			OnNewLeader: func(identity string) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.leaders = append(c.leaders, identity)
			},
		},
	})
	require.NoError(t, err)
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	t.Cleanup(c.cancel)
	go func() { c.ended <- c.Run(ctx) }()
	return c
}

func within[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(testTimeout):
		require.FailNow(t, "did not happen: "+what)
	}
	return v
}

// observes waits until a candidate has been notified of these leaders, in this order.
func (c *candidate) observes(t *testing.T, leaders ...string) {
	t.Helper()
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		c.mu.Lock()
		defer c.mu.Unlock()
		assert.Equal(t, leaders, c.leaders)
	}, testTimeout, 20*time.Millisecond)
}

func TestLeadershipMoves(t *testing.T) {
	nodes := startNodes(t)
	var net network
	one := join(t, nodes, "one", client.Config{TTL: 7 * time.Second, Dialer: net.dial})
	first := within(t, one.started, "one leads")
	token := one.Held().Token()
	two := join(t, nodes, "two", client.Config{TTL: time.Minute})
	two.observes(t, "one")
	require.Equal(t, "one", two.GetLeader())
	require.True(t, one.IsLeader())
	require.False(t, two.IsLeader())

	killLeader(t, nodes)
	_, err := admin.New(dial(t, nodes, client.Config{})).Now(t.Context()) // there is a new one
	require.NoError(t, err)
	require.NoError(t, first.Err(), "a leader of programs outlives a leader of nodes")

	net.cutOff() // as when its machine ends
	second := within(t, two.started, "two leads")
	require.Error(t, first.Err(),
		"the work of the old leader is over before that of the new one begins")
	require.ErrorIs(t, context.Cause(first), client.ErrLost)
	require.False(t, one.IsLeader())
	require.Greater(t, two.Held().Token(), token)
	within(t, one.stopped, "one stops, although its work has not returned")
	require.ErrorIs(t, within(t, one.ended, "the end of Run"), client.ErrLost)
	close(one.release)

	three := join(t, nodes, "three", client.Config{TTL: time.Minute})
	three.observes(t, "two")
	two.cancel()
	<-second.Done()
	info, err := two.config.Client.Get(t.Context(), election, 1)
	require.NoError(t, err)
	require.Equal(t, two.Held().Token(), info.Held[0].Token,
		"it is not released before the work has returned")
	close(two.release)
	within(t, three.started, "three leads")
	within(t, two.worked, "the end of the work")
	require.NoError(t, within(t, two.ended, "the end of Run"))
	within(t, two.stopped, "two stops")
	three.observes(t, "two", "three")
	close(three.release)
	three.cancel()
	require.NoError(t, within(t, three.ended, "the end of Run"))
}

func TestACandidateThatNeverLed(t *testing.T) {
	nodes := startNodes(t)
	one := join(t, nodes, "one", client.Config{})
	within(t, one.started, "one leads")
	two := join(t, nodes, "two", client.Config{})
	two.observes(t, "one")
	two.cancel()
	within(t, two.stopped, "OnStoppedLeading is called all the same")
	require.ErrorIs(t, within(t, two.ended, "the end of Run"), context.Canceled)
	require.Empty(t, two.started)
	close(one.release)
	one.cancel()
	require.NoError(t, within(t, one.ended, "the end of Run"))
}

func TestConfigurationIsComplete(t *testing.T) {
	c, err := client.New(client.Config{Endpoints: []string{"localhost"}})
	require.NoError(t, err)
	defer c.Close()
	good := LeaderElectionConfig{Client: c, Name: "x", Identity: "me", Callbacks: LeaderCallbacks{
		OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}}}
	_, err = NewLeaderElector(good)
	require.NoError(t, err)
	for field, spoil := range map[string]func(*LeaderElectionConfig){
		"Client":           func(c *LeaderElectionConfig) { c.Client = nil },
		"Name":             func(c *LeaderElectionConfig) { c.Name = "" },
		"Identity":         func(c *LeaderElectionConfig) { c.Identity = "" },
		"OnStartedLeading": func(c *LeaderElectionConfig) { c.Callbacks.OnStartedLeading = nil },
		"OnStoppedLeading": func(c *LeaderElectionConfig) { c.Callbacks.OnStoppedLeading = nil },
	} {
		bad := good
		spoil(&bad)
		_, err = NewLeaderElector(bad)
		require.ErrorContains(t, err, field)
		require.Panics(t, func() { RunOrDie(t.Context(), bad) })
	}
}
