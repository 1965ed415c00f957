package main

import (
	"context"
	"fmt"
	"time"

	"zamok/api/view"
	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

// The documents of -o json that HTTP answers with are those of package view, made from the answers
// of the cluster. The other documents have the same names and forms.

// getLock reads a lock with its holders and waiters, up to a limit.
func getLock(ctx context.Context, c *client.Client, name string, limit int) (*view.Lock, error) {
	request := &zamokpb.GetRequest{Name: name, Limit: uint32(max(limit, 0))}
	r, _, err := call.Leader(ctx, c.Calls(), call.Reads, call.Node.Get, request)
	return view.NewLock(r), err
}

func newStamp(s client.Stamp) view.Stamp {
	return view.Stamp{Term: view.Number(s.Term), Index: view.Number(s.Index),
		Time: view.Duration(s.Time)}
}

func newItem(i client.Item) view.Item {
	return view.Item{Name: i.Name(), Mode: view.Mode(i.Mode().String()), Permits: i.Permits(),
		Of: i.Of()}
}

// cell is a span for people; "" for nil.
func cell(d *view.Duration) string {
	if d == nil {
		return ""
	}
	return durationText(time.Duration(*d))
}

func kindText(l view.LockBrief) string {
	if l.Of > 0 {
		return fmt.Sprintf("%d permits", l.Of)
	}
	return l.Kind
}

func modeText(i view.Item) string {
	if i.Permits > 0 {
		return fmt.Sprintf("%d of %d", i.Permits, i.Of)
	}
	return string(i.Mode)
}

// displayName is the meta, label or identity of the ticket: the first that it has.
func displayName(t view.Ticket) string { return firstNonEmpty(t.Meta, t.Label, t.Identity) }

// modeOn is the mode in which the ticket requests or holds a lock.
func modeOn(t view.Ticket, name string) string {
	for _, i := range t.Items {
		if i.Name == name {
			return modeText(i)
		}
	}
	return ""
}

// timeOfDayText is when a span ends by this machine's clock; "": there is none.
func timeOfDayText(left *view.Duration) string {
	if left == nil {
		return ""
	}
	today := time.Now()
	return clockText(today.Add(time.Duration(*left)), today)
}

// durationText is a span of time, rounded for people.
func durationText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

// mapSlice applies f to each element. The result is never nil, which would be null in JSON.
func mapSlice[T, D any](list []T, f func(T) D) []D {
	out := make([]D, len(list))
	for i := range list {
		out[i] = f(list[i])
	}
	return out
}

// firstNonEmpty is the first text that is not empty, or "-".
func firstNonEmpty(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return "-"
}
