package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/session/visible"
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
		Long: `Streams the events of locks whose names begin with PREFIX, one per line, until interrupted. When a node
fails the stream continues on another node without gaps or duplicates. It ends when the next events are no
longer in the event history: list the locks, then watch from the index of the list.

Without PREFIX it also shows the ends of sessions and their reason: closed, expired, disconnected, or evicted
by an operator. The events of a session's locks come just before its end.`,
		Example: "  zamok watch account/\n  zamok watch --from 1234567 -o json",
		GroupID: groupInspect,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return v.run(cmd, func(ctx context.Context, c *client.Client) error { return v.watch(ctx, c, prefix) })
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().Uint64Var(&v.from, "from", 0, "show events after this `index` (default: from now on)")
	return cmd
}

type eventDoc struct {
	Index          uint64    `json:"index,string"`
	Event          string    `json:"event"`
	Session        uint64    `json:"session,string"`
	Ticket         uint64    `json:"ticket,string,omitempty"`
	Token          uint64    `json:"token,string,omitempty"`
	OperatorReason string    `json:"reason,omitempty"`
	Text           string    `json:"text,omitempty"` // what an operator gave as the reason
	Label          string    `json:"label,omitempty"`
	Items          []itemDoc `json:"items,omitempty"`
}

func (e eventDoc) String() string {
	var names []string
	for _, i := range e.Items {
		names = append(names, fmt.Sprintf("%s (%s)", visible.Word(i.Name), i.modeText()))
	}
	text := fmt.Sprintf("%d  %-10s  ", e.Index, e.Event)
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
	if e.OperatorReason != "" {
		text += ": " + e.OperatorReason
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

func (v *watchCommand) watch(ctx context.Context, c *client.Client, prefix string) error {
	// A watch is patient, and would wait for a cluster that is not there.
	if _, err := c.Now(ctx); err != nil {
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
			doc := eventDoc{
				Index: e.Index, Event: e.Kind.String(), Session: e.Session, Ticket: e.Ticket, Token: uint64(e.Token),
				OperatorReason: e.Reason, Text: e.Text, Label: e.Label, Items: mapSlice(e.Items, newItemDoc),
			}
			if err := v.app.printLine(doc, doc.String()); err != nil {
				return err
			}
		}
	}
	return nil
}
