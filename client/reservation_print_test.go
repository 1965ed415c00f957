package client

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAReservationIsPrintedWithoutItsSecret(t *testing.T) {
	t.Parallel()
	r := NewReservation(DefaultTTL, ExclusiveItem("stock"))
	r.Secret, r.Session = []byte("a secret of this"), 57
	var out bytes.Buffer
	for _, v := range []any{r, *r, struct{ R *Reservation }{r}, []Reservation{*r}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	require.Contains(t, out.String(), "57")
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil),
		slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("reserved", "reservation", r, "value", *r)
	}
	for _, form := range []string{
		string(r.Secret), hex.EncodeToString(r.Secret), strings.Trim(fmt.Sprint(r.Secret), "[]"),
		strings.Trim(fmt.Sprintf("%#v", r.Secret), "[]byte{}"),
	} {
		require.NotContains(t, strings.ToLower(out.String()), form)
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var stored Reservation
	require.NoError(t, json.Unmarshal(text, &stored))
	require.Equal(t, r.Secret, stored.Secret, "it is stored with it")
}
