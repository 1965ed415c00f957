package web

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/view"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// What operators do is not repeated here: an outcome that is unknown is the operator's to look at.

type forceRequest struct {
	Name   string      `json:"name"`
	Token  view.Number `json:"token" doc:"the token that you saw: grants up to it end"`
	Reason string      `json:"reason,omitempty" doc:"shown to the holders"`
}

func (h *handler) forceRelease(ctx context.Context, r *forceRequest) (*view.Forced, error) {
	response, err := do[*zamokpb.ForceReleaseResponse](ctx, h,
		&zamokpb.ForceReleaseRequest{Name: r.Name, Token: uint64(r.Token), Reason: r.Reason})
	if err != nil {
		return nil, err
	}
	return view.NewForced(response), nil
}

type expireRequest struct {
	Session view.Number `json:"session"`
	Reason  string      `json:"reason,omitempty" doc:"shown to the client"`
}

func (h *handler) expire(ctx context.Context, r *expireRequest) (*view.Ended, error) {
	_, err := do[*zamokpb.ExpireSessionResponse](ctx, h,
		&zamokpb.ExpireSessionRequest{Session: uint64(r.Session), Reason: r.Reason})
	return &view.Ended{State: "ended",
		Reason: wire.JSONName(zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR)}, err
}

type transferRequest struct {
	To string `json:"to,omitempty" doc:"the id of a node; absent: the best one"`
}

func (h *handler) transfer(ctx context.Context, r *transferRequest) (*none, error) {
	_, err := do[*zamokpb.TransferResponse](ctx, h, &zamokpb.TransferRequest{To: r.To})
	return &none{}, err
}

type joinRequest struct {
	ID   string `json:"id"`
	Peer string `json:"peer" doc:"its address for the other nodes"`
}

func (h *handler) join(ctx context.Context, r *joinRequest) (*none, error) {
	_, err := do[*zamokpb.JoinResponse](ctx, h, &zamokpb.JoinRequest{Id: r.ID, Peer: r.Peer})
	return &none{}, err
}

type removeRequest struct {
	ID string `json:"id"`
}

// remove continues at the next leader if this one is to be removed: it hands over first.
func (h *handler) remove(ctx context.Context, r *removeRequest) (*none, error) {
	return &none{}, h.retryNotDone(ctx, func() error {
		_, err := do[*zamokpb.RemoveResponse](ctx, h, &zamokpb.RemoveRequest{Id: r.ID})
		return err
	})
}

// backupRoute streams a backup.
func (h *handler) backupRoute() route {
	return route{
		method: "GET", path: "/v1/admin/backup",
		summary: "Stream a backup; one that was interrupted is refused by restore.",
		request: reflect.TypeFor[none](), stream: true,
		serve: func(w http.ResponseWriter, r *http.Request) error {
			if err := receive(w, r, new(none)); err != nil {
				return err
			}
			out := &backup{w: w, connection: http.NewResponseController(w)}
			err := h.apart(func() error {
				return h.config.Gate.Stream(r.Context(), arrivalOf(r.Context()),
					zamokpb.Admin_Backup_FullMethodName, out)
			})
			if err != nil && out.begun {
				// the connection ends without the end of the body: the client sees that it lacks
				// some
				panic(http.ErrAbortHandler)
			}
			return err // a refusal has a status of its own
		},
	}
}

// backup is the stream of one.
type backup struct {
	w          http.ResponseWriter
	connection *http.ResponseController
	requested  bool
	begun      bool
}

// RecvMsg implements gate.Messages: there is one request, without a field.
func (b *backup) RecvMsg(any) error {
	if b.requested {
		return io.EOF
	}
	b.requested = true
	return nil
}

// SendMsg implements gate.Messages.
func (b *backup) SendMsg(m any) error {
	chunk, is := m.(*zamokpb.BackupChunk)
	if !is {
		chunk = new(zamokpb.BackupChunk)
		if err := carry(m.(proto.Message), chunk); err != nil {
			return err
		}
	}
	if !b.begun {
		b.begun = true
		b.w.Header().Set("Content-Type", "application/octet-stream")
		b.w.Header().Set("Content-Disposition", `attachment; filename="zamok.backup"`)
	}
	_ = b.connection.SetWriteDeadline(time.Now().Add(writeWait)) // a recorder in a test has none
	_, err := b.w.Write(chunk.Data)
	return err
}
