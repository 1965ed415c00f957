package web

import (
	"context"
	"net/http"

	"google.golang.org/protobuf/proto"

	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/zamokpb"
)

// Gate lets calls through to the service.
type Gate interface {
	Do(context.Context, gate.Arrival, proto.Message) (proto.Message, error)
	Stream(ctx context.Context, from gate.Arrival, method string, messages gate.Messages) error
	Cluster() string
}

// Arrival is what a request shows of its caller.
func Arrival(r *http.Request) gate.Arrival {
	from := gate.Arrival{
		Conn: conns.Of(r.Context()), Address: r.RemoteAddr,
		Tokens: r.Header.Values(zamokpb.AuthorizationKey),
		Relay:  true, Clusters: r.Header.Values(zamokpb.ClusterKey),
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		from.Certificate = r.TLS.VerifiedChains[0][0]
	}
	return from
}

type arrivalKey struct{}

func withArrival(ctx context.Context, from gate.Arrival) context.Context {
	return context.WithValue(ctx, arrivalKey{}, from)
}

func arrivalOf(ctx context.Context) gate.Arrival {
	from, _ := ctx.Value(arrivalKey{}).(gate.Arrival)
	return from
}

// forCluster is the context of calls for the cluster that a request names, beside that of its
// header; "": it names none.
func forCluster(ctx context.Context, cluster string) context.Context {
	if cluster == "" {
		return ctx
	}
	from := arrivalOf(ctx)
	from.Clusters = append(from.Clusters[:len(from.Clusters):len(from.Clusters)], cluster)
	return withArrival(ctx, from)
}

// apart runs a call on a goroutine of its own: net/http would recover from a panic, and continue
// with what the service has locked.
func (h *handler) apart(call func() error) error {
	end, err := h.config.Begin()
	if err != nil {
		return err
	}
	defer end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = call()
	}()
	<-done
	return err
}

// do carries out a call.
func do[Response proto.Message](ctx context.Context, h *handler,
	request proto.Message) (response Response, err error) {
	var answer proto.Message
	err = h.apart(func() (err error) {
		answer, err = h.config.Gate.Do(ctx, arrivalOf(ctx), request)
		return err
	})
	if err != nil {
		return response, err
	}
	response, is := answer.(Response)
	if !is { // it was relayed, and is not decoded yet
		response = response.ProtoReflect().New().Interface().(Response)
		err = carry(answer, response)
	}
	return response, err
}

// retried makes a call, again while there is no leader.
func retried[Response proto.Message](ctx context.Context, h *handler,
	request proto.Message) (response Response, err error) {
	err = h.retry(ctx, func() (err error) {
		response, err = do[Response](ctx, h, request)
		return err
	})
	return response, err
}

// carry merges a message into another one, perhaps of another type with the same encoding, as in a
// relayed answer.
func carry(from, to proto.Message) error {
	if from.ProtoReflect().Descriptor() == to.ProtoReflect().Descriptor() {
		proto.Merge(to, from)
		return nil
	}
	bytes, err := proto.Marshal(from)
	if err != nil {
		return err
	}
	return proto.Unmarshal(bytes, to)
}
