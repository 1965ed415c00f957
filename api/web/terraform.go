package web

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// The HTTP backend of Terraform and OpenTofu locks its state by LOCK and UNLOCK, with a description
// of the lock as the body of both: lock_address and unlock_address are
// /v1/terraform/lock?name=NAME. Nothing renews such a lock, so it is a reservation: it lives for
// its ttl.
//
// The description is the metadata of the ticket, so that who is refused is shown the holder's. The
// secret of the session derives from the name and the description's ID: a repeated LOCK finds its
// lock, and UNLOCK needs the ID, which everyone who is refused is shown. That is the protocol of
// Terraform: it protects from mistakes, not from people.
//
// Terraform authenticates with Basic only, so the password is the token here, and nowhere else. The
// user name is ignored: the token has its identity.

// terraformRequest is the query of lock_address and unlock_address.
type terraformRequest struct {
	Name string        `json:"name" doc:"the lock of the state"`
	TTL  view.Duration `json:"ttl,omitempty" doc:"how long the lock lives if nothing unlocks it; default 1h, at most the cluster's longest ttl"`
	Wait *patience     `json:"wait,omitempty" doc:"how long LOCK may wait; absent: it does not"`
}

const terraformTTL = view.Duration(time.Hour)

// lockInfo is what is read of a description.
type lockInfo struct {
	ID   string `json:"ID"`
	Who  string `json:"Who"`
	Info string `json:"Info"`
}

func (h *handler) terraformRoute(method, summary string,
	f func(context.Context, *terraformRequest, []byte, lockInfo) ([]byte, error)) route {
	return route{
		method: method, path: "/v1/terraform/lock", summary: summary,
		request: reflect.TypeFor[terraformRequest](),
		serve: func(w http.ResponseWriter, r *http.Request) error {
			request, info := new(terraformRequest), lockInfo{}
			body, err := body(w, r)
			if err != nil {
				return err
			}
			// a recorder in a test has none
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
			if err := readQuery(r.URL.RawQuery, request); err != nil {
				return err
			}
			if len(body) > 0 {
				if err := json.Unmarshal(body, &info); err != nil || info.ID == "" {
					return invalid("body", "is not the description of a lock, which has an ID")
				}
			}
			other, err := f(withPassword(r), request, body, info)
			if isCode(err, zamokpb.Code_CODE_UNAUTHENTICATED) {
				w.Header().Add("WWW-Authenticate", `Basic realm="zamok"`)
			}
			switch {
			case other != nil:
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusLocked)
				// the connection has ended if that fails
				_, _ = io.WriteString(w, visible.JSON(string(other)))
				return nil
			case err != nil:
				return err
			}
			reply(w, http.StatusOK, none{})
			return nil
		},
	}
}

// withPassword is the context of the calls of a request, with the password of Basic as the token.
func withPassword(r *http.Request) context.Context {
	from := arrivalOf(r.Context())
	if _, password, basic := r.BasicAuth(); basic && len(from.Tokens) == 1 {
		from.Tokens = []string{"Bearer " + password}
	}
	return withArrival(r.Context(), from)
}

// terraformSecret is the secret of the session of a lock.
func terraformSecret(name, id string) secret {
	sum := sha256.Sum256([]byte("zamok terraform\x00" + name + "\x00" + id))
	return sum[:secretBytes]
}

// terraformLock takes the lock, or returns the description of the one that is held.
func (h *handler) terraformLock(ctx context.Context, r *terraformRequest, body []byte,
	info lockInfo) (holder []byte, err error) {
	if info.ID == "" {
		return nil, invalid("body", "is empty: it is the description of the lock, which has an ID")
	}
	if r.TTL == 0 {
		r.TTL = terraformTTL
	}
	s := terraformSecret(r.Name, info.ID)
	acquire := &zamokpb.Acquire{Ticket: ownTicket,
		Items: []*zamokpb.Item{view.Item{Name: r.Name}.Wire()}, Meta: body}
	if r.Wait != nil {
		acquire.Wait = int64(*r.Wait)
	}
	for range onceTries {
		_, err = h.requestOnce(ctx,
			&zamokpb.AcquireRequest{Secret: s, Acquire: acquire,
				Settings: settings(r.TTL, 0, info.Who, "")})
		if !isCode(err, zamokpb.Code_CODE_NOT_ACQUIRED) {
			return nil, err
		}
		var session uint64
		if holder, session, err = h.terraformHolder(ctx, r.Name); err != nil || session != 0 {
			break // or it is free again
		}
	}
	return holder, err
}

// terraformHolder is the description of the lock that is held, and its session. What another kind
// of client holds is described by what is known of it. A session of 0: it is not held.
func (h *handler) terraformHolder(ctx context.Context,
	name string) (description []byte, session uint64, err error) {
	shown, err := h.showLock(ctx, &lockRequest{Name: name, Limit: 1})
	if err != nil {
		return nil, 0, err
	}
	// behind a waiter, or after a loss
	holder, info := view.Ticket{Meta: "free, or closed to this request"}, lockInfo{}
	if len(shown.Holding) > 0 {
		holder = shown.Holding[0]
	}
	if json.Unmarshal([]byte(holder.Meta), &info) == nil && info.ID != "" {
		return []byte(holder.Meta), uint64(holder.Session), nil
	}
	who := holder.Label
	if who == "" {
		who = holder.Identity
	}
	description, err = json.Marshal(
		lockInfo{ID: fmt.Sprintf("session %d", holder.Session), Who: who, Info: holder.Meta})
	return description, uint64(holder.Session), err
}

// terraformUnlock releases the lock, or returns the description of the one that is held by another
// ID. An empty body, as force-unlock sends, means whatever Terraform or OpenTofu holds.
func (h *handler) terraformUnlock(ctx context.Context, r *terraformRequest, _ []byte,
	info lockInfo) (holder []byte, err error) {
	holder, session, err := h.terraformHolder(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	if session == 0 {
		return nil, wire.Errorf(zamokpb.Code_CODE_NO_SESSION,
			"not done: the lock %q is not held: its ttl has passed, or it was unlocked before; "+
				"if you held it, another may have changed the state since", r.Name)
	}
	if info.ID == "" {
		if err := json.Unmarshal(holder, &info); err != nil {
			return nil, err
		}
	}
	_, err = h.closeSession(ctx,
		&held{Session: view.Number(session), Secret: terraformSecret(r.Name, info.ID)})
	if isCode(err, zamokpb.Code_CODE_WRONG_SECRET) {
		return holder, nil
	}
	return nil, err
}
