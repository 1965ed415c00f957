package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"zamok/api/zamokpb"
)

const (
	// clusterKey is the metadata in which a call names the cluster that it is meant for, and an answer the one
	// that it comes from.
	clusterKey = "zamok-cluster"
	// clusterAsked is sent in place of an id by a client that does not know it yet. No node does what comes with
	// it; the refusal has the id.
	clusterAsked = "?"
	// surveyParts says for which part of the request timeout endpoints may be silent after one has answered, be it
	// that it does not know its cluster yet.
	surveyParts = 10
	// minoritySilence is how long at most when most of them have named one cluster.
	minoritySilence = 100 * time.Millisecond
)

var errNameless = errors.New("the answer does not say from which cluster it comes")

// wrongClusterError is that a node belongs to another cluster than this client.
type wrongClusterError struct {
	address, cluster string
	own, learnt      string // this client's cluster, and where it was learnt from; "" = not known yet
}

func (f *wrongClusterError) Error() string {
	return fmt.Sprintf("%s belongs to cluster %s, and this client to cluster %s (%s); if the endpoints should be of one "+
		"cluster, correct them; if that one took this one's place, start anew with a new client",
		f.address, f.cluster, f.own, f.learnt)
}

// nameUnary is in every call: it names the cluster that the call is meant for, and takes no answer of another.
func (n *nodes) nameUnary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	own, learnt := n.own()
	var header metadata.MD
	var at peer.Peer // set by gRPC once the call was put on a connection
	err := invoke(naming(ctx, own), method, req, reply, conn, append(opts, grpc.Header(&header), grpc.Peer(&at))...)
	if err != nil && at.AuthInfo == nil { // its addresses are the dialer's, and may be missing
		err = unsent{err}
	}
	return judge(conn, own, learnt, header, err)
}

// nameStream is the same for streams. Their first message decides.
func (n *nodes) nameStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	own, learnt := n.own()
	stream, err := open(naming(ctx, own), desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	return &judged{ClientStream: stream, conn: conn, own: own, learnt: learnt}, nil
}

type judged struct {
	grpc.ClientStream
	conn        *grpc.ClientConn
	own, learnt string
	begun       bool // the first message was taken
}

func (s *judged) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.begun {
		return err
	}
	s.begun = true
	var header metadata.MD
	if err == nil {
		header, err = s.Header() // is there, since a message is
	}
	return judge(s.conn, s.own, s.learnt, header, err)
}

func naming(ctx context.Context, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, clusterKey, cmp.Or(cluster, clusterAsked))
}

// judge is the error of a call as it is if its answer has to come from a cluster. A node that refuses for this
// reason has done nothing, and another may be asked. One that did what was asked and names another cluster, which
// no node of ours does, leaves the outcome unknown.
func judge(conn *grpc.ClientConn, own, learnt string, header metadata.MD, err error) error {
	wrong := func(cluster string, outcome Outcome) error {
		return &Error{Kind: ErrWrongCluster, Outcome: outcome,
			cause: &wrongClusterError{strings.TrimPrefix(conn.Target(), target), cluster, own, learnt}}
	}
	info, names := infoOf(err), header.Get(clusterKey)
	switch {
	case info.GetCode() == zamokpb.Code_CODE_WRONG_CLUSTER:
		return wrong(info.GetCluster(), NotDone)
	case err != nil:
		return err
	case len(names) == 0:
		return errNameless
	case names[0] != own:
		return finalError{wrong(names[0], Unknown)}
	}
	return nil
}

// own is the cluster that this client belongs to, and where that was learnt from; "" = not known yet.
func (n *nodes) own() (cluster, learnt string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster, n.learnt
}

// pin makes sure that it is known which cluster this client belongs to, before anything is asked of a node. Its
// error is as of askInTurn.
func (n *nodes) pin(ctx context.Context) error {
	known := func() bool {
		own, _ := n.own()
		return own != ""
	}
	if known() {
		return nil
	}
	select {
	case n.pinning <- struct{}{}:
		defer func() { <-n.pinning }()
	case <-ctx.Done():
		return errNotAnswered
	}
	if known() {
		return nil
	}
	if _, err := n.survey(ctx); err != nil || known() {
		return err
	}
	return n.verdict()
}

// survey asks every given endpoint at once which cluster it belongs to, and learns whether any is a node. If
// they are of one cluster, this client belongs to it from now on. Its error is that they are not, or are of another
// one than this client, or refuse for good. An endpoint that is silent for long is left out; when most have named
// one cluster, which no other can have named then, that is a shorter time.
func (n *nodes) survey(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patienceMax)
	defer cancel()
	given := n.given(ctx)
	type answer struct {
		node    *node
		cluster string // "" = it did not say
		err     error
	}
	all := make(chan answer, len(given))
	for _, one := range given {
		go func() { // ends with ctx; waited for below
			cluster, err := n.clusterOf(ctx, one)
			all <- answer{one, cluster, err}
		}()
	}
	var first answer
	var enough *time.Timer // runs once a node has answered
	same := 0              // endpoints that named the cluster of the first
	var strange, refused error
	for range given {
		one := <-all
		if one.err != nil && ctx.Err() == nil {
			n.note(one.node, one.err, false)
		}
		if errors.Is(one.err, ErrWrongCluster) {
			strange = one.err
		} else if final := refusal(one.err); final != nil {
			refused = final
		}
		if answered = answered || one.cluster != "" || infoOf(one.err) != nil; answered && enough == nil {
			enough = time.AfterFunc(n.silence, cancel)
			defer enough.Stop()
		}
		switch {
		case one.cluster == "":
		case first.cluster == "":
			first = one
		case one.cluster != first.cluster:
			strange = &Error{Kind: ErrWrongCluster, cause: fmt.Errorf("%s belongs to cluster %s, and %s to cluster %s; name endpoints of one cluster only",
				first.node.address, first.cluster, one.node.address, one.cluster)}
		}
		if first.cluster != "" && one.cluster == first.cluster {
			if same++; same == len(given)/2+1 {
				enough.Reset(min(n.silence, minoritySilence))
			}
		}
	}
	switch {
	case strange != nil:
		return answered, strange
	case first.cluster == "":
		return answered, refused
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cluster == "" {
		n.cluster, n.learnt, n.reached = first.cluster, "learnt from "+first.node.address, true
	}
	return answered, nil
}

// clusterOf asks a node to which cluster it belongs; "" = it did not say.
func (n *nodes) clusterOf(ctx context.Context, one *node) (string, error) {
	own, _ := n.own()
	_, err := one.Now(ctx, &zamokpb.NowRequest{})
	var f *wrongClusterError
	switch {
	case errors.As(err, &f) && f.own == "":
		return f.cluster, nil // the refusal is the answer
	case errors.As(err, &f):
		return f.cluster, err
	case err == nil || infoOf(err) != nil:
		return own, err
	}
	return "", err
}
