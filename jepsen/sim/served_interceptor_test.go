package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/fsm"
)

// interceptor stands between clients and a node, and does to their streams what a faulty server might.
type interceptor struct {
	zamokpb.UnimplementedZamokServer
	node zamokpb.ZamokClient
	// toServer and down see every frame; false: it is lost. An error ends the stream. Nil: all passes.
	toServer func(*zamokpb.ClientFrame) (bool, error)
	toClient func(*zamokpb.ServerFrame) (bool, error)
}

// Now is what clients ask first, to learn which cluster they talk to.
func (m *interceptor) Now(ctx context.Context, req *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	return m.node.Now(forwardContext(ctx), req)
}

func forwardContext(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.AppendToOutgoingContext(ctx, clusterKey, strings.Join(md.Get(clusterKey), ""))
}

const clusterKey = "zamok-cluster"

func (m *interceptor) Session(wire grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	ctx, cancel := context.WithCancelCause(wire.Context())
	defer cancel(nil)
	node, err := m.node.Session(forwardContext(ctx))
	if err != nil {
		return err
	}
	if err := wire.SetHeader(metadata.Pairs(clusterKey, strings.Join(metadata.ValueFromIncomingContext(ctx, clusterKey), ""))); err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			f, err := wire.Recv()
			pass := true
			if err == nil && m.toServer != nil {
				pass, err = m.toServer(f)
			}
			if err != nil {
				cancel(err)
				return
			}
			if pass && node.Send(f) != nil {
				return
			}
		}
	}()
	for {
		f, err := node.Recv()
		pass := true
		if err == nil && m.toClient != nil {
			pass, err = m.toClient(f)
		}
		if err == nil && pass {
			err = wire.Send(f)
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}

// startInterceptor puts a middle before the only node of a cluster, and returns how clients are told of it.
func (w *servedCluster) startInterceptor(m *interceptor) func(*client.Config) {
	stack := w.Network.NewStack("middle")
	conn, err := grpc.NewClient("passthrough:///n1:5750", grpc.WithContextDialer(stack.Dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(w, err)
	m.node = zamokpb.NewZamokClient(conn)
	port, err := stack.Listen("5750")
	require.NoError(w, err)
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, m)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(port)
	}()
	w.cleanup(func() {
		server.Stop()
		<-served
		_ = conn.Close()
	})
	return func(c *client.Config) { c.Endpoints = []string{"middle"} }
}

// all looks at each message of a kind, and keeps those that it says yes to.
func eachFrame(f *zamokpb.ServerFrame, keep func(*zamokpb.ServerMessage) bool) {
	var kept []*zamokpb.ServerMessage
	for _, m := range f.Messages {
		if keep(m) {
			kept = append(kept, m)
		}
	}
	f.Messages = kept
}

// One push in ten is lost, streams are cut, callers change their minds: nobody is beside anybody, every
// call ends, and in the end nothing is left.
func TestFaultyServerOnlyDelays(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"pushes lost", "streams cut", "both"} {
		t.Run(what, func(t *testing.T) {
			runServed(t, 1, func(w *servedCluster) {
				random := w.Random("faults")
				var mu sync.Mutex
				lost, cut := 0, 0
				m := &interceptor{toClient: func(f *zamokpb.ServerFrame) (bool, error) {
					mu.Lock()
					defer mu.Unlock()
					if what != "pushes lost" && random.IntN(30) == 0 {
						cut++
						return false, slowFrames()
					}
					if what != "streams cut" {
						eachFrame(f, func(m *zamokpb.ServerMessage) bool {
							keep := m.GetChange() == nil || random.IntN(10) != 0
							if !keep {
								lost++
							}
							return keep
						})
					}
					return true, nil
				}}
				via := w.startInterceptor(m)
				w.runContention(via)
				w.Logf("%s: %d pushes lost, %d streams cut, %v", what, lost, cut, w.Elapsed())
				require.Positive(t, lost+cut)
			})
		})
	}
}

// slowFrames is how a server cuts a stream.
func slowFrames() error {
	s, err := status.New(8, "too slow").WithDetails(&zamokpb.ErrorInfo{
		Code: zamokpb.Code_CODE_SLOW_READER, Outcome: zamokpb.Outcome_OUTCOME_UNKNOWN, Message: "too slow"})
	if err != nil {
		return err
	}
	return s.Err()
}

// runContention has clients lock, try, give up and unlock at random, and checks what must be so.
func (w *servedCluster) runContention(change func(*client.Config)) {
	var all sync.WaitGroup
	var mu sync.Mutex
	holder, highest := "", client.Token(0)
	for _, host := range []string{"a", "b", "c"} {
		p := w.program(host, change)
		for i := range 3 {
			random := w.Random(host + string(rune('0'+i)))
			all.Go(func() {
				for range 25 {
					l := w.attempt(p, random)
					if l == nil {
						continue
					}
					mu.Lock()
					if holder != "" {
						w.Errorf("%s holds beside %s", host, holder)
					}
					if l.Token() <= highest {
						w.Errorf("token %d after %d", l.Token(), highest)
					}
					holder, highest = host, l.Token()
					mu.Unlock()
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
					mu.Lock()
					holder = ""
					if l.Err() != nil {
						w.Errorf("lost: %v", l.Err())
					}
					mu.Unlock()
					if err := l.Unlock(w.Within(time.Minute)); err != nil {
						w.Errorf("unlock: %v", err)
					}
				}
			})
		}
	}
	all.Wait()
	w.Await(20*time.Second, "nothing is held or waited for", func() bool {
		n := 0
		w.servers[0].node.Raft().View(func(m *fsm.Machine) { n = len(m.Locks("", "", 10)) })
		return n == 0
	})
}

// attempt asks for the lock in one way or another, and may change its mind at any moment.
func (w *servedCluster) attempt(p *clientMachine, random *rand.Rand) *client.Lock {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	if random.IntN(2) == 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(random.IntN(int(30*time.Millisecond))))
	}
	defer cancel()
	var l *client.Lock
	var err error
	if random.IntN(4) == 0 {
		l, err = p.TryLock(ctx, "x")
	} else {
		l, err = p.Lock(ctx, "x")
	}
	if err != nil && !errors.Is(err, client.ErrNotAcquired) && !errors.Is(err, client.ErrUnavailable) {
		w.Errorf("%v", err)
	}
	return l
}

// Somebody else uses the session's secret. What is held can't be relied on; what waits goes elsewhere.
func TestStolenSessionIsAbandoned(t *testing.T) {
	t.Parallel()
	runServed(t, 1, func(w *servedCluster) {
		var mu sync.Mutex
		var secret []byte
		m := &interceptor{toServer: func(f *zamokpb.ClientFrame) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			if h := f.Messages[0].GetOpen(); h != nil {
				secret = h.Secret
			}
			return true, nil
		}}
		via := w.startInterceptor(m)
		a, b := w.program("a", via), w.program("b", nil)
		held := w.lock(a, "x")
		mu.Lock()
		hello := &zamokpb.OpenStream{Secret: secret, Session: held.Session()}
		mu.Unlock()
		w.lock(b, "y")
		waits := w.wait(w.Within(time.Minute), a, "y")

		ctx, cancel := context.WithCancel(w.Within(time.Minute))
		defer cancel()
		thief, err := m.node.Session(ctx)
		require.NoError(t, err)
		require.NoError(t, thief.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{
			{Message: &zamokpb.ClientMessage_Open{Open: hello}}}}))
		_, err = thief.Recv()
		require.NoError(t, err)
		w.awaitLost(held, time.Second)
		require.ErrorIs(t, held.Err(), client.ErrSessionExpired)
		require.NoError(t, b.Close())
		// The old session still waits, and ahead: it has to run out before.
		require.NotEqual(t, held.Session(), w.awaitResult(waits, 20*time.Second).Session())
	})
}

// The answer to a first transmission comes when the second was sent, and nothing after it: it proves that
// the first was heard, and not more.
func TestLateAckConfirmsFirstTransmission(t *testing.T) {
	t.Parallel()
	runServed(t, 1, func(w *servedCluster) {
		var mu sync.Mutex
		var first, second time.Time
		answered := make(chan struct{})
		dead := false
		m := &interceptor{
			toServer: func(f *zamokpb.ClientFrame) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case dead || !second.IsZero():
					return false, nil
				case f.Messages[0].GetKeepAlive() == nil:
					return true, nil
				case first.IsZero():
					first = time.Now()
					return true, nil
				}
				second = time.Now()
				close(answered)
				return false, nil
			},
			toClient: func(f *zamokpb.ServerFrame) (bool, error) {
				mu.Lock()
				wait := !first.IsZero()
				mu.Unlock()
				if wait {
					<-answered
				}
				return true, nil
			},
		}
		a := w.program("a", w.startInterceptor(m))
		held := w.lock(a, "x")
		lost := w.awaitLost(held, 30*time.Second)
		require.Greater(t, second.Sub(first), 500*time.Millisecond)
		// 9.5 s after the first was sent, and a look every 100 ms; the middle saw it a moment later.
		require.LessOrEqual(t, lost.Sub(first), 9600*time.Millisecond)
		require.Greater(t, lost.Sub(first), 9*time.Second, "the answer came")
		mu.Lock()
		dead = true
		mu.Unlock()
	})
}
