package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/client"
	"zamok/client/admin"
)

// watchCommand is `zamok watch`.
type watchCommand struct {
	requestFlags
	from uint64
}

func newWatch(a *app) *cobra.Command {
	v := &watchCommand{}
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "stream lock events",
		Long: `Streams the events of locks whose names begin with PREFIX, one per line, until
interrupted. When a node fails the stream continues on another node without gaps or duplicates. It
ends when the next events are no longer in the event history: list the locks, then watch from the
index of the list.

Without PREFIX it also shows the ends of sessions and their reason: closed, expired, disconnected,
or expired by operator. The events of a session's locks come just before its end.`,
		Example: "  zamok watch account/\n  zamok watch --from 1234567 -o json",
		GroupID: groupInspect,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return v.run(cmd, func(ctx context.Context, c *client.Client) error {
				return v.watch(ctx, c, prefix)
			})
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().Uint64Var(&v.from, "from", 0,
		"show events after this `index` (default: from now on)")
	return cmd
}

// eventDoc has the kind of an event, too, which is the event's name over HTTP.
type eventDoc struct {
	Index view.Number `json:"index"` // that of the event, before its kind
	Kind  string      `json:"event"`
	view.Event
}

func (e eventDoc) String() string {
	var names []string
	for _, i := range e.Items {
		names = append(names, fmt.Sprintf("%s (%s)", visible.Word(i.Name), modeText(i)))
	}
	text := fmt.Sprintf("%d  %-10s  ", e.Index, e.Kind)
	if len(names) > 0 {
		text += strings.Join(names, ", ") + "  "
	}
	text += fmt.Sprintf("session %d", e.Session)
	if e.Ticket != 0 {
		text += fmt.Sprintf(" ticket %d", e.Ticket)
	}
	if e.Label != "" {
		text += fmt.Sprintf(" (%s)", visible.Word(e.Label))
	}
	if e.Token != 0 {
		text += fmt.Sprintf(" token %d", e.Token)
	}
	if e.Reason != "" {
		text += ": " + strings.ReplaceAll(e.Reason, "_", " ")
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

func (v *watchCommand) watch(ctx context.Context, c *client.Client, prefix string) error {
	// A watch waits without limit, also for a cluster that can't be reached: that is checked first.
	if _, err := admin.New(c).Now(ctx); err != nil {
		return err
	}
	for batch, err := range c.Watch(ctx, prefix, v.from) {
		if err != nil && ctx.Err() != nil {
			return interruptError(ctx)
		}
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			doc := eventDoc{view.Number(e.Index), e.Kind.String(), view.Event{
				Session: view.Number(e.Session), Ticket: view.Number(e.Ticket),
				Token:  view.Number(e.Token),
				Reason: e.Reason, Text: e.Text, Label: e.Label, Items: mapSlice(e.Items, newItem),
			}}
			if err := v.app.printLine(doc, doc.String()); err != nil {
				return err
			}
		}
	}
	return nil
}
