package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/clock"
	"zamok/jepsen/check"
)

const (
	scriptHost = "s1"
	// scriptTTL is such that a script seldom has to renew.
	scriptTTL = 10 * time.Second
	// scriptRounds bounds what it does in one session.
	scriptRounds = 8
)

// script is a program without package client: each call is one of its own, made to any node, which passes it on
// to the one that leads.
type script struct {
	*whole
	*rand.Rand
	host  string
	clock *Clock
	stack *Stack
	nodes []zamokpb.ZamokClient
	close []*grpc.ClientConn

	session uint64 // 0 = none
	secret  []byte
	ticket  uint64
	until   clock.Instant // by what was answered its session lives until then at least
}

// runScript runs one until the load is over. Its last call must succeed.
func (w *whole) runScript(host string) (end func()) {
	s := &script{
		whole: w, Rand: w.Random("script on " + host), host: host,
		clock: newClock(w.rateOf(host)), stack: w.Network.NewStack(host),
	}
	again := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}
	for _, n := range w.Founders() {
		conn, err := grpc.NewClient("passthrough:///"+n.Host+":"+clientPort,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(s.stack.Dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
		if err != nil {
			w.Fatal(err)
		}
		s.nodes, s.close = append(s.nodes, zamokpb.NewZamokClient(conn)), append(s.close, conn)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for w.over.Err() == nil {
			s.live()
			s.think()
		}
		for until := time.Now().Add(drainMost); !s.now() && time.Now().Before(until); {
			time.Sleep(thinkMost)
		}
		for _, conn := range s.close {
			_ = conn.Close()
		}
		s.stack.HangUp()
	}()
	return func() { <-over }
}

// call makes one call to any node.
func (s *script) call(most time.Duration, do func(context.Context, zamokpb.ZamokClient) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return do(metadata.AppendToOutgoingContext(ctx, "zamok-relay", "1"), s.nodes[s.IntN(len(s.nodes))])
}

// prove makes a call whose answer proves that the session was heard.
func (s *script) prove(most time.Duration, do func(context.Context, zamokpb.ZamokClient) error) error {
	sent := s.clock.Now()
	err := s.call(most, do)
	if err == nil {
		s.until = sent.Add(clock.Of(scriptTTL - max(scriptTTL/20, 200*time.Millisecond)))
	}
	return err
}

func (s *script) think() { time.Sleep(time.Duration(s.Int64N(int64(thinkMost)))) }

// live is the life of one session.
func (s *script) live() {
	s.secret, s.ticket, s.session = fmt.Appendf(nil, "%016x", s.Uint64())[:16], 0, 0
	settings := &zamokpb.SessionSettings{Ttl: int64(scriptTTL), Label: s.host}
	for s.session == 0 && s.over.Err() == nil {
		_ = s.prove(callMost, func(ctx context.Context, node zamokpb.ZamokClient) error {
			opened, err := node.OpenSession(ctx, &zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings})
			s.session = opened.GetSession()
			return err
		})
		s.think()
	}
	for range 1 + s.IntN(scriptRounds) {
		if s.session == 0 || s.over.Err() != nil {
			break
		}
		switch s.IntN(8) {
		case 0:
			s.now()
		case 1:
			_ = s.prove(callMost, func(ctx context.Context, node zamokpb.ZamokClient) error {
				_, err := node.RenewSession(ctx, &zamokpb.RenewSessionRequest{Session: s.session, Secret: s.secret})
				return err
			})
		default:
			s.lock(fmt.Sprint("m", s.IntN(mutexes)))
		}
		s.think()
	}
	if s.session != 0 { // if that does not arrive, its ttl ends it
		_ = s.call(callMost, func(ctx context.Context, node zamokpb.ZamokClient) error {
			_, err := node.CloseSession(ctx, &zamokpb.CloseSessionRequest{Session: s.session, Secret: s.secret})
			return err
		})
	}
}

func (s *script) now() bool {
	op := s.record.call(check.Op{Client: s.host, Kind: check.OpNow})
	var at *zamokpb.Stamp
	err := s.call(callMost, func(ctx context.Context, node zamokpb.ZamokClient) error {
		answer, err := node.Now(ctx, &zamokpb.NowRequest{})
		at = answer.GetStamp()
		return err
	})
	s.record.done(op, func(op *check.Op) { readStamp(op, at, err) })
	return err == nil
}

func readStamp(op *check.Op, at *zamokpb.Stamp, err error) {
	read(op, client.Stamp{Term: at.GetTerm(), Index: at.GetIndex(), Time: time.Duration(at.GetTime())}, err)
}

// lock asks for a lock, works under it, and gives it back. What it does not know is nothing to it: it drops.
func (s *script) lock(name string) {
	s.ticket++
	ref, items := check.Ref{Session: s.session, Ticket: s.ticket}, []check.Item{{Name: name, Mode: check.Exclusive}}
	op := s.record.call(check.Op{Client: s.host, Kind: check.OpLock, Ref: ref, Items: items})
	var token uint64
	err := s.prove(waitMost+callMost, func(ctx context.Context, node zamokpb.ZamokClient) error {
		granted, err := node.Acquire(ctx, &zamokpb.AcquireRequest{
			Session: s.session, Secret: s.secret, AckedThrough: s.ticket - 1, Acquire: &zamokpb.Acquire{
				Ticket: s.ticket, WaitFor: s.Int64N(int64(waitMost)),
				Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
			},
		})
		token = granted.GetState().GetToken()
		return err
	})
	var h *check.Hold
	if err == nil && s.trusts() {
		h = s.record.believes(check.Hold{Client: s.host, Ref: ref, Token: token, Items: items})
	}
	s.record.done(op, func(op *check.Op) {
		if h != nil {
			op.Outcome, op.Token = check.OK, token
		} else if err != nil {
			op.Error = err.Error()
		}
	})
	if h != nil {
		s.hold(h)
	}
	s.drop(h)
}

func (s *script) trusts() bool { return !s.clock.Now().Reached(s.until) }

func (s *script) hold(h *check.Hold) {
	for n := s.IntN(10); n > 0 && s.trusts(); n-- {
		s.record.write(s.host, h.Items[0].Name, h.Token, false)
		time.Sleep(holdLook)
	}
	if s.IntN(3) == 0 {
		op := s.record.call(check.Op{Client: s.host, Kind: check.OpCheck, Ref: h.Ref, Items: h.Items, Token: h.Token})
		var answer *zamokpb.CheckResponse
		err := s.call(callMost, func(ctx context.Context, node zamokpb.ZamokClient) (err error) {
			answer, err = node.Check(ctx, &zamokpb.CheckRequest{
				Name: h.Items[0].Name, Token: h.Token, Session: h.Session, Ticket: h.Ticket,
			})
			return err
		})
		s.record.done(op, func(op *check.Op) { op.Held = answer.GetHeld(); readStamp(op, answer.GetStamp(), err) })
	}
}

// drop gives a ticket back, whatever it is, until that is answered.
func (s *script) drop(h *check.Hold) {
	var op *check.Op
	switch {
	case h == nil:
	case s.trusts():
		s.record.believed(h, check.Unlocked, "")
		op = s.record.call(check.Op{Client: s.host, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items})
	default:
		s.record.believed(h, check.Lost, "")
	}
	for until := time.Now().Add(drainMost); time.Now().Before(until); s.think() {
		var why zamokpb.Reason
		err := s.prove(callMost, func(ctx context.Context, node zamokpb.ZamokClient) error {
			gone, err := node.Drop(ctx, &zamokpb.DropRequest{Session: s.session, Secret: s.secret, Ticket: s.ticket})
			why = gone.GetState().GetReason()
			return err
		})
		ended := status.Code(err) == codes.NotFound
		if err != nil && !ended {
			continue
		}
		if ended {
			s.session = 0
		}
		if op != nil {
			s.record.done(op, func(op *check.Op) {
				if op.Outcome = check.OK; ended || why != zamokpb.Reason_REASON_DROPPED {
					op.Outcome = check.Refused
				}
			})
		}
		return
	}
}
