package session

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/fsm/record"
)

// A field that the sum does not cover is a field in which nodes may differ unnoticed. The invariant
// M12 of package fsm does not show that: it computes with the same functions.
func TestSumCoversEveryField(t *testing.T) {
	sumOf := func(s Session) record.Sum {
		s.Seal()
		return s.Sum()
	}
	var zero Session
	sums := map[record.Sum]string{sumOf(zero): "as it is"}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Session]()) {
		// which are derived
		if !field.IsExported() || field.Anonymous || field.Name == "Live" ||
			field.Name == "Scheduled" {
			continue
		}
		changed := zero
		switch v := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index); {
		case v.Kind() == reflect.String:
			v.SetString("x")
		case v.CanInt():
			v.SetInt(1)
		case v.CanUint():
			v.SetUint(1)
		default:
			v.Index(v.Len() - 1).SetUint(1)
		}
		require.NotContains(t, sums, sumOf(changed), field.Name)
		sums[sumOf(changed)] = field.Name
	}
}
