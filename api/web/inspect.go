package web

import (
	"context"

	"zamok/api/view"
	"zamok/api/zamokpb"
)

type lockRequest struct {
	Name  string `json:"name"`
	Limit uint32 `json:"limit,omitempty" doc:"how many holders, and waiters, are shown; default 100, at most 200"`
}

func (h *handler) showLock(ctx context.Context, r *lockRequest) (*view.Lock, error) {
	response, err := retried[*zamokpb.GetResponse](ctx, h,
		&zamokpb.GetRequest{Name: r.Name, Limit: r.Limit})
	if err != nil {
		return nil, err
	}
	return view.NewLock(response), nil
}

type listRequest struct {
	Prefix string `json:"prefix,omitempty"`
	After  string `json:"after,omitempty" doc:"only names after this one: next of the page before"`
	Limit  uint32 `json:"limit,omitempty" doc:"default and maximum 1000"`
}

// listDefault is how many elements a page has, unless a request has a lower limit.
const listDefault = 1000

func (h *handler) listLocks(ctx context.Context, r *listRequest) (*view.Locks, error) {
	if r.Limit == 0 {
		r.Limit = listDefault
	}
	response, err := retried[*zamokpb.ListResponse](ctx, h,
		&zamokpb.ListRequest{Prefix: r.Prefix, After: r.After, Limit: r.Limit})
	if err != nil {
		return nil, err
	}
	return view.NewLocks(response.Locks, response.Stamp, len(response.Locks) == int(r.Limit)), nil
}

type listSessionsRequest struct {
	After view.Number `json:"after,omitempty" doc:"only ids above this one: next of the page before"`
	Limit uint32      `json:"limit,omitempty" doc:"default and maximum 1000"`
}

func (h *handler) listSessions(ctx context.Context,
	r *listSessionsRequest) (*view.Sessions, error) {
	response, err := retried[*zamokpb.ListSessionsResponse](ctx, h,
		&zamokpb.ListSessionsRequest{After: uint64(r.After), Limit: r.Limit})
	if err != nil {
		return nil, err
	}
	// A page may be shorter than its limit, so there may be more after any that is not empty.
	return view.NewSessions(response.Sessions, response.Stamp, len(response.Sessions) > 0), nil
}

type checkRequest struct {
	Name    string      `json:"name"`
	Token   view.Number `json:"token"`
	Session view.Number `json:"session,omitempty" doc:"needed for shared locks and permits, whose tokens may be shared"`
	Ticket  view.Number `json:"ticket,omitempty" doc:"with a session; absent: the session is the lock's own"`
}

func (h *handler) check(ctx context.Context, r *checkRequest) (*view.Checked, error) {
	request := &zamokpb.CheckRequest{Name: r.Name, Token: uint64(r.Token),
		Session: uint64(r.Session), Ticket: uint64(r.Ticket)}
	if r.Session != 0 {
		request.Ticket = uint64(ticketOf(r.Ticket))
	}
	response, err := retried[*zamokpb.CheckResponse](ctx, h, request)
	if err != nil {
		return nil, err
	}
	return view.NewChecked(response), nil
}

// none is a request without fields.
type none struct{}

func (h *handler) now(ctx context.Context, _ *none) (*view.Stamp, error) {
	response, err := retried[*zamokpb.NowResponse](ctx, h, &zamokpb.NowRequest{})
	if err != nil {
		return nil, err
	}
	return new(view.NewStamp(response.Stamp)), nil
}

func (h *handler) members(ctx context.Context, _ *none) (*view.Members, error) {
	response, err := retried[*zamokpb.MembersResponse](ctx, h, &zamokpb.MembersRequest{})
	if err != nil {
		return nil, err
	}
	return view.NewMembers(response), nil
}

type nodeStatus struct {
	Node     string        `json:"node" doc:"this node's id"`
	Ready    bool          `json:"ready" doc:"this node serves"`
	NotReady string        `json:"not_ready,omitempty" doc:"why it does not"`
	Cluster  *view.Members `json:"cluster,omitempty" doc:"absent: no leader answered"`
}

// status says what it can, also if there is no leader.
func (h *handler) status(ctx context.Context, r *none) (*nodeStatus, error) {
	answer := &nodeStatus{Node: h.config.Node, NotReady: h.config.NotReady()}
	answer.Ready = answer.NotReady == ""
	if answer.Ready {
		members, err := h.members(ctx, r)
		if isCode(err, zamokpb.Code_CODE_WRONG_CLUSTER) {
			return nil, err
		}
		answer.Cluster = members
	}
	return answer, nil
}
