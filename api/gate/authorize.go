package gate

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"zamok/api/gate/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// authorize refuses a request that the access rules do not allow.
func (g *Gate) authorize(ctx context.Context, d *Request, in Stream, request proto.Message) error {
	verb, why := g.denial(CallerOf(ctx), d, request)
	if why == "" {
		return nil
	}
	err := wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: %s", why)
	e := auditEvent(ctx, "", request, err)
	if in.Secret != nil {
		g.node.View(func(m *fsm.Machine) { e.On["session"] = fmt.Sprint(in.session(m)) })
	}
	g.deny(ctx, verb, e)
	return err
}

// Operate lets an operator through for a call that is no request of the wire, and records it.
func (g *Gate) Operate(ctx context.Context, call string) (a Admission, err error) {
	c := CallerOf(ctx)
	if set := g.Rules(); set != nil && !set.Some(c.forRules(), rules.Operate) {
		err := wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: %s",
			mayNot(c, set, rules.Operate, ""))
		g.deny(ctx, rules.Operate, auditEvent(ctx, call, nil, err))
		return a, err
	}
	if a.leave, err = g.occupy(ctx, c, &Request{Method: call}, nil); err != nil {
		return a, err
	}
	g.Audit.Record(auditEvent(ctx, call, nil, nil))
	return a, nil
}

// denial is why the access rules deny a request, and the verb that its caller would need; "": they
// allow it. Without names, the verb must be allowed for at least one name, with the prefix of the
// request if it has one.
func (g *Gate) denial(c Caller, d *Request, request proto.Message) (verb rules.Verb, why string) {
	set := g.Rules()
	if set == nil || d.Needs == nil {
		return "", ""
	}
	verb, names := d.Needs(request)
	if len(names) == 0 && !set.Some(c.forRules(), verb) {
		return verb, mayNot(c, set, verb, "")
	}
	if r, ok := request.(interface{ GetPrefix() string }); ok &&
		len(set.Readable(c.forRules(), verb, r.GetPrefix())) == 0 {
		return verb, fmt.Sprintf(
			"%s may not %s any lock whose name begins with %q: no rule allows it", c, verb,
			r.GetPrefix())
	}
	for _, name := range names {
		if !set.May(c.forRules(), verb, name) {
			return verb, mayNot(c, set, verb, name)
		}
	}
	return verb, ""
}

// mayNot says that a caller may not do something, and why.
func mayNot(c Caller, set *rules.Set, verb rules.Verb, name string) string {
	what := string(cmp.Or(verb, "do anything here"))
	if name != "" {
		what += fmt.Sprintf(" %q", name)
	}
	return fmt.Sprintf("%s may not %s: %s", c, what, set.Why(c.forRules(), verb, name))
}

// mayLock reports whether a caller may hold sessions: without that, it can end what it has and
// prolong nothing.
func (g *Gate) mayLock(c Caller) bool { return g.Rules().Some(c.forRules(), rules.Lock) }

// mayOperate reports whether a caller may operate.
func (g *Gate) mayOperate(c Caller) bool { return g.Rules().Some(c.forRules(), rules.Operate) }
