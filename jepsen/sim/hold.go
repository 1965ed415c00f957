package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"zamok/clock"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// webEvent is one event of a stream.
type webEvent struct {
	kind string
	webAnswer
}

// readEvents reads a stream of events until it ends.
func readEvents(body io.Reader, events chan<- webEvent) {
	defer close(events)
	var ev webEvent
	for lines := bufio.NewScanner(body); lines.Scan(); {
		switch field, value, _ := strings.Cut(lines.Text(), ": "); {
		case field == "event":
			ev = webEvent{kind: value}
		case field == "data":
			if json.Unmarshal([]byte(value), &ev) == nil {
				events <- ev
			}
		}
	}
}

// hold holds a lock for as long as a connection lives, and closes the connection, unless a fault or
// the node does before.
func (w *webProgram) hold() {
	name := randomMutex(w.Rand)
	ctx, cancel := context.WithCancel(context.Background())
	query := url.Values{
		"name": {name}, "ttl": {webTTL.String()}, "label": {w.host},
		"wait": {workload.UpTo(w.Rand, waitMax).String()},
	}
	events := make(chan webEvent)
	defer func() {
		cancel()
		for range events { // its reader ends
		}
	}()
	op := w.acquisition(name)
	var h *workload.Hold
	var until clock.Instant
	_ = w.record.Call(op, func(op *check.Op) error {
		timeout := time.AfterFunc(waitMax+callTimeout, cancel)
		defer timeout.Stop()
		path := "/v1/hold?" + query.Encode()
		response, err := w.request(ctx, w.randomNode(), http.MethodGet, path, "", nil)
		if err != nil {
			close(events)
			return fmt.Errorf("%w: %w", errWebUnknown, err)
		}
		if response.StatusCode != http.StatusOK {
			close(events)
			a := webAnswer{status: response.StatusCode}
			_ = json.NewDecoder(response.Body).Decode(&a) // without a body its outcome is open
			_ = response.Body.Close()
			return a.err()
		}
		context.AfterFunc(ctx, func() { _ = response.Body.Close() })
		go readEvents(response.Body, events)
		for ev := range events {
			switch ev.kind {
			case "error":
				ev.status = http.StatusConflict
				return ev.err()
			case "granted":
				op.Ref, op.Token = check.Ref{Session: ev.Session, Ticket: 1}, ev.Token
				until = w.validFromNow(ev)
				h = w.startHold(op)
				return nil
			}
		}
		return errWebUnknown
	})
	if h != nil {
		w.holdUntilEnd(h, until, events)
	}
}

// validFromNow is until when a lock is certain. The valid_for of an event counts from when it was
// sent: the time on its way is far below the margin, except for faults, which excuse this program.
func (w *webProgram) validFromNow(ev webEvent) clock.Instant {
	if ev.ValidFor == nil {
		return w.clock.Now()
	}
	left := time.Duration(*ev.ValidFor)
	return w.clock.Now().Add(clock.FromDuration(left - check.ClockMargin(webTTL)))
}

// holdUntilEnd writes under a lock, until the program has enough of it, it is lost, or its
// connection ends.
func (w *webProgram) holdUntilEnd(h *workload.Hold, until clock.Instant, events <-chan webEvent) {
	closes := time.Now().Add(workload.UpTo(w.Rand, 3*webTTL))
	confirmed := w.Elapsed()
	from := confirmed
	defer func() { w.rare.add(&w.rare.holds, spanOf{h.Ref, from, confirmed}) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(closes) && w.ending.Err() == nil {
		select {
		case ev, open := <-events:
			switch {
			case !open:
				h.Finish(check.Lost, "")
				return
			case ev.kind == "lost":
				h.Finish(check.Lost, ev.lossReason())
				return
			case ev.kind == "heartbeat":
				until, confirmed = w.validFromNow(ev), w.Elapsed()
			}
		case <-tick.C:
			if w.clock.Now().Reached(until) {
				h.Finish(check.Lost, "")
				return
			}
			w.write(h)
		}
	}
	h.Finish(check.Unlocked, "")
}

// lossReason is the reason of a loss if it is one of the log.
func (ev webEvent) lossReason() string {
	switch ev.Reason {
	case "unconfirmed", "node_stopping", "session_ended":
		return ""
	}
	return ev.Reason
}
