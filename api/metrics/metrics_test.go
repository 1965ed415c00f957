package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// There is a counter for each code for which a stream may end.
func TestEveryCutIsCounted(t *testing.T) {
	m := New()
	for code := range zamokpb.Code_name {
		m.Cut(zamokpb.Code(code))
	}
	page := httptest.NewRecorder()
	m.Serve(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil), nil, 0, "",
		nil, nil)
	text := page.Body.String()
	require.Contains(t, text, `zamok_streams_cut_total{reason="slow_reader"} 1`)
	require.Equal(t, len(zamokpb.Code_name), strings.Count(text, "zamok_streams_cut_total{"))
}
