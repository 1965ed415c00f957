package gate

import (
	"errors"

	"zamok/api/wire"
)

// outcome is the error of a call as its caller may take it (wire.OfRetransmission). The leader has
// decided that of a call that was relayed to it. Refusals in the log are remembered there: see
// (*Acquire).execute in package fsm.
func outcome(from Arrival, d *Request, err error) error {
	if e := (*wire.Error)(nil); d.known != nil && errors.As(err, &e) {
		return wire.OfRetransmission(e, from.First)
	}
	return err
}
