package gate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"zamok/api/audit"
	"zamok/api/gate/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// subjectsMax bounds the locks that a line of the audit log names.
const subjectsMax = 16

// record writes a line of the audit log with the outcome of an operator's act, or the denial of a
// caller that does not own the session that it named.
func (g *Gate) record(ctx context.Context, d *Request, request proto.Message, err error) {
	if d.Acts != nil && d.Acts(request) {
		g.Audit.Record(auditEvent(ctx, "", request, err))
	} else if isNotOwner(err) {
		g.recordDenial(ctx, auditEvent(ctx, "", request, err))
	}
}

// recordStream records that a stream ended because its caller does not own the session.
func (g *Gate) recordStream(ctx context.Context, method string, err error) {
	if isNotOwner(err) {
		g.recordDenial(ctx, auditEvent(ctx, method, nil, err))
	}
}

func isNotOwner(err error) bool {
	return err != nil && wire.Explain(err).Code() == zamokpb.Code_CODE_WRONG_SECRET
}

// deny counts a denial by the access rules, and records it.
func (g *Gate) deny(ctx context.Context, verb rules.Verb, e audit.Event) {
	g.Metrics.Denied(string(verb))
	g.recordDenial(ctx, e)
}

// recordDenial records a denial of the caller of ctx.
func (g *Gate) recordDenial(ctx context.Context, e audit.Event) {
	g.Audit.RecordDenial(CallerOf(ctx).Principal(), e)
}

// auditEvent is a line of the audit log. Call is the method or path of a request that is not known.
func auditEvent(ctx context.Context, call string, request proto.Message, err error) audit.Event {
	caller := CallerOf(ctx)
	e := audit.Event{
		Time: time.Now(), Who: caller.Identity, From: caller.Address, Via: caller.via(),
		Outcome: "done",
		Call:    call[strings.LastIndexByte(call, '/')+1:],
	}
	if request != nil {
		e.Call, e.On = strings.TrimSuffix(string(request.ProtoReflect().Descriptor().Name()),
			"Request"), subject(request)
	}
	if err != nil {
		info := wire.Explain(err).Info
		e.Code, e.Message = wire.EnumName(info.Code), info.Message
		e.Outcome = strings.ToLower(strings.ReplaceAll(wire.EnumName(info.Outcome), "_", " "))
	}
	return e
}

// subject is what a request is about: its texts, numbers and spans, those of the messages in it,
// and the locks of an acquisition. Secrets are bytes.
func subject(request proto.Message) map[string]string {
	on := make(map[string]string)
	addSubject(on, "", request.ProtoReflect())
	return on
}

func addSubject(on map[string]string, prefix string, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := prefix + string(f.Name())
		switch {
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range min(v.List().Len(), subjectsMax) {
				item := v.List().Get(i).Message()
				on[fmt.Sprintf("lock %d", i+1)] =
					item.Get(item.Descriptor().Fields().ByName("name")).String()
			}
		case f.Kind() == protoreflect.MessageKind && f.Name() == "acquire":
			addSubject(on, "", v.Message())
		case f.Kind() == protoreflect.MessageKind:
			addSubject(on, name+".", v.Message())
		case f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.Uint64Kind,
			f.Kind() == protoreflect.Uint32Kind:
			on[name] = fmt.Sprint(v.Interface())
		case f.Kind() == protoreflect.Int64Kind: // of requests, all of these are spans
			on[name] = spanText(clock.Span(v.Int()))
		}
		return true
	})
}

// spanText is a span, or the longest wait of an acquisition.
func spanText(span clock.Span) string {
	if span == fsm.Forever {
		return "forever"
	}
	return span.String()
}
