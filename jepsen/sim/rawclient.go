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
	rawClientHost = "s1"
	// rawClientTTL is such that a script seldom has to renew.
	rawClientTTL = 10 * time.Second
	// rawClientOpsMax bounds what it does in one session.
	rawClientOpsMax = 8
)

// rawClient is a program without package client: each call is one of its own, made to any node, which passes it on
// to the one that leads.
type rawClient struct {
	*fullStack
	*rand.Rand
	host  string
	clock *Clock
	stack *Stack
	nodes []zamokpb.ZamokClient
	conns []*grpc.ClientConn

	session       uint64 // 0 = none
	secret        []byte
	ticket        uint64
	localDeadline clock.Instant // by what was answered its session lives until then at least
}

// runRawClient runs one until the load is over. Its last call must succeed.
func (w *fullStack) runRawClient(host string) (end func()) {
	s := &rawClient{
		fullStack: w, Rand: w.Random("script on " + host), host: host,
		clock: newClock(w.rateOf(host)), stack: w.Network.NewStack(host),
	}
	again := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}
	for _, n := range w.InitialMembers() {
		conn, err := grpc.NewClient("passthrough:///"+n.Host+":"+clientPort,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(s.stack.Dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
		if err != nil {
			w.Fatal(err)
		}
		s.nodes, s.conns = append(s.nodes, zamokpb.NewZamokClient(conn)), append(s.conns, conn)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for w.ending.Err() == nil {
			s.runSession()
			s.think()
		}
		for until := time.Now().Add(drainMax); !s.now() && time.Now().Before(until); {
			time.Sleep(thinkTimeMax)
		}
		for _, conn := range s.conns {
			_ = conn.Close()
		}
		s.stack.CloseAll()
	}()
	return func() { <-over }
}

// call makes one call to any node.
func (s *rawClient) call(most time.Duration, do func(context.Context, zamokpb.ZamokClient) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return do(metadata.AppendToOutgoingContext(ctx, "zamok-relay", "1"), s.nodes[s.IntN(len(s.nodes))])
}

// confirmedCall makes a call whose answer proves that the session was heard.
func (s *rawClient) confirmedCall(most time.Duration, do func(context.Context, zamokpb.ZamokClient) error) error {
	sent := s.clock.Now()
	err := s.call(most, do)
	if err == nil {
		s.localDeadline = sent.Add(clock.FromDuration(rawClientTTL - max(rawClientTTL/20, 200*time.Millisecond)))
	}
	return err
}

func (s *rawClient) think() { time.Sleep(time.Duration(s.Int64N(int64(thinkTimeMax)))) }

// runSession is the life of one session.
func (s *rawClient) runSession() {
	s.secret, s.ticket, s.session = fmt.Appendf(nil, "%016x", s.Uint64())[:16], 0, 0
	settings := &zamokpb.SessionSettings{Ttl: int64(rawClientTTL), Label: s.host}
	for s.session == 0 && s.ending.Err() == nil {
		_ = s.confirmedCall(callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) error {
			opened, err := node.OpenSession(ctx, &zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings})
			s.session = opened.GetSession()
			return err
		})
		s.think()
	}
	for range 1 + s.IntN(rawClientOpsMax) {
		if s.session == 0 || s.ending.Err() != nil {
			break
		}
		switch s.IntN(8) {
		case 0:
			s.now()
		case 1:
			_ = s.confirmedCall(callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) error {
				_, err := node.RenewSession(ctx, &zamokpb.RenewSessionRequest{Session: s.session, Secret: s.secret})
				return err
			})
		default:
			s.lock(fmt.Sprint("m", s.IntN(mutexes)))
		}
		s.think()
	}
	if s.session != 0 { // if that does not arrive, its ttl ends it
		_ = s.call(callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) error {
			_, err := node.CloseSession(ctx, &zamokpb.CloseSessionRequest{Session: s.session, Secret: s.secret})
			return err
		})
	}
}

func (s *rawClient) now() bool {
	op := s.record.recordCall(check.Op{Client: s.host, Kind: check.OpNow})
	var at *zamokpb.Stamp
	err := s.call(callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) error {
		answer, err := node.Now(ctx, &zamokpb.NowRequest{})
		at = answer.GetStamp()
		return err
	})
	s.record.recordReturn(op, func(op *check.Op) { finishStampRead(op, at, err) })
	return err == nil
}

func finishStampRead(op *check.Op, at *zamokpb.Stamp, err error) {
	finishRead(op, client.Stamp{Term: at.GetTerm(), Index: at.GetIndex(), Time: time.Duration(at.GetTime())}, err)
}

// lock asks for a lock, works under it, and gives it back. What it does not know is nothing to it: it drops.
func (s *rawClient) lock(name string) {
	s.ticket++
	ref, items := check.Ref{Session: s.session, Ticket: s.ticket}, []check.Item{{Name: name, Mode: check.Exclusive}}
	op := s.record.recordCall(check.Op{Client: s.host, Kind: check.OpLock, Ref: ref, Items: items})
	var token uint64
	err := s.confirmedCall(waitMax+callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) error {
		granted, err := node.Acquire(ctx, &zamokpb.AcquireRequest{
			Session: s.session, Secret: s.secret, AckedThrough: s.ticket - 1, Acquire: &zamokpb.Acquire{
				Ticket: s.ticket, WaitFor: s.Int64N(int64(waitMax)),
				Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
			},
		})
		token = granted.GetState().GetToken()
		return err
	})
	var h *check.Hold
	if err == nil && s.leaseValid() {
		h = s.record.startHold(check.Hold{Client: s.host, Ref: ref, Token: token, Items: items})
	}
	s.record.recordReturn(op, func(op *check.Op) {
		if h != nil {
			op.Outcome, op.Token = check.OK, token
		} else if err != nil {
			op.Error = err.Error()
		}
	})
	if h != nil {
		s.holdLock(h)
	}
	s.release(h)
}

func (s *rawClient) leaseValid() bool { return !s.clock.Now().Reached(s.localDeadline) }

func (s *rawClient) holdLock(h *check.Hold) {
	for n := s.IntN(10); n > 0 && s.leaseValid(); n-- {
		s.record.write(s.host, h.Items[0].Name, h.Token, false)
		time.Sleep(lossPollInterval)
	}
	if s.IntN(3) == 0 {
		op := s.record.recordCall(check.Op{Client: s.host, Kind: check.OpCheck, Ref: h.Ref, Items: h.Items, Token: h.Token})
		var answer *zamokpb.CheckResponse
		err := s.call(callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) (err error) {
			answer, err = node.Check(ctx, &zamokpb.CheckRequest{
				Name: h.Items[0].Name, Token: h.Token, Session: h.Session, Ticket: h.Ticket,
			})
			return err
		})
		s.record.recordReturn(op, func(op *check.Op) { op.Held = answer.GetHeld(); finishStampRead(op, answer.GetStamp(), err) })
	}
}

// release gives a ticket back, whatever it is, until that is answered.
func (s *rawClient) release(h *check.Hold) {
	var op *check.Op
	switch {
	case h == nil:
	case s.leaseValid():
		s.record.endHold(h, check.Unlocked, "")
		op = s.record.recordCall(check.Op{Client: s.host, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items})
	default:
		s.record.endHold(h, check.Lost, "")
	}
	for until := time.Now().Add(drainMax); time.Now().Before(until); s.think() {
		var why zamokpb.Reason
		err := s.confirmedCall(callTimeout, func(ctx context.Context, node zamokpb.ZamokClient) error {
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
			s.record.recordReturn(op, func(op *check.Op) {
				if op.Outcome = check.OK; ended || why != zamokpb.Reason_REASON_DROPPED {
					op.Outcome = check.Refused
				}
			})
		}
		return
	}
}
