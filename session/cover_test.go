package session

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/fsm/record"
)

// A field that the record does not have is lost in a restore, and one in which nodes may differ
// unnoticed.
func TestRecordHasEveryField(t *testing.T) {
	recordOf := func(s Session) string {
		w := record.NewWriter(nil)
		s.Code(&w)
		return string(w.Bytes())
	}
	var zero Session
	records := map[string]string{recordOf(zero): "as it is"}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Session]()) {
		if field.Anonymous || field.Name == "Live" || field.Name == "Scheduled" {
			continue // the last two are derived
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
		require.NotContains(t, records, recordOf(changed), field.Name)
		records[recordOf(changed)] = field.Name
	}
}
