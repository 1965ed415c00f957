package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"zamok/api/zamokpb"
)

// Reservation is a lock that outlives the process which acquired it. It belongs to a session of its own, with a long
// TTL, that no client renews by itself. A process that has this value renews or releases it: store it as JSON.
//
// A reservation is a promise of the cluster alone. No local deadline is watched, nothing reports its loss, and an
// operator can end it: storage that matters compares the token, or asks Check.
type Reservation struct {
	// What is reserved. It does not change after the first Reserve. TTL is from 2 s to the longest ttl of the cluster.
	TTL      time.Duration `json:"ttl"`
	Items    []Item        `json:"items"`
	Label    string        `json:"label,omitempty"` // of the session; see Config
	Metadata []byte        `json:"metadata,omitempty"`

	// Secret is 16 bytes that prove ownership: keep it private. NewReservation draws it, and Reserve draws another one if what this
	// one has reserved is over.
	Secret []byte `json:"secret"`
	// Cluster is the id of the cluster, "" until a session was opened there.
	Cluster string `json:"cluster,omitempty"`
	// Session and Ticket name the acquisition; 0 = nothing is held, nor asked for.
	Session uint64 `json:"session,string,omitempty"`
	Ticket  uint64 `json:"ticket,string,omitempty"`
	// Token is that of the grant; 0 = none is known.
	Token Token `json:"token,string,omitempty"`
}

// NewReservation makes a reservation with a random secret. Nothing is held before Reserve.
func NewReservation(ttl time.Duration, items ...Item) *Reservation {
	r := &Reservation{TTL: ttl, Items: items}
	r.begin()
	return r
}

// begin makes r one that has opened no session. A secret opens only one.
func (r *Reservation) begin() {
	r.Session, r.Ticket, r.Secret = 0, 0, make([]byte, 16)
	_, _ = rand.Read(r.Secret) // it never fails
}

// Format prints a reservation without its secret.
func (r Reservation) Format(s fmt.State, verb rune) {
	fmt.Fprintf(s, fmt.FormatString(s, verb), r.withoutSecret())
}

// LogValue is a reservation in a log, without its secret.
func (r Reservation) LogValue() slog.Value { return slog.AnyValue(r.withoutSecret()) }

func (r Reservation) withoutSecret() any {
	type plain Reservation // which has no methods
	r.Secret = nil
	return plain(r)
}

// Reserve waits in line for the locks of a reservation, as LockAll does, and returns when its lease ends: an estimate of
// this machine's clock, never too late by more than clocks differ, that does not count the time for which the cluster has
// no leader. If it holds them already, it renews them.
//
// Reserve calls save before it sends what could make r hold something, and after the grant, so that another process can
// continue with what was saved. To repeat it, after any error or a crash, is safe: it continues or returns the same
// acquisition. After an error nothing is held if r.Session is 0; otherwise it may be, or may come to be: repeat
// Reserve, or call ReleaseReservation. ErrLost means that the reservation was granted and has ended.
func (c *Client) Reserve(ctx context.Context, r *Reservation, save func() error) (until time.Time, err error) {
	return c.reserve(ctx, r, -1, save)
}

// TryReserve is Reserve without a wait: if others hold the locks, its error is a *NotAcquiredError. RequestTimeout
// bounds it.
func (c *Client) TryReserve(ctx context.Context, r *Reservation, save func() error) (until time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	return c.reserve(ctx, r, 0, save)
}

func (c *Client) reserve(ctx context.Context, r *Reservation, waitFor int64, save func() error) (until time.Time, err error) {
	if err := (&request{items: r.Items, metadata: r.Metadata}).check(); err != nil {
		return until, err
	}
	if r.TTL < TTLMin {
		return until, invalid("TTL", "%v, at least %v", r.TTL, TTLMin)
	}
	if err := c.meantFor(r); err != nil {
		return until, err
	}
	if r.Token == 0 {
		if err := c.acquireReserved(ctx, r, waitFor, save); err != nil {
			return until, c.abandon(ctx, r, err)
		}
	}
	return c.RenewReservation(ctx, r) // its lease begins with the grant, not with the wait
}

// acquireReserved returns nil once a grant is known and saved.
func (c *Client) acquireReserved(ctx context.Context, r *Reservation, waitFor int64, save func() error) error {
	if err := save(); err != nil {
		return err
	}
	var refused *zamokpb.ErrorInfo
	open := func(one *node, ctx context.Context, q *zamokpb.OpenSessionRequest, opts ...grpc.CallOption) (*zamokpb.OpenSessionResponse, error) {
		answer, err := one.OpenSession(ctx, q, opts...)
		refused = infoOf(err)
		return answer, err
	}
	for between := (pause{}); ; between.wait(ctx) {
		if r.Session == 0 {
			refused = nil
			opened, _, err := call(ctx, c, repeats, open, &zamokpb.OpenSessionRequest{Secret: r.Secret,
				Settings: &zamokpb.SessionSettings{Ttl: int64(r.TTL), Label: r.Label}})
			switch {
			case refused.GetCode() == zamokpb.Code_CODE_NO_SESSION: // what it has opened is over
				r.begin()
				if err := save(); err != nil {
					return err
				}
				continue
			case err != nil:
				return err
			}
			r.Session, r.Ticket = opened.GetSession(), 1
			r.Cluster, _ = c.nodes.own()
			if err := save(); err != nil {
				return err
			}
		}
		answer, info, err := c.awaitReserved(ctx, r, waitFor)
		switch code := info.GetCode(); {
		case err == nil:
			r.Token = Token(answer.GetState().GetToken())
			return save()
		case code == zamokpb.Code_CODE_NOT_ACQUIRED && waitFor == 0:
			return &NotAcquiredError{Names: names(r.Items), Holders: each(info.GetBlockers(), blocker)}
		case code == zamokpb.Code_CODE_TICKET_ENDED, // the node dropped it when the connection broke
			code == zamokpb.Code_CODE_NOT_ACQUIRED: // an earlier TryReserve, whose end was not confirmed
			r.Ticket++
		case code == zamokpb.Code_CODE_NO_SESSION: // it ended while it held nothing that this client knew of
			r.Session = 0
		default:
			return err
		}
		if err := save(); err != nil {
			return err
		}
	}
}

// awaitReserved requests the ticket of a reservation until it is granted or refused, and renews the session meanwhile.
// The refusal of a node is returned with the error.
func (c *Client) awaitReserved(ctx context.Context, r *Reservation, waitFor int64) (a *zamokpb.AcquireResponse, refusal *zamokpb.ErrorInfo, err error) {
	renewing, stop := context.WithCancel(ctx)
	renewed := make(chan struct{}) // closed when the goroutine below has ended
	go func() {
		defer close(renewed)
		tick := time.NewTicker(r.TTL / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _, _ = call(renewing, c, repeats, (*node).RenewSession, r.renewal()) // Acquire returns the session's end
			case <-renewing.Done():
				return
			}
		}
	}()
	defer func() { stop(); <-renewed }()
	ask := &request{items: r.Items, metadata: r.Metadata}
	wire := ask.wire(r.Ticket)
	wire.WaitFor = waitFor
	acquire := func(one *node, ctx context.Context, q *zamokpb.AcquireRequest, opts ...grpc.CallOption) (*zamokpb.AcquireResponse, error) {
		answer, err := one.Acquire(ctx, q, opts...)
		refusal = infoOf(err)
		return answer, err
	}
	a, _, err = call(ctx, c, waits, acquire,
		&zamokpb.AcquireRequest{Session: r.Session, Secret: r.Secret, Acquire: wire, AckedThrough: r.Ticket - 1})
	return a, refusal, err
}

func (r *Reservation) renewal() *zamokpb.RenewSessionRequest {
	return &zamokpb.RenewSessionRequest{Session: r.Session, Secret: r.Secret}
}

// abandon ends an acquisition that was refused, or whose wait is over, so that nothing is granted to it later. One that
// no node could answer is left as it is, to be repeated.
func (c *Client) abandon(ctx context.Context, r *Reservation, err error) error {
	switch {
	case r.Session == 0 || r.Token != 0:
		return err
	case ctx.Err() != nil:
		err = &NotAcquiredError{Names: names(r.Items), cause: contextEnd(ctx)}
	case errors.Is(err, ErrUnavailable):
		return withOutcome(err, Unknown)
	}
	closing := c.closeReserved(context.WithoutCancel(ctx), r)
	if closing != nil && !errors.Is(closing, ErrSessionExpired) {
		return &UnconfirmedError{Names: names(r.Items), Until: time.Now().Add(r.TTL),
			cause: fmt.Errorf("%w: %w", err, withOutcome(closing, Unknown))}
	}
	r.begin()
	return withOutcome(err, NotDone)
}

func (c *Client) closeReserved(ctx context.Context, r *Reservation) error {
	_, _, err := call(ctx, c, repeats, (*node).CloseSession, &zamokpb.CloseSessionRequest{Session: r.Session, Secret: r.Secret})
	return err
}

// RenewReservation renews the lease of a reservation that was granted: it ends one TTL from now. It returns that time,
// as Reserve does, and ErrLost if the reservation has ended.
func (c *Client) RenewReservation(ctx context.Context, r *Reservation) (until time.Time, err error) {
	if r.Token == 0 || len(r.Items) == 0 {
		return until, invalid("Token", "the reservation was not granted: call Reserve")
	}
	if err := c.meantFor(r); err != nil {
		return until, err
	}
	sent, renewal := time.Now(), r.renewal()
	renewal.Ticket = r.Ticket // the session may outlive it
	renewed, _, err := call(ctx, c, repeats, (*node).RenewSession, renewal)
	if err != nil {
		return until, r.lost(err)
	}
	return sent.Add(time.Duration(renewed.GetTtl())), nil
}

// ReleaseReservation releases what a reservation holds. To repeat it after an error is safe. Nil means that the cluster
// holds nothing for it any more, and that it was held until now, if it was granted at all. After ErrLost nothing is held
// either, and others may have held the locks before this call.
func (c *Client) ReleaseReservation(ctx context.Context, r *Reservation) error {
	if r.Session == 0 {
		return nil
	}
	if err := c.meantFor(r); err != nil {
		return err
	}
	// The end of a ticket has a reason, that of a session not.
	dropped, _, err := call(ctx, c, repeats, (*node).Drop,
		&zamokpb.DropRequest{Session: r.Session, Secret: r.Secret, Ticket: r.Ticket})
	switch {
	case errors.Is(err, ErrSessionExpired) && r.Token == 0:
		return nil
	case err != nil:
		return r.lost(err)
	}
	if err := c.closeReserved(ctx, r); err != nil && !errors.Is(err, ErrSessionExpired) {
		c.log.Warn("zamok: the reservation is released; its session, which holds nothing, lasts until its ttl is over", "session", r.Session, "error", err)
	}
	ended := dropped.GetState()
	if r.Token != 0 && (ended.GetReason() != zamokpb.Reason_REASON_DROPPED || Token(ended.GetToken()) != r.Token) {
		return &Error{Kind: ErrLost, Outcome: Done, cause: reasonError(ended.GetReason(), "")}
	}
	return nil
}

// lost is an error of a call about a reservation that was granted.
func (r *Reservation) lost(err error) error {
	switch {
	case errors.Is(err, ErrSessionExpired):
		return &Error{Kind: ErrLost, Outcome: Done, cause: err}
	case errors.Is(err, ErrNotAcquired):
		return &Error{Kind: ErrLost, Outcome: Done, Message: "its grant was ended, by an operator or by a release"}
	}
	return err
}

// meantFor makes a client that does not know its cluster yet belong to that of the reservation, and refuses one of
// another.
func (c *Client) meantFor(r *Reservation) error {
	if r.Cluster == "" {
		return nil
	}
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	if c.nodes.cluster == "" {
		c.nodes.cluster, c.nodes.learnt = r.Cluster, "the reservation's"
	}
	if c.nodes.cluster != r.Cluster {
		return &Error{Kind: ErrWrongCluster, Message: fmt.Sprintf("the reservation was made in cluster %s, and this client belongs to cluster %s (%s)",
			r.Cluster, c.nodes.cluster, c.nodes.learnt)}
	}
	return nil
}
