package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
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
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/session"
)

// Proposals of a story to one node, without a client and its retries.

const (
	// answerTimeout is how long a story waits for one answer: far longer than a healthy cluster
	// takes.
	answerTimeout = 5 * time.Second
	// opTimeout is how long it waits for an answer that may never come.
	opTimeout = time.Second
	// retryInterval is the time between two attempts.
	retryInterval = 50 * time.Millisecond
)

var (
	// errProcessExited is what a client sees of a process that ended: the end of its connection, no
	// answer.
	errProcessExited = fmt.Errorf("the process ended: %w", raftnode.ErrUnknown)
	errNotRunning    = errors.New("not done: no process runs there")
)

// propose submits something to the process of this node and waits for the answer, the end of the
// process, or ctx. Run checks that there is exactly one answer to each proposal, also if the caller
// has stopped waiting.
func (n *Node) propose(ctx context.Context,
	submit func(*raftnode.Node, raftnode.Done)) (raftnode.Answer, error) {
	p := n.openProcess()
	if p == nil {
		return raftnode.Answer{}, errNotRunning
	}
	type result struct {
		answer raftnode.Answer
		err    error
	}
	results := make(chan result, 2)
	n.sim.unanswered.Add(1)
	submit(p.server.Raft(), func(a raftnode.Answer, err error) {
		n.sim.unanswered.Add(-1)
		results <- result{a, err}
	})
	select {
	case <-p.stopping:
		return raftnode.Answer{}, errProcessExited
	default:
	}
	select {
	case r := <-results:
		return r.answer, r.err
	case <-p.stopping:
		return raftnode.Answer{}, errProcessExited
	case <-ctx.Done():
		return raftnode.Answer{}, fmt.Errorf("%w (%w)", raftnode.ErrUnknown, context.Cause(ctx))
	}
}

// Propose proposes a command at this node.
func (n *Node) Propose(ctx context.Context, c fsm.Command) (raftnode.Answer, error) {
	if acquire, ok := c.(*fsm.Acquire); ok { // it may be granted whatever the answer is
		n.sim.record.put(check.Record{Op: &check.Op{
			Client: "story", Kind: check.OpLock, Items: checkItems(acquire.Items),
			Outcome: check.Unknown,
			Ref:     checkRef(fsm.TicketRef{Session: acquire.Session, Ticket: acquire.Ticket}),
			Call:    n.sim.historyTime(),
		}})
	}
	return n.propose(ctx, func(up *raftnode.Node, done raftnode.Done) { up.Submit(ctx, c, done) })
}

// Renew proposes a renewal at this node.
func (n *Node) Renew(ctx context.Context, id session.ID) (raftnode.Answer, error) {
	return n.propose(ctx, func(up *raftnode.Node, done raftnode.Done) { up.Renew(id, done) })
}

// ReadBarrier waits until this node has confirmed that it leads.
func (n *Node) ReadBarrier(ctx context.Context) (raftnode.Answer, error) {
	return n.propose(ctx, func(up *raftnode.Node, done raftnode.Done) {
		go func() {
			stamp, t, err := up.ReadBarrier(ctx)
			done(raftnode.Answer{Stamp: stamp, Time: t}, err)
		}()
	})
}

// MustPropose proposes a command at this node, and ends the test unless the answer is OK.
func (n *Node) MustPropose(c fsm.Command) raftnode.Answer {
	n.sim.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	a, err := n.Propose(ctx, c)
	if err != nil || a.Result.Code != fsm.OK {
		n.sim.Fatalf("%s: %T: %v, code %d", n.ID, c, err, a.Result.Code)
	}
	return a
}

// OpenSession opens a session.
func (n *Node) OpenSession(secret string, ttl time.Duration) session.ID {
	n.sim.Helper()
	return n.MustPropose(openSession(secret, ttl)).Result.Session
}

// Lock acquires a lock for a session, or begins to wait for it.
func (n *Node) Lock(id session.ID, ticket uint64, name string) raftnode.Answer {
	n.sim.Helper()
	return n.MustPropose(acquireExclusive(id, ticket, name))
}

func openSession(secret string, ttl time.Duration) *fsm.OpenSession {
	c := &fsm.OpenSession{Settings: session.Settings{TTL: clock.FromDuration(ttl)}}
	copy(c.Secret[:], secret)
	return c
}

// acquireExclusive acquires a lock without a wait timeout.
func acquireExclusive(id session.ID, ticket uint64, name string) *fsm.Acquire {
	return &fsm.Acquire{
		Session: id, Ticket: ticket, Wait: fsm.Forever,
		Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
	}
}

// Holder holds or awaits one lock, as ticket 1 of its session, and renews until it dies.
type Holder struct {
	Ref   fsm.TicketRef
	Token uint64 // 0 = it waits

	// Die ends the renewals.
	Die func()

	sim       *Sim
	confirmed atomic.Int64 // when the last answered request was sent
}

// Holder has a new session acquire a lock, or begin to wait for it, and renew.
func (s *Sim) Holder(name, lock string, ttl time.Duration) *Holder {
	s.Helper()
	h := &Holder{sim: s}
	request := func(what string, c fsm.Command) fsm.Result {
		a, err := h.callLeader(s.Within(electionTimeMax),
			func(ctx context.Context, n *Node) (raftnode.Answer, error) {
				return n.Propose(ctx, c)
			})
		if err != nil || a.Result.Code != fsm.OK {
			s.Fatalf("%s can't %s: %v, code %d", name, what, err, a.Result.Code)
		}
		return a.Result
	}
	id := request("open a session", openSession(name, ttl)).Session
	s.record.mu.Lock()
	s.record.addSession(check.Session{Session: uint64(id), Client: name, TTL: ttl})
	s.record.mu.Unlock()
	h.Ref = fsm.TicketRef{Session: id, Ticket: 1}
	h.Token = request("wait for "+lock, acquireExclusive(id, 1, lock)).Token
	h.Die = background(func(ctx context.Context) {
		for ctx.Err() == nil {
			next := time.Now().Add(ttl / 3)
			a, _ := h.callLeader(ctx, func(ctx context.Context, n *Node) (raftnode.Answer, error) {
				return n.Renew(ctx, id)
			})
			if a.Result.Code == fsm.NoSession || !workload.Sleep(ctx, time.Until(next)) {
				return
			}
		}
	})
	s.Cleanup(h.Die)
	return h
}

// callLeader calls the nodes that consider themselves leader, until one answers.
func (h *Holder) callLeader(
	ctx context.Context, call func(context.Context, *Node) (raftnode.Answer, error),
) (raftnode.Answer, error) {
	for {
		for _, n := range h.sim.Leaders() {
			bounded, cancel := context.WithTimeout(ctx, opTimeout)
			sent := h.sim.Elapsed()
			a, err := call(bounded, n)
			cancel()
			if err == nil {
				h.confirmed.Store(int64(sent))
				if a.Result.Code == fsm.OK {
					h.sim.record.put(check.Record{Renewal: &check.Renewal{
						Session: uint64(a.Result.Session), Sent: sent + historyBegin,
						Confirmed: h.sim.historyTime(),
					}})
				}
				return a, nil
			}
		}
		if !workload.Sleep(ctx, retryInterval) {
			return raftnode.Answer{}, context.Cause(ctx)
		}
	}
}

// LastConfirmedSend is when the last answered request was sent.
func (h *Holder) LastConfirmedSend() time.Duration { return time.Duration(h.confirmed.Load()) }

// Ended reports whether its session has ended.
func (h *Holder) Ended() bool {
	_, ended := h.sim.Audit.Ended(h.Ref.Session)
	return ended
}

const (
	rawClientHost = "s1"
	// rawClientTTL is so long that a session seldom needs a renewal.
	rawClientTTL = 10 * time.Second
	// rawClientOpsMax bounds the calls of the raw client in one session.
	rawClientOpsMax = 8
)

// rawClient is a program without package client. It sends each call to a random node, which relays
// it to the leader.
type rawClient struct {
	*Load
	*rand.Rand
	clock *Clock
	stack *Stack
	nodes []zamokpb.ZamokClient

	session       uint64 // 0 = none
	secret        []byte
	ticket        uint64
	localDeadline clock.Instant // until then its session lives
}

// runRawClient runs one until the load ends. Its last call must succeed.
func (l *Load) runRawClient() (end func()) {
	s := &rawClient{
		Load: l, Rand: l.Random("raw client"),
		clock: newClock(l.rateOf(rawClientHost)), stack: l.Network.NewStack(rawClientHost),
	}
	again := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}
	for _, n := range l.InitialMembers() {
		conn, err := grpc.NewClient("passthrough:///"+n.Host+":"+clientPort,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(s.stack.Dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again,
				MinConnectTimeout: time.Second}))
		if err != nil {
			l.Fatal(err)
		}
		l.Cleanup(func() { _ = conn.Close() })
		s.nodes = append(s.nodes, zamokpb.NewZamokClient(conn))
	}
	return background(func(context.Context) {
		for l.ending.Err() == nil {
			s.runSession()
			s.think()
		}
		for until := time.Now().Add(drainMax); !s.now() && time.Now().Before(until); {
			time.Sleep(thinkTimeMax)
		}
		s.stack.CloseAll()
	})
}

// rawCall makes one call to a random node. The answer to a request with the session's secret
// confirms a renewal of the session. After an error the outcome is unknown.
func rawCall[Request, Response any](s *rawClient, within time.Duration,
	method func(zamokpb.ZamokClient, context.Context, *Request, ...grpc.CallOption) (*Response,
		error), r *Request) (*Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	sent := s.clock.Now()
	to := s.IntN(len(s.nodes))
	defer s.rare.watchRelay(s.Sim, s.InitialMembers()[to].Host)()
	answer, err := method(s.nodes[to],
		metadata.AppendToOutgoingContext(ctx, zamokpb.RelayKey, "1"), r)
	if _, renews := any(r).(interface{ GetSecret() []byte }); renews && err == nil {
		s.localDeadline = sent.Add(
			clock.FromDuration(rawClientTTL - check.ClockMargin(rawClientTTL)))
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", client.ErrUnavailable, err)
	}
	return answer, err
}

func (s *rawClient) think() { time.Sleep(workload.UpTo(s.Rand, thinkTimeMax)) }

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
	if s.session != 0 { // if the request is lost, the ttl ends the session
		_, _ = rawCall(s, callTimeout, zamokpb.ZamokClient.CloseSession,
			&zamokpb.CloseSessionRequest{Session: s.session, Secret: s.secret})
	}
}

func (s *rawClient) now() bool {
	return s.record.Call(check.Op{Client: rawClientHost, Kind: check.OpNow},
		func(op *check.Op) error {
			answer, err := rawCall(s, callTimeout, zamokpb.ZamokClient.Now, &zamokpb.NowRequest{})
			rawStamp(op, answer.GetStamp())
			return err
		}) == nil
}

func rawStamp(op *check.Op, at *zamokpb.Stamp) {
	op.Term, op.Index, op.Time = at.GetTerm(), at.GetIndex(), time.Duration(at.GetTime())
}

// lock acquires a lock, writes under it, and drops its ticket, granted or not.
func (s *rawClient) lock(name string) {
	s.ticket++
	op := check.Op{
		Client: rawClientHost, Kind: check.OpLock,
		Ref:   check.Ref{Session: s.session, Ticket: s.ticket},
		Items: []check.Item{{Name: name, Mode: check.Exclusive}},
	}
	var h *workload.Hold
	_ = s.record.Call(op, func(op *check.Op) error {
		granted, err := rawCall(s, waitMax+callTimeout, zamokpb.ZamokClient.Acquire,
			&zamokpb.AcquireRequest{
				Session: s.session, Secret: s.secret, AckedThrough: s.ticket - 1,
				Acquire: &zamokpb.Acquire{
					Ticket: s.ticket, Wait: s.Int64N(int64(waitMax)),
					Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
				},
			})
		if err == nil && !s.leaseValid() {
			return fmt.Errorf("answered too late: %w", client.ErrUnavailable)
		}
		if err == nil {
			op.Token = granted.GetState().GetToken()
			h = s.record.StartHold(check.Hold{Client: rawClientHost, Ref: op.Ref, Token: op.Token,
				Items: op.Items})
		}
		return err
	})
	if h == nil {
		_ = s.drop()
		return
	}
	for n := s.IntN(10); n > 0 && s.leaseValid(); n-- {
		_ = s.record.resource.Write(
			check.Write{Resource: name, Client: rawClientHost, Token: h.Token}, nil)
		time.Sleep(100 * time.Millisecond)
	}
	if s.IntN(3) == 0 {
		s.check(op, h.Token)
	}
	if !s.leaseValid() {
		h.Finish(check.Lost, "")
		_ = s.drop()
		return
	}
	h.Finish(check.Unlocked, "")
	op.Kind = check.OpUnlock
	_ = s.record.Call(op, func(*check.Op) error { return s.drop() })
}

// check checks whether the grant of an acquisition still holds.
func (s *rawClient) check(op check.Op, token uint64) {
	op.Kind, op.Token = check.OpCheck, token
	_ = s.record.Call(op, func(op *check.Op) error {
		// within its lease, after which it is no holder
		left := s.localDeadline.Since(s.clock.Now()).Duration() * 9 / 10
		answer, err := rawCall(s, min(left, callTimeout), zamokpb.ZamokClient.Check,
			&zamokpb.CheckRequest{
				Name: op.Items[0].Name, Token: token, Session: op.Ref.Session,
				Ticket: op.Ref.Ticket,
			})
		op.Held = answer.GetHeld()
		rawStamp(op, answer.GetStamp())
		return err
	})
}

func (s *rawClient) leaseValid() bool { return !s.clock.Now().Reached(s.localDeadline) }

var errNotHeld = errors.New("the ticket had ended before it was dropped")

// drop drops the ticket, and repeats that until it is answered.
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
