package api

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// Of any index the timeline tells a time that is not after the true one, and before it by no more than a
// step or a hundredth of its age.
func TestTimelineIsNeverWrongAndSeldomVague(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var l appliedTimes
	l.restored(fsm.New())
	truth := []appliedTime{}
	at, now := uint64(1), clock.Time(1)
	for range 30_000 {
		now = now.Add(clock.Span(random.Int64N(int64([]clock.Span{2 * clock.Second, clock.Hour}[random.IntN(50)/49]))))
		truth = append(truth, appliedTime{at, now})
		l.applied(fsm.Applied{Index: at, Time: now})
		at += 1 + random.Uint64N(5)
	}
	require.LessOrEqual(t, len(l.times), appliedTimesMax)
	for _, m := range truth {
		sent := l.at(m.index)
		age := now.Sub(m.time)
		require.LessOrEqual(t, sent, m.time)
		require.LessOrEqual(t, m.time.Sub(sent), max(appliedTimesStep, age/appliedTimesPart), "an age of %v", age)
	}
}

func TestTimelineForgetsWhatWasRestored(t *testing.T) {
	var l appliedTimes
	require.Zero(t, l.at(1))
	l.applied(fsm.Applied{Index: 10, Time: 5 * clock.Time(clock.Second)})
	require.Zero(t, l.at(9))
	require.Equal(t, 5*clock.Time(clock.Second), l.at(10))
	require.Equal(t, 5*clock.Time(clock.Second), l.at(11))
	m := fsm.New()
	for range 20 { // entries that say nothing take an index each
		_, err := m.Apply(1, []byte("?"))
		require.NoError(t, err)
	}
	l.restored(m)
	require.Zero(t, l.at(19))
	require.NotZero(t, l.at(20))
}

// Who asks for a lock is told for how long others have held it or waited for it.
func TestGetTellsAges(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.leader()
	ctx := soon(t)
	s, other := openSession(t, ctx, call(t, n)), openSession(t, ctx, call(t, n))
	held := s.hold("a")
	waiting := other.next("a", -1)
	go other.Acquire(ctx, waiting) // ends with its drop
	var lock *zamokpb.GetResponse
	require.Eventually(t, func() bool {
		var err error
		lock, err = s.Get(ctx, &zamokpb.GetRequest{Name: "a"})
		return err == nil && len(lock.Queue) == 1
	}, patience, 5*time.Millisecond)
	holder, waiter := lock.Holders[0], lock.Queue[0]
	require.Positive(t, holder.GrantedAt)
	require.Positive(t, holder.EnqueuedAt)
	require.Zero(t, waiter.GrantedAt)
	require.Positive(t, waiter.EnqueuedAt)
	require.LessOrEqual(t, waiter.EnqueuedAt, lock.Stamp.Time)
	require.Greater(t, holder.LeaseUntil, lock.Stamp.Time)
	all, err := s.ListSessions(ctx, &zamokpb.ListSessionsRequest{})
	require.NoError(t, err)
	require.Len(t, all.Sessions, 2)
	require.Positive(t, all.Sessions[0].Opened)
	require.EqualValues(t, 1, all.Sessions[0].Tickets)
	other.drop(waiting.Acquire.Ticket)
	s.drop(held.Ticket)
}
