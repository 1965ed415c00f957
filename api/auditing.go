package api

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"zamok/api/access"
	"zamok/api/access/rules"
	"zamok/api/audit"
	"zamok/api/metrics"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	raftpeer "zamok/raftnode/peer"
)

// subjectsMax bounds the locks that a line of the audit log names.
const subjectsMax = 16

// record writes a line of the audit log with the outcome of an operator's call.
func (s *Server) record(ctx context.Context, request any, err error) {
	s.audit.Record(auditEvent(ctx, "", request, err))
}

// denied counts a denial by the access rules, and records it.
func (s *Server) denied(ctx context.Context, verb rules.Verb, request any, err error) {
	s.metrics.Denied(string(verb))
	s.recordDenial(ctx, auditEvent(ctx, "", request, err))
}

// recordDenial records a denial of the caller of ctx.
func (s *Server) recordDenial(ctx context.Context, e audit.Event) {
	s.audit.RecordDenial(access.CallerOf(ctx).Account(), e)
}

// recordStranger records the denial of a caller that is not the owner of the session that it named. Call is the method if the
// request is not known.
func (s *Server) recordStranger(ctx context.Context, call string, request any, err error) {
	if err != nil && wire.Explain(err).Code() == zamokpb.Code_CODE_WRONG_SECRET {
		s.recordDenial(ctx, auditEvent(ctx, call, request, err))
	}
}

// auditEvent is a line of the audit log. Call is the method or path of a request that is not known.
func auditEvent(ctx context.Context, call string, request any, err error) audit.Event {
	caller := access.CallerOf(ctx)
	via, _ := relayedBy(ctx)
	e := audit.Event{
		Time: time.Now(), Who: caller.Identity, From: caller.Address, Via: via.Name, Outcome: "done",
		Call: call[strings.LastIndexByte(call, '/')+1:],
	}
	if m, ok := request.(proto.Message); ok {
		e.Call, e.On = strings.TrimSuffix(string(m.ProtoReflect().Descriptor().Name()), "Request"), subject(m)
	}
	if err != nil {
		info := wire.Explain(err).Info
		e.Code, e.Message = strings.TrimPrefix(info.Code.String(), "CODE_"), info.Message
		e.Outcome = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(info.Outcome.String(), "OUTCOME_"), "_", " "))
	}
	return e
}

// unaudited returns the handler of lines that could not be written, as on a full disk. The calls proceed: a cluster whose locks
// cannot be released because a log is full would do more harm than the gap, which is counted.
func unaudited(m *metrics.Metrics, log *slog.Logger) func(error) {
	limited := raftpeer.NewRateLimitedLog(log)
	return func(err error) {
		m.Unaudited()
		limited.Log(slog.LevelError, "audit", "the audit log can't be written, and its lines are lost: free disk space, or fix the file", "error", err)
	}
}

// subject is what a request is about: its texts, numbers and spans, the locks of an acquisition, and quotas. Secrets are bytes.
func subject(request proto.Message) map[string]string {
	on := make(map[string]string)
	request.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f.Kind() {
		case protoreflect.StringKind, protoreflect.Uint64Kind:
			on[string(f.Name())] = fmt.Sprint(v.Interface())
		case protoreflect.Int64Kind: // of requests, all of these are spans
			on[string(f.Name())] = spanText(clock.Span(v.Int()))
		}
		return true
	})
	acquire, _ := request.(*zamokpb.Acquire)
	if r, unary := request.(*zamokpb.AcquireRequest); unary {
		acquire = r.Acquire
	}
	for i, it := range acquire.GetItems() {
		if i == subjectsMax {
			break
		}
		on[fmt.Sprintf("lock %d", i+1)] = it.Name
	}
	if r, isSettings := request.(*zamokpb.SettingsRequest); isSettings && r.Quotas != nil {
		r.Quotas.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			on["quotas."+string(f.Name())] = fmt.Sprint(v.Interface())
			return true
		})
	}
	return on
}

// spanText is a span, or the longest wait of an acquisition.
func spanText(span clock.Span) string {
	if span == fsm.Forever {
		return "forever"
	}
	return span.String()
}

// auditToLog is the audit log of a node that has no file for it.
type auditToLog struct{ log *slog.Logger }

func (l auditToLog) Write(line []byte) (int, error) {
	l.log.Info("audit", "event", strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}
