package tell_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/tell"
)

// What is not known is never recorded as refused.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want check.Outcome
	}{
		{nil, check.OK},
		{client.ErrNotAcquired, check.Refused},
		{&client.Error{Kind: client.ErrSessionExpired}, check.Refused},
		{&client.Error{Kind: client.ErrSessionExpired, Outcome: client.Unknown}, check.Unknown},
		{fmt.Errorf("lock: %w", client.ErrUnavailable), check.Unknown},
		{fmt.Errorf("lock: %w", context.Canceled), check.Unknown},
		{context.DeadlineExceeded, check.Unknown},
	} {
		assert.Equal(t, c.want, tell.Outcome(c.err), "%v", c.err)
	}
}

func TestLossReason(t *testing.T) {
	for want, err := range map[string]error{
		"revoked":           client.ErrRevoked,
		check.Expired:       client.ErrSessionExpired,
		"disconnected":      fmt.Errorf("%w: disconnected", client.ErrSessionExpired),
		"max hold exceeded": errors.New("its maximum hold is over"),
		"":                  client.ErrLost,
	} {
		assert.Equal(t, want, tell.LossReason(err), "%v", err)
	}
}

func TestItems(t *testing.T) {
	assert.Equal(t, []check.Item{{Name: "a", Mode: check.Exclusive}, {Name: "b", Mode: check.Shared}},
		tell.Items([]client.Item{client.ExclusiveItem("a"), client.SharedItem("b")}))
	assert.Empty(t, tell.Items(nil))
}
