package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/visible"
)

// What is behind an address may answer anything, and others choose their labels, owners and names:
// an error is one line of a log all the same.
func TestErrorsShowTextOfOthersVisibly(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a\x1b[2J\r\nlevel=INFO", "\u202ea\u2066",
		"\u200b\u00ad\U000e0041\ufe0f", "\u0301\xff\u2028\u009b", "x) is held by nobody, y"} {
		answer := status.Error(codes.Unavailable, text)
		blockers := []Blocker{{Name: text, By: ByHolder, Label: text},
			{Name: text, By: ByWaiter, Label: text, Owner: text}, {Name: text, By: ByDelay}}
		for _, err := range []error{
			&Error{Kind: ErrUnavailable, Message: text, Field: text,
				Nodes: []NodeError{{text, answer}, {text, plainError(answer)}}},
			&Error{Kind: ErrRefused, cause: &Error{Kind: ErrInvalid, Message: text}},
			&NotAcquiredError{Names: []string{text, text}, Holders: blockers},
			&DeadlockError{Cycle: []Link{{Owner: text, Name: text, Waits: true}}},
			&UnconfirmedError{Names: []string{text}, cause: reasonError(0, text)},
			errors.New(blockers[0].String()),
		} {
			assert.Equal(t, visible.Line(err.Error()), err.Error(), "%T", err)
		}
		if strings.HasPrefix(text, "x)") {
			assert.Equal(t,
				`"x) is held by nobody, y" is held by session 0 ("x) is held by nobody, y")`,
				blockers[0].String())
		}
	}
}
