package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"zamok/api/zamokpb"
)

const (
	// clusterUnknown is sent instead of an id by a client that does not know its cluster yet. A
	// node rejects every call that comes with it, and names its cluster in the error.
	clusterUnknown = "?"
	// surveyParts: after the first endpoint has answered, with or without its cluster, the others
	// have this part of the request timeout.
	surveyParts = 10
	// majorityWait is the longest wait for the others once most endpoints have named one cluster.
	majorityWait = 100 * time.Millisecond
)

var errNameless = errors.New("the answer does not name its cluster")

// wrongClusterError says that a node belongs to another cluster than this client.
type wrongClusterError struct {
	address, cluster string
	own, source      string // of this client, and where it was learnt; "" = not known yet
}

func (f *wrongClusterError) Error() string {
	return fmt.Sprintf("%s belongs to cluster %s, and this client to cluster %s (%s); correct "+
		"the endpoints, or make a new client if that cluster has replaced this one",
		f.address, f.cluster, f.own, f.source)
}

// clusterCheck intercepts the calls of a connection. It names this client's cluster in each of
// them, and accepts no answer of another cluster. Otherwise clients whose endpoints lead to two
// clusters could hold one lock (L10). A client does not go over to a cluster that replaced its own,
// since work under locks of the old one may continue.
type clusterCheck struct {
	nodes   *nodes
	address string // of the connection
}

func (k clusterCheck) unary(ctx context.Context, method string, req, reply any,
	conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	own, source := k.nodes.ownCluster()
	var header metadata.MD
	var at peer.Peer // gRPC sets it once the call has a connection
	err := invoke(withCluster(ctx, own), method, req, reply, conn,
		append(opts, grpc.Header(&header), grpc.Peer(&at))...)
	if err != nil && at.AuthInfo == nil { // at.Addr may be missing
		err = unsentError{err}
	}
	return k.check(own, source, header, err)
}

// stream opens a stream whose first message is checked.
func (k clusterCheck) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
	method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	own, source := k.nodes.ownCluster()
	stream, err := open(withCluster(ctx, own), desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	return &checkedStream{ClientStream: stream, clusterCheck: k, own: own, source: source}, nil
}

type checkedStream struct {
	grpc.ClientStream
	clusterCheck
	own, source string
	checked     bool // the first message was received
}

func (s *checkedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.checked {
		return err
	}
	s.checked = true
	var header metadata.MD
	if err == nil {
		header, err = s.Header() // has arrived, since a message has
	}
	return s.check(s.own, s.source, header, err)
}

// withCluster adds the cluster that a call is for to its metadata.
func withCluster(ctx context.Context, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, zamokpb.ClusterKey,
		cmp.Or(cluster, clusterUnknown))
}

// check returns the error of a call: its own, or that its answer comes from another cluster. A node
// that rejects the call for this reason has done nothing, so another node may be tried. A node that
// carries the call out and then names another cluster leaves the outcome unknown; no node of this
// client's cluster does that.
func (k clusterCheck) check(own, source string, header metadata.MD, err error) error {
	wrong := func(cluster string, outcome Outcome) error {
		return &Error{Kind: ErrWrongCluster, Outcome: outcome,
			cause: &wrongClusterError{k.address, cluster, own, source}}
	}
	info, names := infoOf(err), header.Get(zamokpb.ClusterKey)
	switch {
	case info.GetCode() == zamokpb.Code_CODE_WRONG_CLUSTER:
		return wrong(info.GetCluster(), NotDone)
	case err != nil:
		return err
	case len(names) == 0:
		return errNameless
	case names[0] != own:
		return permanentError{wrong(names[0], Unknown)}
	}
	return nil
}

// ownCluster is the cluster that this client belongs to, and where it was learnt; "" = not known
// yet.
func (n *nodes) ownCluster() (cluster, clusterSource string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster, n.clusterSource
}

// findCluster returns nil once it is known which cluster this client belongs to. No node gets a
// call before. Its errors are those of tryInTurn.
func (n *nodes) findCluster(ctx context.Context) error {
	known := func() bool {
		own, _ := n.ownCluster()
		return own != ""
	}
	if known() {
		return nil
	}
	select {
	case n.surveying <- struct{}{}:
		defer func() { <-n.surveying }()
	case <-ctx.Done():
		return errRoundFailed
	}
	if known() {
		return nil
	}
	if _, err := n.survey(ctx); err != nil || known() {
		return err
	}
	return n.roundError()
}

// survey sends a call to every endpoint at once to learn its cluster, and reports whether any
// endpoint is a node. If all that answer belong to one cluster, this client belongs to it from now
// on. Its error is permanent: the endpoints belong to several clusters, or to another one than this
// client, or one denies the call. Silent endpoints are left out: after a shorter time when most
// have named one cluster, because no other cluster can have most of the names then.
func (n *nodes) survey(ctx context.Context) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeoutMax)
	defer cancel()
	endpoints := n.endpoints(ctx)
	type answer struct {
		node    *node
		cluster string // "" = unknown
		err     error
	}
	all := make(chan answer, len(endpoints))
	for _, one := range endpoints {
		go func() { // ends with ctx; waited for below
			cluster, err := n.clusterOf(ctx, one)
			all <- answer{one, cluster, err}
		}()
	}
	var first answer
	var timer *time.Timer // runs once a node has answered
	same := 0             // endpoints that named the cluster of the first
	var wrongCluster, final error
	for range endpoints {
		one := <-all
		if one.err != nil && ctx.Err() == nil {
			n.record(one.node, one.err, false)
		}
		if errors.Is(one.err, ErrWrongCluster) {
			wrongCluster = one.err
		} else if denied := permanent(one.err); denied != nil {
			final = denied
		}
		if found = found || one.cluster != "" || infoOf(one.err) != nil; found && timer == nil {
			timer = time.AfterFunc(n.surveyWait, cancel)
			defer timer.Stop()
		}
		switch {
		case one.cluster == "":
		case first.cluster == "":
			first = one
		case one.cluster != first.cluster:
			wrongCluster = &Error{Kind: ErrWrongCluster,
				cause: fmt.Errorf("%s belongs to cluster %s, and %s to cluster %s; name "+
					"endpoints of one cluster only",
					first.node.address, first.cluster, one.node.address, one.cluster)}
		}
		if first.cluster != "" && one.cluster == first.cluster {
			if same++; same == len(endpoints)/2+1 {
				timer.Reset(min(n.surveyWait, majorityWait))
			}
		}
	}
	switch {
	case wrongCluster != nil:
		return found, wrongCluster
	case first.cluster == "":
		return found, final
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cluster == "" {
		n.cluster, n.clusterSource, n.reached = first.cluster,
			"learnt from "+first.node.address, true
	}
	return found, nil
}

// clusterOf returns the cluster of a node; "" = the node did not name it.
func (n *nodes) clusterOf(ctx context.Context, one *node) (string, error) {
	own, _ := n.ownCluster()
	_, err := one.Now(ctx, &zamokpb.NowRequest{})
	var f *wrongClusterError
	switch {
	case errors.As(err, &f) && f.own == "":
		return f.cluster, nil // the error names the cluster
	case errors.As(err, &f):
		return f.cluster, err
	case err == nil || infoOf(err) != nil:
		return own, err
	}
	return "", err
}
