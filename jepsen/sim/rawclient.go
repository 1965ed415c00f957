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
// renewed.
func rawCall[Request, Response any](s *rawClient, within time.Duration,
	method func(zamokpb.ZamokClient, context.Context, *Request, ...grpc.CallOption) (*Response, error), r *Request) (*Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	sent := s.clock.Now()
	answer, err := method(s.nodes[s.IntN(len(s.nodes))], metadata.AppendToOutgoingContext(ctx, "zamok-relay", "1"), r)
	if _, renews := any(r).(interface{ GetSecret() []byte }); renews && err == nil {
		s.localDeadline = sent.Add(clock.FromDuration(rawClientTTL - max(rawClientTTL/20, 200*time.Millisecond)))
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
	op := s.record.recordCall(check.Op{Client: rawClientHost, Kind: check.OpNow})
	answer, err := rawCall(s, callTimeout, zamokpb.ZamokClient.Now, &zamokpb.NowRequest{})
	s.record.recordReturn(op, func(op *check.Op) { finishRead(op, clientStamp(answer.GetStamp()), err) })
	return err == nil
}

func clientStamp(at *zamokpb.Stamp) client.Stamp {
	return client.Stamp{Term: at.GetTerm(), Index: at.GetIndex(), Time: time.Duration(at.GetTime())}
}

// lock acquires a lock, works under it, and gives it back, also if the outcome of the acquisition is unknown.
func (s *rawClient) lock(name string) {
	s.ticket++
	ref, items := check.Ref{Session: s.session, Ticket: s.ticket}, []check.Item{{Name: name, Mode: check.Exclusive}}
	op := s.record.recordCall(check.Op{Client: rawClientHost, Kind: check.OpLock, Ref: ref, Items: items})
	granted, err := rawCall(s, waitMax+callTimeout, zamokpb.ZamokClient.Acquire, &zamokpb.AcquireRequest{
		Session: s.session, Secret: s.secret, AckedThrough: s.ticket - 1, Acquire: &zamokpb.Acquire{
			Ticket: s.ticket, WaitFor: s.Int64N(int64(waitMax)),
			Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
		},
	})
	var h *check.Hold
	if err == nil && s.leaseValid() {
		h = s.record.startHold(check.Hold{Client: rawClientHost, Ref: ref, Token: granted.GetState().GetToken(), Items: items})
	}
	s.record.recordReturn(op, func(op *check.Op) {
		if h != nil {
			op.Outcome, op.Token = check.OK, h.Token
		} else if err != nil {
			op.Error = err.Error()
		}
	})
	if h != nil {
		s.hold(h)
	}
	s.release(h)
}

func (s *rawClient) leaseValid() bool { return !s.clock.Now().Reached(s.localDeadline) }

func (s *rawClient) hold(h *check.Hold) {
	for n := s.IntN(10); n > 0 && s.leaseValid(); n-- {
		s.record.write(rawClientHost, h.Items[0].Name, h.Token, false)
		time.Sleep(lossPollInterval)
	}
	if s.IntN(3) == 0 {
		op := s.record.recordCall(check.Op{Client: rawClientHost, Kind: check.OpCheck, Ref: h.Ref, Items: h.Items, Token: h.Token})
		answer, err := rawCall(s, callTimeout, zamokpb.ZamokClient.Check, &zamokpb.CheckRequest{
			Name: h.Items[0].Name, Token: h.Token, Session: h.Session, Ticket: h.Ticket,
		})
		s.record.recordReturn(op, func(op *check.Op) {
			op.Held = answer.GetHeld()
			finishRead(op, clientStamp(answer.GetStamp()), err)
		})
	}
}

// release gives the ticket back, granted (h) or not, until that is answered.
func (s *rawClient) release(h *check.Hold) {
	var op *check.Op
	switch {
	case h == nil:
	case s.leaseValid():
		s.record.endHold(h, check.Unlocked, "")
		op = s.record.recordCall(check.Op{Client: rawClientHost, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items})
	default:
		s.record.endHold(h, check.Lost, "")
	}
	for until := time.Now().Add(drainMax); time.Now().Before(until); s.think() {
		dropped, err := rawCall(s, callTimeout, zamokpb.ZamokClient.Drop,
			&zamokpb.DropRequest{Session: s.session, Secret: s.secret, Ticket: s.ticket})
		ended := status.Code(err) == codes.NotFound
		if err != nil && !ended {
			continue
		}
		if ended {
			s.session = 0
		}
		if op != nil {
			s.record.recordReturn(op, func(op *check.Op) {
				if op.Outcome = check.OK; ended || dropped.GetState().GetReason() != zamokpb.Reason_REASON_DROPPED {
					op.Outcome = check.Refused
				}
			})
		}
		return
	}
}
