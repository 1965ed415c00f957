package sim

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/fsm"
)

// interceptor forwards the streams of clients to a node, and changes frames as a faulty server
// might.
type interceptor struct {
	zamokpb.UnimplementedZamokServer
	node zamokpb.ZamokClient

	mu sync.Mutex // guards what follows, and all that toServer and toClient use
	// toServer and toClient get every frame, and return false to drop it. An error ends the stream.
	// Nil: every frame passes.
	toServer func(*zamokpb.ClientFrame) (pass bool)
	toClient func(*zamokpb.ServerFrame) (bool, error)
	opened   int // number of streams
	// the first stream breaks at its next frame to the client, unless another was opened
	cutFirst bool
}

// cut breaks the first stream.
func (m *interceptor) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cutFirst = true
}

func (m *interceptor) up(f *zamokpb.ClientFrame) (pass bool, end error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pass = m.toServer == nil || m.toServer(f)
	if f.Messages[0].GetOpen() != nil {
		if m.opened++; !pass {
			return false, slowFrames() // its connection breaks
		}
	}
	return pass, nil
}

func (m *interceptor) down(f *zamokpb.ServerFrame) (pass bool, end error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cutFirst && m.opened == 1 {
		return false, slowFrames()
	}
	if m.toClient == nil {
		return true, nil
	}
	return m.toClient(f)
}

// Now is the first call of clients, which tells them the cluster.
func (m *interceptor) Now(ctx context.Context,
	req *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	return m.node.Now(forwardContext(ctx), req)
}

func forwardContext(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.AppendToOutgoingContext(ctx, clusterKey, strings.Join(md.Get(clusterKey), ""))
}

const clusterKey = "zamok-cluster"

func (m *interceptor) Session(
	wire grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	ctx, cancel := context.WithCancelCause(wire.Context())
	defer cancel(nil)
	node, err := m.node.Session(forwardContext(ctx))
	if err != nil {
		return err
	}
	if err := wire.SetHeader(metadata.Pairs(clusterKey,
		strings.Join(metadata.ValueFromIncomingContext(ctx, clusterKey), ""))); err != nil {
		return err
	}
	go func() {
		if err := forward(wire.Recv, m.up, node.Send); !errors.Is(err, io.EOF) {
			cancel(err)
		}
		_ = node.CloseSend()
	}()
	err = forward(node.Recv, m.down, wire.Send)
	return cmp.Or(context.Cause(ctx), err)
}

// forward forwards the frames that pass, until one side or a frame ends the stream.
func forward[Frame any](receive func() (Frame, error), passes func(Frame) (bool, error),
	send func(Frame) error) error {
	for {
		f, err := receive()
		pass := false
		if err == nil {
			pass, err = passes(f)
		}
		if pass && err == nil {
			err = send(f)
		}
		if err != nil {
			return err
		}
	}
}

// startInterceptor starts an interceptor in front of the only node of a cluster, and returns a
// function that configures a client to use it.
func (s *Sim) startInterceptor(m *interceptor) func(*client.Config) {
	stack := s.Network.NewStack("proxy")
	conn, err := grpc.NewClient("passthrough:///n1:5750", grpc.WithContextDialer(stack.Dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(s, err)
	m.node = zamokpb.NewZamokClient(conn)
	port, err := stack.Listen("5750")
	require.NoError(s, err)
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, m)
	wait := background(func(context.Context) { _ = server.Serve(port) })
	s.Cleanup(func() {
		server.Stop()
		wait()
		_ = conn.Close()
	})
	return func(c *client.Config) { c.Endpoints = []string{"proxy"} }
}

// open opens another stream at the node, with this frame.
func (m *interceptor) open(s *Sim, first *zamokpb.ClientFrame) error {
	stream, err := m.node.Session(s.Within(time.Minute))
	require.NoError(s, err)
	require.NoError(s, stream.Send(first))
	_, err = stream.Recv()
	return err
}

// One push in ten is lost, streams are cut, or nothing is wrong; callers give up at random. At most
// one client holds the lock, every call ends, and in the end nothing is held.
func TestFaultyServerOnlyDelays(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"nothing", "pushes lost", "streams cut", "both"} {
		t.Run(what, func(t *testing.T) {
			runServed(t, 1, func(s *Sim) {
				random := s.Random("faults")
				lost, cut := 0, 0
				m := &interceptor{toClient: func(f *zamokpb.ServerFrame) (bool, error) {
					if (what == "streams cut" || what == "both") && random.IntN(30) == 0 {
						cut++
						return false, slowFrames()
					}
					if what == "pushes lost" || what == "both" {
						all := len(f.Messages)
						f.Messages = slices.DeleteFunc(f.Messages,
							func(m *zamokpb.ServerMessage) bool {
								return m.GetChange() != nil && random.IntN(10) == 0
							})
						lost += all - len(f.Messages)
					}
					return true, nil
				}}
				s.runContention(s.startInterceptor(m))
				s.Logf("%s: %d pushes lost, %d streams cut, %v", what, lost, cut, s.Elapsed())
				require.Equal(t, what != "nothing", lost+cut > 0)
			})
		})
	}
}

// slowFrames is how a server cuts a stream.
func slowFrames() error {
	s, err := status.New(8, "too slow").WithDetails(&zamokpb.ErrorInfo{
		Code: zamokpb.Code_CODE_SLOW_READER, Outcome: zamokpb.Outcome_OUTCOME_UNKNOWN,
		Message: "too slow"})
	if err != nil {
		return err
	}
	return s.Err()
}

// runContention lets clients lock, try, give up and unlock at random. It checks that at most one
// holds the lock, that tokens rise, and that nothing is held in the end.
func (s *Sim) runContention(change func(*client.Config)) {
	var all sync.WaitGroup
	var mu sync.Mutex
	holder, highest := "", client.Token(0)
	for _, host := range []string{"a", "b", "c"} {
		p := s.program(host, change)
		for i := range 3 {
			random := s.Random(host + string(rune('0'+i)))
			all.Go(func() {
				for range 25 {
					l := s.attempt(p, random)
					if l == nil {
						continue
					}
					mu.Lock()
					if holder != "" {
						s.Errorf("%s holds beside %s", host, holder)
					}
					if l.Token() <= highest {
						s.Errorf("token %d after %d", l.Token(), highest)
					}
					holder, highest = host, l.Token()
					mu.Unlock()
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
					mu.Lock()
					holder = ""
					if l.Err() != nil {
						s.Errorf("lost: %v", l.Err())
					}
					mu.Unlock()
					if err := l.Unlock(s.Within(time.Minute)); err != nil {
						s.Errorf("unlock: %v", err)
					}
				}
			})
		}
	}
	all.Wait()
	s.Await(20*time.Second, "nothing is held or waited for", func() bool {
		n := 0
		s.Leader().View(func(m *fsm.Machine) { n = len(m.Locks("", "", 10)) })
		return n == 0
	})
}

// attempt requests the lock by Lock or TryLock, and may give up at any moment.
func (s *Sim) attempt(p *program, random *rand.Rand) *client.Lock {
	wait := 10 * time.Minute
	if random.IntN(2) == 0 {
		wait = time.Duration(random.IntN(int(30 * time.Millisecond)))
	}
	lock := p.Lock
	if random.IntN(4) == 0 {
		lock = p.TryLock
	}
	l, err := lock(s.Within(wait), "x")
	if err != nil && !errors.Is(err, client.ErrNotAcquired) &&
		!errors.Is(err, client.ErrUnavailable) {
		s.Errorf("%v", err)
	}
	return l
}

// Another process uses the session's secret, or a clone of this process has attached first with the
// same number of attempts. The client that attaches second abandons the session. Its locks are
// lost; its waiting calls continue in another session.
func TestStolenSessionIsAbandoned(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"another process", "a clone"} {
		t.Run(by, func(t *testing.T) {
			runServed(t, 1, func(s *Sim) {
				opening := &zamokpb.OpenStream{}
				m := &interceptor{toServer: func(f *zamokpb.ClientFrame) bool {
					if h := f.Messages[0].GetOpen(); h != nil {
						opening.Secret = h.Secret
						if by == "a clone" {
							h.Attempt = 1 // the clone had the next number first
						}
					}
					return true
				}}
				a, b := s.program("a", s.startInterceptor(m)), s.program("b", nil)
				held := s.lock(a, "x")
				opening.Session = held.Session()
				s.lock(b, "y")
				waits := s.wait(s.Within(time.Minute), a, "y")
				within, streams := time.Second, 2
				if by == "a clone" {
					within, streams = 5*time.Second, 3
					m.cut()
				} else {
					require.NoError(t, m.open(s,
						&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{
							opening.Message()}}))
				}
				s.awaitLost(held, within)
				require.ErrorIs(t, held.Err(), client.ErrSessionExpired)
				require.NoError(t, b.Close())
				// The old session still waits, ahead of the new one: it must expire first.
				require.NotEqual(t, held.Session(), s.awaitResult(waits, 20*time.Second).Session())
				require.Equal(t, streams, m.opened)
			})
		})
	}
}

// The answer to a first transmission comes after the second was sent, and no other answer follows.
// It confirms only the first.
func TestLateAckConfirmsFirstTransmission(t *testing.T) {
	runServed(t, 1, func(s *Sim) {
		var first, second time.Time
		answered := make(chan struct{})
		m := &interceptor{}
		m.toServer = func(f *zamokpb.ClientFrame) bool {
			switch {
			case !second.IsZero():
				return false
			case f.Messages[0].GetKeepAlive() == nil:
				return true
			case first.IsZero():
				first = time.Now()
				return true
			}
			second = time.Now()
			close(answered)
			return false
		}
		m.toClient = func(f *zamokpb.ServerFrame) (bool, error) {
			if !first.IsZero() {
				m.mu.Unlock()
				<-answered
				m.mu.Lock()
			}
			return true, nil
		}
		a := s.program("a", s.startInterceptor(m))
		held := s.lock(a, "x")
		lost := s.awaitLost(held, 30*time.Second)
		require.Greater(t, second.Sub(first), 500*time.Millisecond)
		// 9.5 s after the first was sent, and a check every 100 ms; the interceptor got it a moment
		// later.
		require.LessOrEqual(t, lost.Sub(first), 9600*time.Millisecond)
		require.Greater(t, lost.Sub(first), 9*time.Second, "the answer came")
	})
}

// An OpenStream of a client is delayed, the client gives up and attaches by another one, and then
// the first arrives. The client keeps its session. A clone of the process takes the session, and is
// detected at once, whether or not the late OpenStream has arrived.
func TestLateOpenStreamIsNotAClone(t *testing.T) {
	t.Parallel()
	for name, comes := range map[string]bool{"it comes": true, "it never comes": false} {
		t.Run(name, func(t *testing.T) {
			runServed(t, 1, func(s *Sim) {
				var late *zamokpb.ClientFrame
				m := &interceptor{}
				m.toServer = func(f *zamokpb.ClientFrame) bool {
					if f.Messages[0].GetOpen() != nil && m.opened == 1 {
						late = f
						return false
					}
					return true
				}
				a := s.program("a", s.startInterceptor(m))
				held := s.lock(a, "x")
				m.cut()
				s.lock(a, "y") // over the third stream at the latest
				require.Equal(t, 3, m.opened)

				if comes {
					require.ErrorContains(t, m.open(s, late), "not done")
					time.Sleep(15 * time.Second)
					require.NoError(t, held.Err())
					require.Equal(t, 3, m.opened)
				}
				clone := proto.Clone(late).(*zamokpb.ClientFrame)
				clone.Messages[0].GetOpen().Attempt += 2 // it knows as many attempts as the client
				require.NoError(t, m.open(s, clone))
				s.awaitLost(held, time.Second)
				require.ErrorIs(t, held.Err(), client.ErrSessionExpired)
				require.Equal(t, 3, m.opened)
			})
		})
	}
}

// A grant that crosses a cancellation on the network is released, in whichever order the two
// arrive.
func TestCancelledWaitLeavesNoTicket(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		leads := s.Leader().Host
		s.Network.SetDelay(2*time.Millisecond, 3*time.Millisecond, route{"a", leads},
			route{leads, "a"})
		random := s.Random("cancel")
		granted := 0
		for range 200 {
			held := s.lock(b, "x")
			ctx, cancel := context.WithCancel(s.Within(time.Minute))
			waits := s.wait(ctx, a, "x")
			go func() { _ = held.Unlock(context.Background()) }()
			time.Sleep(time.Duration(random.IntN(12)) * time.Millisecond)
			cancel()
			<-waits.done
			if waits.err == nil {
				granted++
				require.NoError(t, waits.lock.Err())
				require.NoError(t, waits.lock.Unlock(ctx))
			}
			next := s.lock(b, "x")
			require.NoError(t, next.Unlock(s.Within(time.Second)))
		}
		s.Logf("%d of 200 were granted before", granted)
		require.Greater(t, granted, 20)
		require.Less(t, granted, 180)
	})
}

// A process dies: with release on disconnect its locks are free after that time, not after the ttl.
// A connection that breaks and comes back within that time costs nothing.
func TestReleaseOnDisconnect(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", func(c *client.Config) { c.ReleaseOnDisconnect = 2 * time.Second }),
			s.program("b", nil)
		held := s.lock(a, "x")
		waits := s.wait(s.Within(time.Minute), b, "x")
		leads := s.Leader()
		a.stack.closeConns()
		// beyond that time, and before a renewal: one in flight counts as life
		time.Sleep(2500 * time.Millisecond)
		require.NoError(t, held.Err())
		require.Equal(t, leads, s.Leader())
		died := time.Now()
		a.stack.CloseAll()
		s.awaitResult(waits, 5*time.Second)
		require.InDelta(t, 2, waits.at.Sub(died).Seconds(), 0.5)
	})
}
