package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// What a histogram counts is in the first bucket whose bound is not below it.
func TestHistogram(t *testing.T) {
	h := newHistogram(.001, .01)
	for _, d := range []time.Duration{-time.Second, 0, time.Millisecond, time.Millisecond + time.Microsecond, time.Second} {
		h.observe(d)
	}
	x := exposition{name: "zamok_h"}
	x.histogram("", &h)
	require.Equal(t, `zamok_h_bucket{le="0.001"} 3
zamok_h_bucket{le="0.01"} 4
zamok_h_bucket{le="+Inf"} 5
zamok_h_sum 1.002001
zamok_h_count 5
`, x.String())
}

// There is a counter for each code for which a stream may end.
func TestEveryCutIsCounted(t *testing.T) {
	m := New()
	for code := range zamokpb.Code_name {
		m.Cut(zamokpb.Code(code))
	}
	text := string(m.Text(t.Context(), nil, 0, ""))
	require.Contains(t, text, `zamok_streams_cut_total{reason="slow_reader"} 1`)
	require.Equal(t, len(zamokpb.Code_name), strings.Count(text, "zamok_streams_cut_total{"))
}
