package check

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/client"
)

// What is not known is never recorded as refused.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, OK},
		{client.ErrNotAcquired, Refused},
		{&client.Error{Kind: client.ErrSessionExpired}, Refused},
		{&client.Error{Kind: client.ErrSessionExpired, Outcome: client.Unknown}, Unknown},
		{fmt.Errorf("lock: %w", client.ErrUnavailable), Unknown},
		{fmt.Errorf("lock: %w", context.Canceled), Unknown},
		{context.DeadlineExceeded, Unknown},
	} {
		assert.Equal(t, c.want, OutcomeOf(c.err), "%v", c.err)
	}
}

func TestLossReason(t *testing.T) {
	for want, err := range map[string]error{
		"revoked":           client.ErrRevoked,
		Expired:             client.ErrSessionExpired,
		"disconnected":      fmt.Errorf("%w: disconnected", client.ErrSessionExpired),
		"max hold exceeded": errors.New("its maximum hold is over"),
		"":                  client.ErrLost,
	} {
		assert.Equal(t, want, LossReason(err), "%v", err)
	}
}

func TestItems(t *testing.T) {
	assert.Equal(t, []Item{{Name: "a", Mode: Exclusive}, {Name: "b", Mode: Shared}},
		ItemsOf([]client.Item{client.ExclusiveItem("a"), client.SharedItem("b")}))
	assert.Empty(t, ItemsOf(nil))
}
