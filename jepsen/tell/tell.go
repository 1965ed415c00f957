package tell

import (
	"context"
	"errors"
	"strings"

	"zamok/client"
	"zamok/jepsen/check"
)

// Outcome is what a caller knows of its call. Where more than one may be true it is Unknown.
func Outcome(err error) check.Outcome {
	var e *client.Error
	switch {
	case err == nil:
		return check.OK
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err,
		client.ErrUnavailable):
		return check.Unknown
	case errors.As(err, &e) && e.Outcome == client.Unknown:
		return check.Unknown
	}
	return check.Refused
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
		return check.Expired
	case strings.Contains(err.Error(), "maximum hold"):
		return "max hold exceeded"
	}
	return ""
}

// Items are what a caller asked for, or what an event was about.
func Items(items []client.Item) (all []check.Item) {
	for _, it := range items {
		all = append(all, check.Item{
			Name: it.Name(), Mode: check.Mode(it.Mode().String()), Permits: int(it.Permits()), Limit: int(it.Limit()),
		})
	}
	return all
}
