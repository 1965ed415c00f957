package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"zamok/api/zamokpb"
	"zamok/client/call"
)

// Reservation is a lock that outlives the process which acquired it. It has a session of its own,
// with a long TTL, that no client renews by itself. Any process that has this value can renew or
// release it: store it as JSON.
//
// The client watches no deadline of a reservation and announces no loss, and an operator can end
// it. Storage that matters compares the token, or calls Check.
type Reservation struct {
	// TTL, Items, Label and Meta say what is reserved. They do not change after the first Reserve.
	// TTL is from 2 s to the longest ttl of the cluster.
	TTL   time.Duration `json:"ttl"`
	Items []Item        `json:"items"`
	Label string        `json:"label,omitempty"` // of the session; see Config
	Meta  []byte        `json:"meta,omitempty"`

	// Secret is 16 bytes that prove ownership: keep it private. NewReservation draws it. Reserve
	// draws another one when the session that it opened has ended.
	Secret []byte `json:"secret"`
	// Cluster is the id of the cluster; "" = no session was opened yet.
	Cluster string `json:"cluster,omitempty"`
	// Session and Ticket identify the acquisition; 0 = nothing is held or requested.
	Session uint64 `json:"session,string,omitempty"`
	Ticket  uint64 `json:"ticket,string,omitempty"`
	// Token is the token of the grant; 0 = none is known.
	Token Token `json:"token,string,omitempty"`
}

// NewReservation makes a reservation with a random secret. Nothing is held before Reserve.
func NewReservation(ttl time.Duration, items ...Item) *Reservation {
	r := &Reservation{TTL: ttl, Items: items}
	r.begin()
	return r
}

// begin resets r to a reservation without a session. It draws a secret, since one secret opens one
// session only.
func (r *Reservation) begin() {
	r.Session, r.Ticket, r.Secret = 0, 0, make([]byte, 16)
	_, _ = rand.Read(r.Secret) // it never fails
}

// Format prints a reservation without its secret.
func (r Reservation) Format(s fmt.State, verb rune) {
	fmt.Fprintf(s, fmt.FormatString(s, verb), r.withoutSecret())
}

// LogValue prints a reservation in a log without its secret.
func (r Reservation) LogValue() slog.Value { return slog.AnyValue(r.withoutSecret()) }

func (r Reservation) withoutSecret() any {
	type plain Reservation // which has no methods
	r.Secret = nil
	return plain(r)
}

// Reserve waits in line for the locks of a reservation, as LockAll does. If the reservation holds
// them already, Reserve renews them. It returns the time at which the lease ends, as estimated by
// this machine's clock: later than the true end by no more than the clocks differ, and without the
// time for which the cluster has no leader.
//
// Reserve calls save before it sends a request that could make r hold something, and after the
// grant, so that another process can continue from the saved value. It is safe to repeat Reserve
// after any error or a crash: it continues or returns the same acquisition. After an error nothing
// is held if r.Session is 0. Otherwise the locks may be held, or granted later: repeat Reserve, or
// call ReleaseReservation. ErrLost means that the reservation was granted and has ended.
func (c *Client) Reserve(ctx context.Context, r *Reservation,
	save func() error) (until time.Time, err error) {
	return c.reserve(ctx, r, -1, save)
}

// TryReserve is Reserve without a wait: if others hold the locks, its error is a *NotAcquiredError.
// RequestTimeout bounds it.
func (c *Client) TryReserve(ctx context.Context, r *Reservation,
	save func() error) (until time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	return c.reserve(ctx, r, 0, save)
}

func (c *Client) reserve(ctx context.Context, r *Reservation, wait int64,
	save func() error) (until time.Time, err error) {
	if err := (&request{items: r.Items, meta: r.Meta}).check(); err != nil {
		return until, err
	}
	if r.TTL < TTLMin {
		return until, invalid("TTL", "%v, at least %v", r.TTL, TTLMin)
	}
	if err := c.checkCluster(r); err != nil {
		return until, err
	}
	if r.Token == 0 {
		if err := c.acquireReserved(ctx, r, wait, save); err != nil {
			return until, c.abandon(ctx, r, err)
		}
	}
	return c.RenewReservation(ctx, r) // its lease begins with the grant, not with the wait
}

// acquireReserved returns nil once a grant is known and saved.
func (c *Client) acquireReserved(ctx context.Context, r *Reservation, wait int64,
	save func() error) error {
	if err := save(); err != nil {
		return err
	}
	for retry := (backoff{}); ; retry.wait(ctx) {
		if r.Session == 0 {
			request := &zamokpb.OpenSessionRequest{Secret: r.Secret,
				Settings: &zamokpb.SessionSettings{Ttl: int64(r.TTL), Label: r.Label}}
			opened, _, err := call.Leader(ctx, c.Calls(), call.Repeats, call.Node.OpenSession,
				request)
			switch {
			case detailsOf(err).GetCode() == zamokpb.Code_CODE_NO_SESSION: // it has ended
				r.begin()
				if err := save(); err != nil {
					return err
				}
				continue
			case err != nil:
				return err
			}
			r.Session, r.Ticket = opened.GetSession(), 1
			r.Cluster, _ = c.nodes.ownCluster()
			if err := save(); err != nil {
				return err
			}
		}
		answer, err := c.awaitReserved(ctx, r, wait)
		switch code := detailsOf(err).GetCode(); {
		case err == nil:
			r.Token = Token(answer.GetState().GetToken())
			return save()
		case code == zamokpb.Code_CODE_NOT_ACQUIRED && wait == 0:
			return &NotAcquiredError{Names: names(r.Items),
				Holders: each(detailsOf(err).GetBlockers(), blocker)}
		// Its node dropped it when the connection broke, or it is of an earlier TryReserve, whose
		// end was not confirmed.
		case code == zamokpb.Code_CODE_TICKET_ENDED, code == zamokpb.Code_CODE_NOT_ACQUIRED:
			r.Ticket++
		case code == zamokpb.Code_CODE_NO_SESSION:
			// it ended while it held nothing that this client knew of
			r.Session = 0
		default:
			return err
		}
		if err := save(); err != nil {
			return err
		}
	}
}

// awaitReserved requests the ticket of a reservation until it is granted or declined, and renews
// the session meanwhile.
func (c *Client) awaitReserved(ctx context.Context, r *Reservation,
	wait int64) (*zamokpb.AcquireResponse, error) {
	renewing, stop := context.WithCancel(ctx)
	renewed := make(chan struct{}) // closed when the goroutine below has ended
	go func() {
		defer close(renewed)
		tick := time.NewTicker(r.TTL / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C: // if the session has ended, Acquire returns that
				_, _, _ = call.Leader(renewing, c.Calls(), call.Repeats, call.Node.RenewSession,
					r.renewal())
			case <-renewing.Done():
				return
			}
		}
	}()
	defer func() { stop(); <-renewed }()
	req := &request{items: r.Items, meta: r.Meta}
	wire := req.wire(r.Ticket)
	wire.Wait = wait
	answer, _, err := call.Leader(ctx, c.Calls(), call.Waits, call.Node.Acquire,
		&zamokpb.AcquireRequest{Session: r.Session, Secret: r.Secret, Acquire: wire,
			AckedThrough: r.Ticket - 1})
	return answer, err
}

func (r *Reservation) renewal() *zamokpb.RenewSessionRequest {
	return &zamokpb.RenewSessionRequest{Session: r.Session, Secret: r.Secret}
}

// abandon ends an acquisition that was declined, or whose wait has ended, so that nothing is
// granted to it later. If no node answered it leaves the acquisition as it is, to be repeated.
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
	request := &zamokpb.CloseSessionRequest{Session: r.Session, Secret: r.Secret}
	_, _, err := call.Leader(ctx, c.Calls(), call.Repeats, call.Node.CloseSession, request)
	return err
}

// RenewReservation renews the lease of a granted reservation for one TTL from now. It returns the
// end of the lease, as Reserve does, or ErrLost if the reservation has ended.
func (c *Client) RenewReservation(ctx context.Context,
	r *Reservation) (until time.Time, err error) {
	if r.Token == 0 || len(r.Items) == 0 {
		return until, invalid("Token", "the reservation was not granted: call Reserve")
	}
	if err := c.checkCluster(r); err != nil {
		return until, err
	}
	sent, renewal := time.Now(), r.renewal()
	renewal.Ticket = r.Ticket // the session may outlive it
	renewed, _, err := call.Leader(ctx, c.Calls(), call.Repeats, call.Node.RenewSession, renewal)
	if err != nil {
		return until, r.lost(err)
	}
	return sent.Add(time.Duration(renewed.GetTtl())), nil
}

// ReleaseReservation releases the locks of a reservation. It is safe to repeat it after an error.
// Nil means that the cluster holds nothing for the reservation any more, and that the locks were
// held until now if they were granted at all. After ErrLost nothing is held either, but others may
// have held the locks before this call.
func (c *Client) ReleaseReservation(ctx context.Context, r *Reservation) error {
	if r.Session == 0 {
		return nil
	}
	if err := c.checkCluster(r); err != nil {
		return err
	}
	// Drop returns the reason of the end, CloseSession does not.
	dropped, _, err := call.Leader(ctx, c.Calls(), call.Repeats, call.Node.Drop,
		&zamokpb.DropRequest{Session: r.Session, Secret: r.Secret, Ticket: r.Ticket})
	switch {
	case errors.Is(err, ErrSessionExpired) && r.Token == 0:
		return nil
	case err != nil:
		return r.lost(err)
	}
	if err := c.closeReserved(ctx, r); err != nil && !errors.Is(err, ErrSessionExpired) {
		c.log.Warn("zamok: the reservation is released; its session, which holds nothing, lasts "+
			"until its ttl is over", "session", r.Session, "error", err)
	}
	ended := dropped.GetState()
	if r.Token != 0 && (ended.GetReason() != zamokpb.Reason_REASON_DROPPED ||
		Token(ended.GetToken()) != r.Token) {
		return &Error{Kind: ErrLost, Outcome: Done, Reason: reasonName(ended.GetReason()),
			cause: reasonError(ended.GetReason(), "")}
	}
	return nil
}

// lost converts an error of a call about a granted reservation.
func (r *Reservation) lost(err error) error {
	switch {
	case errors.Is(err, ErrSessionExpired):
		return &Error{Kind: ErrLost, Outcome: Done, cause: err}
	case errors.Is(err, ErrNotAcquired):
		return &Error{Kind: ErrLost, Outcome: Done,
			Message: "its grant was ended, by an operator or by a release"}
	}
	return err
}

// checkCluster returns an error if the reservation is of another cluster than this client. A client
// that does not know its cluster yet belongs to that of the reservation from now on.
func (c *Client) checkCluster(r *Reservation) error {
	if r.Cluster == "" {
		return nil
	}
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	if c.nodes.cluster == "" {
		c.nodes.cluster, c.nodes.clusterSource = r.Cluster, "from the reservation"
	}
	if c.nodes.cluster != r.Cluster {
		return &Error{Kind: ErrWrongCluster,
			Message: fmt.Sprintf("the reservation was made in cluster %s, and this client "+
				"belongs to cluster %s (%s)",
				r.Cluster, c.nodes.cluster, c.nodes.clusterSource)}
	}
	return nil
}
