package web

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// handClock is a clock that a test moves.
type handClock struct{ at atomic.Int64 }

func (c *handClock) Now() clock.Instant {
	at := uint64(c.at.Load())
	return clock.DecodeInstant(at, at)
}

func (c *handClock) pass(d time.Duration) { c.at.Add(int64(d)) }

// W2: a call is repeated for retryFor from when it fails for want of a leader. How long it waited
// before does not count.
func TestCallsAreRepeatedForAWhile(t *testing.T) {
	hand, calls, late := &handClock{}, 0, zamokpb.Code_CODE_NOT_LEADER
	h := &handler{clock: hand, config: fakeConfig(nil)}
	err := h.retry(t.Context(), func() error {
		if calls++; calls == 1 {
			hand.pass(time.Minute)
			return wire.StreamEnded(late, "the ticket waits on")
		}
		hand.pass(time.Second)
		if calls == 4 {
			return nil
		}
		return wire.Errorf(late, "no leader is known")
	})
	require.NoError(t, err)
	assert.Equal(t, 4, calls)

	calls = 0
	err = h.retry(t.Context(), func() error {
		calls++
		hand.pass(time.Second)
		if calls == 1 {
			return wire.Errorf(zamokpb.Code_CODE_UNKNOWN, "the answer was lost")
		}
		return wire.Errorf(late, "not done: no leader is known")
	})
	require.Error(t, err)
	assert.Regexp(t, "^it was sent before, and may have taken effect then; .*no leader is known",
		infoOf(err).Message, "not only what the last one says")
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(err).Outcome,
		"the first call may have taken effect")
	assert.InDelta(t, 6, calls, 1)
}

// W1: that no leader is there to carry out an acquisition leaves its outcome unknown, since a proxy
// may have sent it before.
func TestAnAcquisitionWithoutALeaderIsInDoubt(t *testing.T) {
	hand := &handClock{}
	h := &handler{clock: hand, config: fakeConfig(nil)}
	err := h.retry(t.Context(), func() error {
		hand.pass(2 * time.Second)
		return wire.OfRetransmission(
			wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "no leader is known"), false)
	})
	assert.True(t, isCode(err, zamokpb.Code_CODE_NOT_LEADER), "%v", err)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(err).Outcome)
}

// W1: after a call that may have taken effect, the outcome is not that of its repetition, which was
// refused unread.
func TestARefusedRepetitionLeavesTheDoubt(t *testing.T) {
	for _, refusal := range []zamokpb.Code{zamokpb.Code_CODE_OVERLOADED, zamokpb.Code_CODE_DISK_LOW,
		zamokpb.Code_CODE_LIMIT_EXCEEDED} {
		hand, calls := &handClock{}, 0
		h := &handler{clock: hand, config: fakeConfig(nil)}
		err := h.retry(t.Context(), func() error {
			hand.pass(time.Second)
			if calls++; calls == 1 {
				return wire.Errorf(zamokpb.Code_CODE_UNKNOWN, "the answer was lost")
			}
			return wire.Errorf(refusal, "not done")
		})
		require.Error(t, err)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(err).Outcome)

		calls = 0
		err = h.retry(t.Context(), func() error {
			calls++
			return wire.Errorf(refusal, "not done")
		})
		assert.True(t, isCode(err, refusal), "%v", err)
		assert.Equal(t, 1, calls, "nothing is in doubt: the client may decide")
	}
}

// serverEvents are the events of a path until its end.
func serverEvents(t *testing.T, conn *fakeConn, path string) string {
	t.Helper()
	server := httptest.NewServer(New(fakeConfig(conn)))
	defer server.Close()
	answer, err := server.Client().Get(server.URL + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

// W2: a downgrade is repeated while it is not done, and not after a call that may have done it:
// "nothing to downgrade" would be its success. So is a removal, since a leader that is removed
// hands over first.
func TestSomeCallsAreRepeatedWhileTheyAreNotDone(t *testing.T) {
	for path, request := range map[string]struct {
		body   string
		answer proto.Message
	}{
		"/v1/downgrade": {`{"session":"1","secret":"` + strings.Repeat("a", 32) + `"}`,
			&zamokpb.DowngradeResponse{
				State: &zamokpb.TicketState{State: zamokpb.State_STATE_GRANTED}}},
		"/v1/admin/remove": {`{"id":"n1"}`, &zamokpb.RemoveResponse{}},
	} {
		for outcome, want := range map[zamokpb.Outcome]int{zamokpb.Outcome_OUTCOME_NOT_DONE: 200,
			zamokpb.Outcome_OUTCOME_UNKNOWN: 503} {
			calls := 0
			server := httptest.NewServer(New(fakeConfig(&fakeConn{
				invoke: func(context.Context, string, any) (proto.Message, error) {
					if calls++; calls == 1 {
						e := wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "no leader is known")
						e.Info.Outcome = outcome
						return nil, e
					}
					return request.answer, nil
				},
			})))
			answer, err := server.Client().Post(server.URL+path, "application/json",
				strings.NewReader(request.body))
			require.NoError(t, err)
			assert.NoError(t, answer.Body.Close())
			server.Close()
			assert.Equal(t, want, answer.StatusCode, "%s %v", path, outcome)
			assert.Equal(t, map[int]int{200: 2, 503: 1}[want], calls, "%s %v", path, outcome)
		}
	}
}

// W5: a held lock whose session ended while the hold had no stream is lost, and nothing else is
// said of it.
func TestASessionThatEndsBetweenStreams(t *testing.T) {
	var streams atomic.Int32
	conn := &fakeConn{
		stream: func(s *fakeStream) error {
			switch streams.Add(1) {
			case 1:
				s.opens()
				s.sends(granting())
				return wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER, "leadership ended")
			case 2: // many streams attach to a new leader
				return wire.Errorf(zamokpb.Code_CODE_OVERLOADED, "attach anew")
			}
			return wire.Errorf(zamokpb.Code_CODE_NO_SESSION, "it has ended")
		},
		invoke: func(_ context.Context, method string, _ any) (proto.Message, error) {
			assert.Fail(t, "the session has ended already", method)
			return nil, io.EOF
		},
	}
	text := serverEvents(t, conn, "/v1/hold?name=a")
	assert.Regexp(t, `^event: granted
data: {"name":\["a"\],"cluster":"00ff","token":"9","session":"7","ttl":"15s","valid_for":"[0-9.]+s"}

event: lost
data: {"reason":"session_ended"}

$`, text)
	assert.EqualValues(t, 3, streams.Load())
}

// W2: an Acquire that was answered by the end of leadership is sent again on the next stream.
func TestAHoldContinuesAtTheNextLeader(t *testing.T) {
	for _, code := range []zamokpb.Code{zamokpb.Code_CODE_NOT_LEADER, zamokpb.Code_CODE_UNKNOWN,
		zamokpb.Code_CODE_STOPPING} {
		var streams atomic.Int32
		conn := &fakeConn{
			stream: func(s *fakeStream) error {
				s.opens()
				if streams.Add(1) == 1 {
					s.sends(wire.Answer(zamokpb.Command_COMMAND_ACQUIRE,
						fsm.TicketState{Ticket: ownTicket}, wire.Errorf(code, "leadership ended")))
				} else {
					s.sends(granting(),
						&zamokpb.ServerMessage{
							Message: &zamokpb.ServerMessage_SessionEnded{
								SessionEnded: &zamokpb.SessionEnded{
									Reason: zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR,
								}}})
				}
				<-s.ctx.Done()
				return s.ctx.Err()
			},
			invoke: func(context.Context, string, any) (proto.Message, error) {
				return &zamokpb.CloseSessionResponse{}, nil
			},
		}
		text := serverEvents(t, conn, "/v1/hold?name=a")
		assert.Contains(t, text, "event: granted\n", code)
		assert.EqualValues(t, 2, streams.Load())
	}
}

// slowTimers is the clock of a machine whose timers are a tenth slow.
type slowTimers struct{ clock.Source }

func (s slowTimers) Now() clock.Instant {
	since := s.Source.Now().Since(clock.Instant{})
	return clock.Instant{}.Add(since * clock.BendDivisor / (clock.BendDivisor - 1))
}

// W5: a held lock is lost in time, also if the next leader takes nothing of a stream and timers are
// slow.
func TestAHoldWhoseLeaderTakesNothing(t *testing.T) {
	synctest.Test(t, testAHoldWhoseLeaderTakesNothing)
}

func testAHoldWhoseLeaderTakesNothing(t *testing.T) {
	const ttl = 20 * time.Second
	var streams atomic.Int32
	conn := &fakeConn{
		stream: func(s *fakeStream) error {
			if streams.Add(1) == 1 {
				s.opensFor(ttl)
				s.sends(granting())
				return wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER, "leadership ended")
			}
			select {
			case <-s.ctx.Done():
			case <-time.After(5 * ttl):
			}
			return wire.Errorf(zamokpb.Code_CODE_UNKNOWN, "no answer")
		},
		invoke: func(context.Context, string, any) (proto.Message, error) {
			return &zamokpb.CloseSessionResponse{}, nil
		},
	}
	h := &handler{clock: slowTimers{clock.Runtime()}, config: fakeConfig(conn)}
	dial, end := serveOnPipes(t,
		&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, h.holdRoute().serve(w, r))
		})})
	defer end()
	client := dial()
	_, err := io.WriteString(client,
		"GET /v1/hold?name=a&ttl=20s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	text, err := io.ReadAll(client)
	require.NoError(t, err)
	lost := h.clock.Now().Since(clock.Instant{})
	assert.Less(t, lost, 19*clock.Second+clock.Millisecond)
	assert.Greater(t, lost, 19*clock.Second-lastTry)
	assert.Contains(t, string(text), `data: {"reason":"unconfirmed"}`)
}

// W5: a client that reads nothing is cut, and its session is closed.
func TestAHoldThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan time.Time, 1)
		conn := &fakeConn{
			stream: func(s *fakeStream) error {
				s.opens()
				for s.sends(&zamokpb.ServerMessage{
					Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
						Name: strings.Repeat("n", 500), Ahead: 1,
					}}}) {
				}
				return s.ctx.Err()
			},
			invoke: func(_ context.Context, method string, _ any) (proto.Message, error) {
				assert.Equal(t, "CloseSession", method)
				closed <- time.Now()
				return &zamokpb.CloseSessionResponse{}, nil
			},
		}
		dial, end := serveOnPipes(t, &http.Server{Handler: New(fakeConfig(conn))})
		defer end()
		client, began := dial(), time.Now()
		_, err := io.WriteString(client, "GET /v1/hold?name=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(client), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, answer.StatusCode)
		assert.Equal(t, writeWait, (<-closed).Sub(began))
		require.NoError(t, client.Close())
	})
}

// W3: an answer whose connection has broken meanwhile is not left to the ttl: its session is
// closed.
func TestAGrantThatCanNotBeAnswered(t *testing.T) {
	ctx, cut := context.WithCancel(t.Context())
	closed := false
	conn := &fakeConn{invoke: func(_ context.Context, method string, request any) (proto.Message,
		error) {
		if method == "Acquire" {
			cut() // while the answer is on its way
			return &zamokpb.AcquireResponse{Session: 7, Ttl: ttlDefault.Nanoseconds(),
				State: &zamokpb.TicketState{
					Ticket: ownTicket, State: zamokpb.State_STATE_GRANTED, Token: 9,
				}}, nil
		}
		closed = request.(*zamokpb.CloseSessionRequest).Session == 7
		return &zamokpb.CloseSessionResponse{}, nil
	}}
	request := httptest.NewRequest("POST", "http://localhost/v1/acquire",
		strings.NewReader(`{"name":"a"}`))
	New(fakeConfig(conn)).ServeHTTP(httptest.NewRecorder(), request.WithContext(ctx))
	assert.True(t, closed)
}

// A client counts valid_for from before it sent the request. However slow its clock, within 5 %,
// that ends before the session does and before its max_hold does: in the answer of the acquisition,
// and of each renewal.
func TestValidForEndsInTime(t *testing.T) {
	now := int64(time.Hour) // cluster time
	ticket := &zamokpb.TicketState{Ticket: ownTicket, State: zamokpb.State_STATE_GRANTED, Token: 9}
	conn := &fakeConn{invoke: func(_ context.Context, method string, request any) (proto.Message,
		error) {
		if method == "Acquire" {
			ticket.HoldUntil = now + request.(*zamokpb.AcquireRequest).Acquire.MaxHold
			return &zamokpb.AcquireResponse{Session: 7, Ttl: ttlDefault.Nanoseconds(), Time: now,
				State: ticket}, nil
		}
		assert.EqualValues(t, ownTicket, request.(*zamokpb.RenewSessionRequest).Ticket)
		return &zamokpb.RenewSessionResponse{Ttl: ttlDefault.Nanoseconds(), Time: now,
			HoldUntil: ticket.HoldUntil}, nil
	}}
	handler := New(fakeConfig(conn))
	send := func(path, body string) (answer string, certain time.Duration) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost"+path,
			strings.NewReader(body)))
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		var fields struct {
			ValidFor *string `json:"valid_for"`
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &fields))
		require.NotNil(t, fields.ValidFor, "it is always there")
		certain, err := time.ParseDuration(*fields.ValidFor)
		require.NoError(t, err)
		return w.Body.String(), certain
	}
	slow := func(certain time.Duration) time.Duration {
		return time.Duration(float64(certain) / 0.95)
	}
	for _, maxHold := range []time.Duration{30 * time.Second, 300 * time.Millisecond,
		100 * time.Millisecond} {
		grant, certain := send("/v1/acquire", `{"name":"a","max_hold":"`+maxHold.String()+`"}`)
		for left := maxHold; left > -time.Second; left = time.Duration(ticket.HoldUntil - now) {
			assert.LessOrEqual(t, slow(certain), min(max(left, 0), time.Duration(ttlDefault)),
				"%v of %v are left", left, maxHold)
			now += int64(70 * time.Millisecond)
			_, certain = send("/v1/renew", grant)
		}
	}
}

// W1: a release that finds no session is not done, whatever became of a call before: if that did
// it, the services say so.
func TestNoReleaseIsDoneFromIgnorance(t *testing.T) {
	for _, outcome := range []zamokpb.Outcome{zamokpb.Outcome_OUTCOME_NOT_DONE,
		zamokpb.Outcome_OUTCOME_UNKNOWN} {
		calls := 0
		conn := &fakeConn{invoke: func(context.Context, string, any) (proto.Message, error) {
			if calls++; calls == 1 {
				e := wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "no leader is known")
				e.Info.Outcome = outcome
				return nil, e
			}
			return nil, wire.Errorf(zamokpb.Code_CODE_NO_SESSION, "not done: it has ended")
		}}
		answer := httptest.NewRecorder()
		New(fakeConfig(conn)).ServeHTTP(answer,
			httptest.NewRequest("POST", "http://localhost/v1/release",
				strings.NewReader(
					`{"session":"7","secret":"5d41402abc4b2a76b9719d911017c592","token":"9"}`)))
		assert.Equal(t, http.StatusGone, answer.Code, outcome)
		assert.Equal(t, 2, calls)
	}
}

// A refusal names a field as the request has it, and its message is passed on as it is.
func TestFieldsAreNamedAsTheyWereSent(t *testing.T) {
	refusal := wire.Invalid("ttl", "is too short")
	conn := &fakeConn{invoke: func(context.Context, string, any) (proto.Message, error) {
		return nil, refusal
	}}
	message := func(body string) string {
		answer := httptest.NewRecorder()
		New(fakeConfig(conn)).ServeHTTP(answer,
			httptest.NewRequest("POST", "http://localhost/v1/acquire", strings.NewReader(body)))
		assert.Equal(t, http.StatusBadRequest, answer.Code)
		var fields errorBody
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &fields))
		return fields.Message
	}
	assert.Regexp(t, "^metadata: is not known here; known are: .*meta",
		message(`{"name":"a","metadata":"b"}`))
	assert.Regexp(t, "^ttl: is too short", message(`{"name":"a"}`))
	refusal.Info.Message = "an earlier transmission of this request may be done: " +
		refusal.Info.Message
	assert.Equal(t, refusal.Info.Message, message(`{"name":"a"}`))
}

// A release that does not know how the lock ended leaves open whether it was held until then.
func TestAReleaseClaimsOnlyWhatIsKnown(t *testing.T) {
	conn := &fakeConn{invoke: func(context.Context, string, any) (proto.Message, error) {
		return &zamokpb.CloseSessionResponse{}, nil
	}}
	for body, want := range map[string]string{
		`{"session":"7","secret":"5d41402abc4b2a76b9719d911017c592","token":"9"}`: `{"state":"ended"}`,
		`{"session":"7","secret":"5d41402abc4b2a76b9719d911017c592"}`:             `{"state":"ended","reason":"closed"}`,
	} {
		answer := httptest.NewRecorder()
		New(fakeConfig(conn)).ServeHTTP(answer,
			httptest.NewRequest("POST", "http://localhost/v1/release", strings.NewReader(body)))
		assert.JSONEq(t, want, answer.Body.String())
	}
}
