package check

import (
	"context"
	"errors"
	"strings"

	"zamok/client"
)

// OutcomeOf is what a caller of package client knows of its call. Where more than one may be true it is Unknown.
func OutcomeOf(err error) Outcome {
	var e *client.Error
	switch {
	case err == nil:
		return OK
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err,
		client.ErrUnavailable):
		return Unknown
	case errors.As(err, &e) && e.Outcome == client.Unknown:
		return Unknown
	}
	return Refused
}

// LossReason is why a lock was lost: nothing if the client found out by itself.
func LossReason(err error) string {
	switch {
	case errors.Is(err, client.ErrRevoked):
		return "revoked"
	case errors.Is(err, client.ErrSessionExpired):
		for _, reason := range []string{"disconnected", "evicted", "closed"} {
			if strings.Contains(err.Error(), reason) {
				return reason
			}
		}
		return Expired
	case strings.Contains(err.Error(), "maximum hold"):
		return "max hold exceeded"
	}
	return ""
}

// ItemsOf are what a caller asked for, or what an event was about.
func ItemsOf(items []client.Item) (all []Item) {
	for _, it := range items {
		all = append(all, Item{
			Name: it.Name(), Mode: Mode(it.Mode().String()), Permits: int(it.Permits()), Limit: int(it.Limit()),
		})
	}
	return all
}
