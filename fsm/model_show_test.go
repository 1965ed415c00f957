package fsm_test

import (
	"fmt"
	"reflect"
	"strings"

	"zamok/clock"
	"zamok/fsm"
)

// show prints a value as Go would write it, without its zero fields.
func show(v any) string {
	var b strings.Builder
	showInto(&b, reflect.ValueOf(v))
	return b.String()
}

// showAt prints one of a list, or says that there is none.
func showAt[T any](list []T, i int) string {
	if i >= len(list) {
		return "nothing"
	}
	return show(list[i])
}

func showInto(b *strings.Builder, v reflect.Value) {
	if name := symbolicName(v.Interface()); name != "" {
		b.WriteString(name)
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteString("nil")
			return
		}
		if v.Kind() == reflect.Pointer {
			b.WriteByte('&')
		}
		showInto(b, v.Elem())
	case reflect.Struct:
		fmt.Fprintf(b, "%s{", v.Type().Name())
		separator := ""
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !v.Field(i).IsZero() {
				fmt.Fprintf(b, "%s%s: ", separator, f.Name)
				showInto(b, v.Field(i))
				separator = ", "
			}
		}
		b.WriteByte('}')
	case reflect.Array: // of bytes: hashes and ids, which differ in the first here
		fmt.Fprintf(b, "{%d}", v.Index(0).Uint())
	case reflect.Slice:
		b.WriteByte('{')
		for i := range v.Len() {
			if i > 0 {
				b.WriteString(", ")
			}
			showInto(b, v.Index(i))
		}
		b.WriteByte('}')
	case reflect.String:
		if v.Len() > 40 {
			fmt.Fprintf(b, "text(%d)", v.Len())
		} else {
			fmt.Fprintf(b, "%q", v.String())
		}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		fmt.Fprintf(b, "%d", v.Uint())
	case reflect.Int64:
		fmt.Fprintf(b, "%d", v.Int())
	default:
		fmt.Fprintf(b, "%v", v.Interface())
	}
}

// symbolicName is a name for a value that has one.
func symbolicName(v any) string {
	named := func(names []string, at int) string {
		if at < len(names) {
			return names[at]
		}
		return ""
	}
	switch v := v.(type) {
	case fsm.Code:
		return named(codeNames[:], int(v))
	case fsm.Reason:
		return named(reasonNames[:], int(v))
	case fsm.EventKind:
		return named(eventNames[:], int(v))
	case fsm.State:
		return named(stateNames[:], int(v))
	case fsm.Mode:
		return named(modeNames[:], int(v))
	case clock.Time:
		return v.String()
	case clock.Span:
		return v.String()
	default:
		return ""
	}
}

var codeNames = [...]string{
	"OK", "Invalid", "NoSession", "WrongSecret", "NotAcquired", "Deadlock", "OwnerWaits",
	"LockKindMismatch", "LimitExceeded",
	"NotHeld", "TicketEnded", "Superseded", "OtherVersion",
}

var eventNames = [...]string{
	"", "EvAttached", "EvGranted", "EvRefused", "EvLost", "EvReleased", "EvDowngraded",
	"EvSessionEnded", "EvQueueChanged",
	"EvEpochStarted", "EvUpgraded", "EvDigestReported",
}

var reasonNames = [...]string{
	"", "Dropped", "Closed", "Expired", "Disconnected", "ExpiredByOperator", "ForceReleased",
	"MaxHoldExceeded", "WaitTimeout", "TryFailed",
	"Deadlocked", "OwnerBusy", "KindMismatch", "TooMany", "Restored",
}

var (
	stateNames = [...]string{"", "Waiting", "Granted", "Ended"}
	modeNames  = [...]string{"", "Exclusive", "Shared", "Permits"}
)
