package sim

import (
	"context"
	"errors"
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
	"zamok/jepsen/workload"
)

const (
	rawClientHost = "s1"
	// rawClientTTL is such that a session seldom has to be renewed.
	rawClientTTL = 10 * time.Second
	// rawClientOpsMax bounds what the raw client does in one session.
	rawClientOpsMax = 8
)

// rawClient is a program without package client: it makes each call to any node, which relays it to the leader.
type rawClient struct {
	*Load
	*rand.Rand
	clock *Clock
	stack *Stack
	nodes []zamokpb.ZamokClient

	session       uint64 // 0 = none
	secret        []byte
	ticket        uint64
	localDeadline clock.Instant // its session lives until then at least
}

// runRawClient runs one until the load ends. Its last call must succeed.
func (l *Load) runRawClient() (end func()) {
	s := &rawClient{
		Load: l, Rand: l.Random("raw client"),
		clock: newClock(l.rateOf(rawClientHost)), stack: l.Network.NewStack(rawClientHost),
	}
	again := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}
	var conns []*grpc.ClientConn
	for _, n := range l.InitialMembers() {
		conn, err := grpc.NewClient("passthrough:///"+n.Host+":"+clientPort,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(s.stack.Dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
		if err != nil {
			l.Fatal(err)
		}
		s.nodes, conns = append(s.nodes, zamokpb.NewZamokClient(conn)), append(conns, conn)
	}
	return background(func(context.Context) {
		for l.ending.Err() == nil {
			s.runSession()
			s.think()
		}
		for until := time.Now().Add(drainMax); !s.now() && time.Now().Before(until); {
			time.Sleep(thinkTimeMax)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		s.stack.CloseAll()
	})
}

// rawCall makes one call to any node. The answer to a request with the session's secret confirms that the session was
// renewed. An error leaves the outcome unknown.
func rawCall[Request, Response any](s *rawClient, within time.Duration,
	method func(zamokpb.ZamokClient, context.Context, *Request, ...grpc.CallOption) (*Response, error), r *Request) (*Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	sent := s.clock.Now()
	answer, err := method(s.nodes[s.IntN(len(s.nodes))], metadata.AppendToOutgoingContext(ctx, "zamok-relay", "1"), r)
	if _, renews := any(r).(interface{ GetSecret() []byte }); renews && err == nil {
		s.localDeadline = sent.Add(clock.FromDuration(rawClientTTL - check.ClockMargin(rawClientTTL)))
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", client.ErrUnavailable, err)
	}
	return answer, err
}

func (s *rawClient) think() { time.Sleep(time.Duration(s.Int64N(int64(thinkTimeMax)))) }

// runSession opens a session, works, and closes it.
func (s *rawClient) runSession() {
	s.secret, s.ticket, s.session = fmt.Appendf(nil, "%016x", s.Uint64())[:16], 0, 0
	settings := &zamokpb.SessionSettings{Ttl: int64(rawClientTTL), Label: rawClientHost}
	for s.session == 0 && s.ending.Err() == nil {
		opened, _ := rawCall(s, callTimeout, zamokpb.ZamokClient.OpenSession,
			&zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings})
		s.session = opened.GetSession()
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
			_, _ = rawCall(s, callTimeout, zamokpb.ZamokClient.RenewSession,
				&zamokpb.RenewSessionRequest{Session: s.session, Secret: s.secret})
		default:
			s.lock(fmt.Sprint("m", s.IntN(mutexes)))
		}
		s.think()
	}
	if s.session != 0 { // if that does not arrive, its ttl ends it
		_, _ = rawCall(s, callTimeout, zamokpb.ZamokClient.CloseSession,
			&zamokpb.CloseSessionRequest{Session: s.session, Secret: s.secret})
	}
}

func (s *rawClient) now() bool {
	return s.record.Call(check.Op{Client: rawClientHost, Kind: check.OpNow}, func(op *check.Op) error {
		answer, err := rawCall(s, callTimeout, zamokpb.ZamokClient.Now, &zamokpb.NowRequest{})
		rawStamp(op, answer.GetStamp())
		return err
	}) == nil
}

func rawStamp(op *check.Op, at *zamokpb.Stamp) {
	op.Term, op.Index, op.Time = at.GetTerm(), at.GetIndex(), time.Duration(at.GetTime())
}

// lock acquires a lock, works under it, and gives it back, also if the outcome of the acquisition is unknown.
func (s *rawClient) lock(name string) {
	s.ticket++
	ref, items := check.Ref{Session: s.session, Ticket: s.ticket}, []check.Item{{Name: name, Mode: check.Exclusive}}
	var h *workload.Hold
	op := check.Op{Client: rawClientHost, Kind: check.OpLock, Ref: ref, Items: items}
	_ = s.record.Call(op, func(op *check.Op) error {
		granted, err := rawCall(s, waitMax+callTimeout, zamokpb.ZamokClient.Acquire, &zamokpb.AcquireRequest{
			Session: s.session, Secret: s.secret, AckedThrough: s.ticket - 1, Acquire: &zamokpb.Acquire{
				Ticket: s.ticket, WaitFor: s.Int64N(int64(waitMax)),
				Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
			},
		})
		if err == nil && !s.leaseValid() {
			return fmt.Errorf("answered too late: %w", client.ErrUnavailable)
		}
		if err == nil {
			op.Token = granted.GetState().GetToken()
			h = s.record.StartHold(check.Hold{Client: rawClientHost, Ref: ref, Token: op.Token, Items: items})
		}
		return err
	})
	if h != nil {
		s.hold(h)
	}
	s.release(h)
}

func (s *rawClient) leaseValid() bool { return !s.clock.Now().Reached(s.localDeadline) }

func (s *rawClient) hold(h *workload.Hold) {
	for n := s.IntN(10); n > 0 && s.leaseValid(); n-- {
		s.record.resource.Write(check.Write{Resource: h.Items[0].Name, Client: rawClientHost, Token: h.Token})
		time.Sleep(100 * time.Millisecond)
	}
	if s.IntN(3) == 0 {
		op := check.Op{Client: rawClientHost, Kind: check.OpCheck, Ref: h.Ref, Items: h.Items, Token: h.Token}
		_ = s.record.Call(op, func(op *check.Op) error {
			answer, err := rawCall(s, callTimeout, zamokpb.ZamokClient.Check, &zamokpb.CheckRequest{
				Name: h.Items[0].Name, Token: h.Token, Session: h.Session, Ticket: h.Ticket,
			})
			op.Held = answer.GetHeld()
			rawStamp(op, answer.GetStamp())
			return err
		})
	}
}

// release gives the ticket back, granted (h) or not.
func (s *rawClient) release(h *workload.Hold) {
	switch {
	case h == nil:
		_ = s.drop()
	case s.leaseValid():
		h.Finish(check.Unlocked, "")
		op := check.Op{Client: rawClientHost, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items}
		_ = s.record.Call(op, func(*check.Op) error { return s.drop() })
	default:
		h.Finish(check.Lost, "")
		_ = s.drop()
	}
}

var errNotHeld = errors.New("the ticket had ended otherwise")

// drop gives the ticket back, until that is answered.
func (s *rawClient) drop() (err error) {
	for until := time.Now().Add(drainMax); time.Now().Before(until); s.think() {
		var dropped *zamokpb.DropResponse
		dropped, err = rawCall(s, callTimeout, zamokpb.ZamokClient.Drop,
			&zamokpb.DropRequest{Session: s.session, Secret: s.secret, Ticket: s.ticket})
		switch {
		case status.Code(err) == codes.NotFound:
			s.session = 0
			return errNotHeld
		case err == nil && dropped.GetState().GetReason() != zamokpb.Reason_REASON_DROPPED:
			return errNotHeld
		case err == nil:
			return nil
		}
	}
	return err
}
