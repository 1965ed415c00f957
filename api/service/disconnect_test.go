package service

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// A stream that this node cuts in the moment in which its client breaks it was broken by its
// client, whichever is seen first. One that is superseded was not, for the session continues on
// another stream.
func TestABreakBesideAnEndCounts(t *testing.T) {
	n := startAlone(t)
	for number, one := range []struct {
		code   zamokpb.Code
		breaks bool
	}{{zamokpb.Code_CODE_SLOW_READER, true}, {zamokpb.Code_CODE_SUPERSEDED, false}} {
		for i := range 20 { // a select takes either of what is ready
			secret := uint64(20*number + i)
			q := attachFor(t, n, secret, clock.Minute).queue
			q.End(wire.StreamEnded(one.code, "cut"))
			want := n.Hub.Counts().Broken
			if one.breaks {
				want++
			} else {
				attachFor(t, n, secret, clock.Minute)
			}
			st := &stream{
				server: n.Service, queue: q, ctx: NewContext(t.Context(), testCaller{hungUp: true}),
				failed: make(chan struct{}), err: io.EOF, written: make(chan struct{}),
			}
			close(st.written)
			close(st.failed)
			_ = st.serve()
			require.Equal(t, want, n.Hub.Counts().Broken, "%v", one.code)
		}
	}
}

// opening is a stream whose client sends OpenStream and then breaks it.
type opening struct {
	ctx   context.Context
	first *zamokpb.OpenStream
	taken chan struct{} // closed when it was received
}

func (o *opening) Send(*zamokpb.ServerFrame) error { return o.ctx.Err() }

func (o *opening) Admit(*zamokpb.ClientFrame, int) error { return nil }

func (o *opening) Recv() (*zamokpb.ClientFrame, error) {
	if o.first == nil {
		<-o.ctx.Done()
		return nil, o.ctx.Err()
	}
	frame := frameOf(o.first.Message())
	o.first = nil
	close(o.taken)
	return frame, nil
}

// A client that dies while its Attach is on its way has broken the stream as well: no other part
// would report it.
func TestABreakBeforeTheStateCounts(t *testing.T) {
	n := startAlone(t)
	ctx, cancel := context.WithCancel(soon(t, testCaller{hungUp: true}))
	defer cancel()
	secret := make([]byte, 16)
	opened, err := n.OpenSession(ctx, &zamokpb.OpenSessionRequest{
		Secret: secret,
		Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute),
			ReleaseOnDisconnect: int64(clock.Minute)},
	})
	require.NoError(t, err)
	conn := &opening{ctx: ctx, taken: make(chan struct{}),
		first: &zamokpb.OpenStream{Session: opened.Session, Secret: secret}}
	ended := make(chan error, 1)
	n.raft.View(func(*fsm.Machine) { // nothing is applied meanwhile
		go func() { ended <- n.Session(ctx, conn) }()
		<-conn.taken
		cancel()
		select {
		case err := <-ended:
			t.Errorf("the stream was given up before it was known whether it is attached: %v", err)
		case <-time.After(20 * time.Millisecond): // it is waited for
		}
	})
	require.Eventually(t, func() bool { return n.Hub.Counts().Broken == 1 }, patience,
		time.Millisecond)
}

// slowAdmission is a stream whose first message is admitted when its context ends.
type slowAdmission struct{ opening }

func (s *slowAdmission) Admit(*zamokpb.ClientFrame, int) error {
	<-s.ctx.Done()
	return s.ctx.Err()
}

// A client whose first frame came is not at fault if the node takes too long to admit it.
func TestASlowAdmissionIsNotTheClientsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(NewContext(t.Context(), testCaller{}))
		defer cancel()
		s := New(Config{Stopping: make(chan struct{})})
		e := wire.Explain(s.Session(ctx,
			&slowAdmission{opening{ctx: ctx, taken: make(chan struct{}),
				first: &zamokpb.OpenStream{}}}))
		require.Equal(t, zamokpb.Code_CODE_UNKNOWN, e.Code())
		require.ErrorContains(t, e, "was not answered within")
		cancel()
		s.Wait()
	})
}
