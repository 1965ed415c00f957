package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"

	"zamok/api/zamokpb"
)

// What operators do is not repeated here: an outcome that is unknown is the operator's to look at.

// text is metadata as a text, quoted if it is none.
func text(data []byte) string {
	if !utf8.Valid(data) {
		return strconv.Quote(string(data))
	}
	return string(data)
}

type forceRequest struct {
	Name   string `json:"name"`
	Token  number `json:"token" doc:"the token that you saw: grants up to it end"`
	Reason string `json:"reason,omitempty" doc:"shown to the holders"`
}

type ticketRef struct {
	Session number `json:"session"`
	Ticket  number `json:"ticket"`
}

type forced struct {
	Ended []ticketRef `json:"ended" doc:"the first 1024 acquisitions that were ended"`
	More  uint32      `json:"more,omitempty" doc:"how many others were"`
}

func (h *handler) forceRelease(ctx context.Context, r *forceRequest) (*forced, error) {
	response, err := h.admin.ForceRelease(ctx, &zamokpb.ForceReleaseRequest{Name: r.Name, Token: uint64(r.Token), Reason: r.Reason})
	if err != nil {
		return nil, err
	}
	answer := &forced{Ended: []ticketRef{}, More: response.More}
	for _, t := range response.Ended {
		answer.Ended = append(answer.Ended, ticketRef{number(t.Session), number(t.Ticket)})
	}
	return answer, nil
}

type expireRequest struct {
	Session number `json:"session"`
	Reason  string `json:"reason,omitempty" doc:"shown to the client"`
}

func (h *handler) expire(ctx context.Context, r *expireRequest) (*none, error) {
	_, err := h.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: uint64(r.Session), Reason: r.Reason})
	return &none{}, err
}

type transferRequest struct {
	To string `json:"to,omitempty" doc:"the id of a node; absent: the best one"`
}

func (h *handler) transfer(ctx context.Context, r *transferRequest) (*none, error) {
	_, err := h.admin.Transfer(ctx, &zamokpb.TransferRequest{To: r.To})
	return &none{}, err
}

type joinRequest struct {
	ID   string `json:"id"`
	Peer string `json:"peer" doc:"its address for the other nodes"`
}

func (h *handler) join(ctx context.Context, r *joinRequest) (*none, error) {
	_, err := h.admin.Join(ctx, &zamokpb.JoinRequest{Id: r.ID, Peer: r.Peer})
	return &none{}, err
}

type removeRequest struct {
	ID string `json:"id"`
}

// remove asks the next leader if this one is to be removed: it hands over first.
func (h *handler) remove(ctx context.Context, r *removeRequest) (*none, error) {
	return &none{}, h.whileNotDone(ctx, func() error {
		_, err := h.admin.Remove(ctx, &zamokpb.RemoveRequest{Id: r.ID})
		return err
	})
}

// backupRoute streams a backup.
func (h *handler) backupRoute() route {
	return route{
		method: "GET", path: "/v1/admin/backup", summary: "Stream a backup; one that was interrupted is refused by restore.",
		request: reflect.TypeFor[none](), stream: true,
		serve: func(w http.ResponseWriter, r *http.Request) error {
			if err := receive(w, r, new(none)); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			stream, err := h.admin.Backup(ctx, &zamokpb.BackupRequest{})
			if err != nil {
				return err
			}
			chunk, err := stream.Recv() // a refusal has a status of its own
			if err != nil {
				return err
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Disposition", `attachment; filename="zamok.backup"`)
			connection := http.NewResponseController(w)
			for err == nil {
				_ = connection.SetWriteDeadline(time.Now().Add(writeWait)) // a recorder in a test has none
				if _, err = w.Write(chunk.Data); err == nil {
					chunk, err = stream.Recv()
				}
			}
			if !errors.Is(err, io.EOF) {
				panic(http.ErrAbortHandler) // the connection ends without the end of the body: the client sees that it lacks some
			}
			return nil
		},
	}
}
