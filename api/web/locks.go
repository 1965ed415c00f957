package web

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"zamok/api/view"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// secret is the secret of a session: 32 hexadecimal digits.
type secret []byte

const secretBytes = 16

func newSecret() secret {
	s := make(secret, secretBytes)
	_, _ = rand.Read(s) // never fails
	return s
}

func (secret) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "(secret)") }
func (secret) LogValue() slog.Value       { return slog.StringValue("(secret)") }

func (s secret) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s), nil }

func (s *secret) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != secretBytes {
		// without the text: it may be a secret
		return fmt.Errorf("has not %d hexadecimal digits", 2*secretBytes)
	}
	*s = b
	return nil
}

// acquireRequest is an acquisition: of one lock, or of several at once. With a session it is one of
// its tickets; else it has a session of its own.
type acquireRequest struct {
	view.Item
	Items   []view.Item   `json:"items,omitempty" doc:"several locks at once, all or none, instead of name"`
	Wait    patience      `json:"wait,omitempty" doc:"the longest wait, or \"forever\"; absent: do not wait"`
	Poll    view.Duration `json:"poll,omitempty" doc:"answer after this time at the latest: 202 while it still waits; repeat the request then"`
	MaxHold view.Duration `json:"max_hold,omitempty" doc:"the grant ends after this time, even while its session is alive"`
	Owner   string        `json:"owner,omitempty" doc:"a thread of the client, for deadlock detection"`
	Meta    string        `json:"meta,omitempty" doc:"shown to people, up to 4096 bytes"`

	Session      view.Number `json:"session,omitempty" doc:"an open session; absent: one of its own"`
	Secret       secret      `json:"secret,omitempty" doc:"the secret of the session, also as the header Zamok-Secret"`
	Ticket       view.Number `json:"ticket,omitempty" doc:"with a session: the number of the acquisition, from 1; each acts once"`
	AckedThrough view.Number `json:"acked_through,omitempty" doc:"with a session: no acquisition up to this number is requested again"`

	TTL       view.Duration `json:"ttl,omitempty" doc:"of its own session: how long the lock lives without a renewal; default 15s"`
	LockDelay view.Duration `json:"lock_delay,omitempty" doc:"of its own session: how long the lock stays closed after a loss"`
	Label     string        `json:"label,omitempty" doc:"of its own session: shown to people, up to 256 bytes"`
}

// ttlDefault is the ttl of a session that is opened without one.
const ttlDefault = view.Duration(15 * time.Second)

// acquire converts an acquisition.
func (r *acquireRequest) acquire(ticket uint64) (*zamokpb.Acquire, error) {
	a := &zamokpb.Acquire{
		Ticket: ticket, Wait: int64(r.Wait), MaxHold: r.MaxHold.Nanoseconds(), Owner: r.Owner,
		Meta: []byte(r.Meta),
	}
	switch {
	case len(r.Items) == 0:
		a.Items = []*zamokpb.Item{r.Item.Wire()}
	case r.Item != (view.Item{}):
		return nil, invalid("items", "are given beside a name: give either")
	default:
		a.Items = wire.Each(r.Items, view.Item.Wire)
	}
	return a, nil
}

// held is an acquisition as it stands. It is the body of later requests about it.
type held struct {
	State    string         `json:"state,omitempty" doc:"granted, or waiting"`
	Cluster  string         `json:"cluster,omitempty" doc:"the id of the cluster; sent back, a node of another one refuses the request"`
	Session  view.Number    `json:"session"`
	Secret   secret         `json:"secret,omitempty" doc:"the right to renew and release: keep it private"`
	Ticket   view.Number    `json:"ticket,omitempty" doc:"absent if the session is the lock's own"`
	Token    view.Number    `json:"token,omitempty" doc:"the fencing token: rises with every exclusive grant of a lock"`
	TTL      view.Duration  `json:"ttl,omitempty" doc:"how long the session lives without a renewal"`
	TTLMin   view.Duration  `json:"ttl_min,omitempty" doc:"a notice, if ttl is shorter: most failovers end the session; use one and a half times this"`
	ValidFor *view.Duration `json:"valid_for,omitempty" doc:"how long the lock is certain, its max_hold included, counted from the moment at which you sent this request"`
	Deadline view.Duration  `json:"deadline,omitempty" doc:"cluster time (see /v1/now) at which the session ends unless it is renewed"`
}

// ticket is the number of the acquisition; that of a session of its own is not in the answer that
// has its token. 0: this is a session, not an acquisition.
func (a *held) ticket() uint64 {
	if a.Ticket == 0 && a.Token != 0 {
		return ownTicket
	}
	return uint64(a.Ticket)
}

// confirm fills in what a confirmation of a session, and of a ticket whose maximum hold ends at
// holdUntil, says. 0: it has none.
func (a *held) confirm(ttl, ttlMin, now, holdUntil int64) {
	left := ttl
	if holdUntil > 0 {
		left = min(left, holdUntil-now)
	}
	a.TTL, a.TTLMin, a.ValidFor, a.Deadline = view.Duration(ttl), noticeOf(ttl, ttlMin),
		new(validFor(left)), view.Duration(now+ttl)
}

// noticeOf is the ttl below which most failovers end a session, for a session that has a shorter
// one; else 0.
func noticeOf(ttl, ttlMin int64) view.Duration {
	if ttl < ttlMin {
		return view.Duration(ttlMin)
	}
	return 0
}

// acquireRoute is not like the others: an acquisition that still waits is answered 202, and a key
// is a header.
func (h *handler) acquireRoute() route {
	return route{
		method: "POST", path: "/v1/acquire",
		summary: "Acquire locks, with a session of their own or in an open one.",
		request: reflect.TypeFor[acquireRequest](), response: reflect.TypeFor[held](),
		serve: func(w http.ResponseWriter, r *http.Request) error {
			request := new(acquireRequest)
			if err := receive(w, r, request); err != nil {
				return err
			}
			if request.Session == 0 {
				return h.acquireOnce(w, r, request)
			}
			if len(r.Header.Values(keyHeader)) > 0 {
				return invalid(keyHeader,
					"is for an acquisition with a session of its own; in a session the ticket "+
						"has that part")
			}
			answer, err := h.acquireIn(r.Context(), request)
			if err != nil {
				return err
			}
			replyHeld(w, answer)
			return nil
		},
	}
}

// replyHeld answers with an acquisition: 202 while it waits.
func replyHeld(w http.ResponseWriter, answer *held) {
	code := http.StatusOK
	if answer.State == "waiting" {
		code = http.StatusAccepted
	}
	reply(w, code, answer)
}

// acquireIn acquires in an open session.
func (h *handler) acquireIn(ctx context.Context, r *acquireRequest) (*held, error) {
	if r.TTL != 0 || r.LockDelay != 0 || r.Label != "" {
		return nil, invalid("session",
			"is given beside ttl, lock_delay or label, which belong to a session of its own")
	}
	acquire, err := r.acquire(uint64(r.Ticket))
	if err != nil {
		return nil, err
	}
	return h.request(ctx, &zamokpb.AcquireRequest{
		Session: uint64(r.Session), Secret: r.Secret, Acquire: acquire,
		AckedThrough: uint64(r.AckedThrough), Poll: r.Poll.Nanoseconds(),
	})
}

// request requests a ticket, again if there is another leader meanwhile.
func (h *handler) request(ctx context.Context, request *zamokpb.AcquireRequest) (*held, error) {
	response, err := retried[*zamokpb.AcquireResponse](ctx, h, request)
	if err != nil {
		return nil, err
	}
	answer := &held{
		State: wire.JSONName(response.State.State), Cluster: h.config.Gate.Cluster(),
		Session: view.Number(response.Session), Ticket: view.Number(request.Acquire.Ticket),
		Token: view.Number(response.State.Token),
	}
	answer.confirm(response.Ttl, response.TtlMin, response.Time, response.State.HoldUntil)
	return answer, nil
}

// renew renews the session of an acquisition, which must not have ended.
func (h *handler) renew(ctx context.Context, r *held) (*held, error) {
	response, err := retried[*zamokpb.RenewSessionResponse](forCluster(ctx, r.Cluster), h,
		&zamokpb.RenewSessionRequest{Session: uint64(r.Session), Secret: r.Secret,
			Ticket: r.ticket()})
	if err != nil {
		return nil, err
	}
	answer := &held{Cluster: h.config.Gate.Cluster(), Session: r.Session}
	answer.confirm(response.Ttl, response.TtlMin, response.Time, response.HoldUntil)
	return answer, nil
}

// release drops a ticket, or closes a session that is a lock's own.
func (h *handler) release(ctx context.Context, r *held) (*view.Ended, error) {
	if r.Ticket == 0 {
		return h.closeSession(ctx, r)
	}
	response, err := retried[*zamokpb.DropResponse](forCluster(ctx, r.Cluster), h,
		&zamokpb.DropRequest{Session: uint64(r.Session), Secret: r.Secret,
			Ticket: uint64(r.Ticket)})
	if err != nil {
		return nil, err
	}
	s := response.State
	return &view.Ended{State: wire.JSONName(s.State), Reason: wire.JSONName(s.Reason),
		Token: view.Number(s.Token)}, nil
}

// sessionRef is a session and the right to it.
type sessionRef struct {
	Session view.Number `json:"session"`
	Secret  secret      `json:"secret"`
}

func (h *handler) deleteSession(ctx context.Context, r *sessionRef) (*view.Ended, error) {
	return h.closeSession(ctx, &held{Session: r.Session, Secret: r.Secret})
}

// closeSession closes a session.
func (h *handler) closeSession(ctx context.Context, r *held) (*view.Ended, error) {
	response, err := retried[*zamokpb.CloseSessionResponse](forCluster(ctx, r.Cluster), h,
		&zamokpb.CloseSessionRequest{Session: uint64(r.Session), Secret: r.Secret,
			Ticket: r.ticket()})
	answer := &view.Ended{State: "ended"}
	switch s := response.GetState(); {
	case s != nil:
		answer.Reason, answer.Token = wire.JSONName(s.Reason), view.Number(s.Token)
	case r.ticket() == 0: // of a ticket the reason would not be known: it may have ended before
		answer.Reason = wire.JSONName(zamokpb.Reason_REASON_CLOSED)
	}
	return answer, err
}

// downgrade makes exclusive locks shared. It is repeated only while it is not done: of a
// repetition, "nothing to downgrade" may be the success of the first.
func (h *handler) downgrade(ctx context.Context, r *held) (*held, error) {
	var response *zamokpb.DowngradeResponse
	err := h.retryNotDone(ctx, func() (err error) {
		response, err = do[*zamokpb.DowngradeResponse](forCluster(ctx, r.Cluster), h,
			&zamokpb.DowngradeRequest{
				Session: uint64(r.Session), Secret: r.Secret, Ticket: uint64(ticketOf(r.Ticket)),
			})
		return err
	})
	if err != nil {
		return nil, err
	}
	s := response.State
	return &held{State: wire.JSONName(s.State), Cluster: h.config.Gate.Cluster(),
		Session: r.Session, Ticket: r.Ticket, Token: view.Number(s.Token)}, nil
}

// ownTicket is the ticket of a session that is a lock's own.
const ownTicket = 1

// ticketOf is a ticket, or that of a session that is a lock's own.
func ticketOf(ticket view.Number) view.Number {
	if ticket == 0 {
		return ownTicket
	}
	return ticket
}

// sessionRequest opens a session.
type sessionRequest struct {
	TTL       view.Duration `json:"ttl,omitempty" doc:"how long it lives without a renewal; default 15s"`
	LockDelay view.Duration `json:"lock_delay,omitempty" doc:"how long its locks stay closed after a loss, up to 60s"`
	Label     string        `json:"label,omitempty" doc:"shown to people, up to 256 bytes"`
	Meta      string        `json:"meta,omitempty" doc:"shown to people, up to 4096 bytes"`
	Secret    secret        `json:"secret,omitempty" doc:"32 random hexadecimal digits; the same ones find the session again. Absent: drawn here"`
}

func settings(ttl, lockDelay view.Duration, label, meta string) *zamokpb.SessionSettings {
	if ttl == 0 {
		ttl = ttlDefault
	}
	return &zamokpb.SessionSettings{Ttl: ttl.Nanoseconds(), LockDelay: lockDelay.Nanoseconds(),
		Label: label, Meta: []byte(meta)}
}

// openSession opens a session.
func (h *handler) openSession(ctx context.Context, r *sessionRequest) (*held, error) {
	if r.Secret == nil {
		r.Secret = newSecret()
	}
	response, err := retried[*zamokpb.OpenSessionResponse](ctx, h, &zamokpb.OpenSessionRequest{
		Secret: r.Secret, Settings: settings(r.TTL, r.LockDelay, r.Label, r.Meta),
	})
	if err != nil {
		return nil, err
	}
	answer := &held{Cluster: h.config.Gate.Cluster(), Session: view.Number(response.Session),
		Secret: r.Secret}
	answer.confirm(response.Ttl, response.TtlMin, response.Time, 0)
	return answer, nil
}
