package sim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"zamok/client"
	"zamok/clock"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

const (
	// webKeyedHost runs a program whose acquisitions have an Idempotency-Key, webPlainHost one
	// whose acquisitions have none, and webHoldHost one that holds locks by connections.
	webKeyedHost, webPlainHost, webHoldHost = "h1", "h2", "h3"

	webTTL = 5 * time.Second
	// webPoll is how long one answer to an acquisition with a key may take.
	webPoll = time.Second
	// webHoldsMax is for how many tenths of a second a lock is held at most.
	webHoldsMax = 40
)

// webHosts run the programs that use HTTP.
var webHosts = []string{webKeyedHost, webPlainHost, webHoldHost}

// webProgram uses HTTP, without package client. It sends each request to a random node, leader or
// not.
type webProgram struct {
	*Load
	*rand.Rand
	host  string
	clock *Clock
	stack *Stack
	http  http.Client
}

// webDuration is a span of time in JSON.
type webDuration time.Duration

func (d *webDuration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = webDuration(v)
	return err
}

// webAnswer is what the program reads of answers and events.
type webAnswer struct {
	State    string       `json:"state"`
	Session  uint64       `json:"session,string"`
	Token    uint64       `json:"token,string"`
	ValidFor *webDuration `json:"valid_for"`
	Reason   string       `json:"reason"`
	Outcome  string       `json:"outcome"` // of an error
	Message  string       `json:"message"`
	Held     bool         `json:"held"`
	Stamp    struct {
		Term  uint64      `json:"term,string"`
		Index uint64      `json:"index,string"`
		Time  webDuration `json:"time"`
	} `json:"stamp"`

	status int
	text   []byte        // the whole body
	sent   clock.Instant // when the request was sent
	sentAt time.Duration // the same, as histories have it
}

// certainUntil is until when the lock is certain by the program's clock. The answer's valid_for
// counts from the moment at which the request was sent.
func (a *webAnswer) certainUntil() clock.Instant {
	if a.ValidFor == nil {
		return a.sent
	}
	return a.sent.Add(clock.FromDuration(time.Duration(*a.ValidFor)))
}

// errWebUnknown is an answer, or none, that leaves the outcome open.
var errWebUnknown = fmt.Errorf("the outcome is open: %w", client.ErrUnavailable)

// runWebPrograms runs them until the load ends. Their last calls must succeed.
func (l *Load) runWebPrograms() {
	for host, step := range map[string]func(*webProgram){
		webKeyedHost: (*webProgram).lockWithKey,
		webPlainHost: (*webProgram).lockWithoutKey,
		webHoldHost:  (*webProgram).hold,
	} {
		w := &webProgram{
			Load: l, Rand: l.Random("program " + host), host: host,
			clock: newClock(l.rateOf(host)), stack: l.Network.NewStack(host),
		}
		w.http.Transport = &http.Transport{
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				return w.stack.Dial(ctx, address)
			},
			// A connection without an answer is given up by the request's context.
			IdleConnTimeout: time.Minute,
		}
		l.web = append(l.web, w)
		l.background = append(l.background, background(func(context.Context) {
			for l.ending.Err() == nil {
				step(w)
				w.think()
			}
			for until := time.Now().Add(drainMax); !w.now() && time.Now().Before(until); w.think() {
			}
			w.stack.CloseAll()
			w.http.CloseIdleConnections()
		}))
	}
}

// acquisition is the record of a call that acquires a mutex.
func (w *webProgram) acquisition(name string) check.Op {
	items := []check.Item{{Name: name, Mode: check.Exclusive}}
	return check.Op{Client: w.host, Kind: check.OpLock, Items: items}
}

// startHold records that the program holds what a call acquired.
func (w *webProgram) startHold(op *check.Op) *workload.Hold {
	return w.record.StartHold(check.Hold{
		Client: op.Client, Ref: op.Ref, Token: op.Token, Items: op.Items,
	})
}

// write writes to what the held lock guards.
func (w *webProgram) write(h *workload.Hold) {
	_ = w.record.resource.Write(check.Write{
		Resource: h.Items[0].Name, Client: w.host, Token: h.Token,
	}, nil)
}

func (w *webProgram) think() { time.Sleep(workload.UpTo(w.Rand, w.pace)) }

func (w *webProgram) randomNode() string {
	nodes := w.InitialMembers()
	return nodes[w.IntN(len(nodes))].Host
}

// request makes a request to a node, with a body of JSON or without one.
func (w *webProgram) request(
	ctx context.Context, node, method, path, key string, body []byte,
) (*http.Response, error) {
	address := "http://" + node + ":" + httpPort + path
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return w.http.Do(r)
}

// call makes a request and reads the answer. Without an answer the error is errWebUnknown.
func (w *webProgram) call(
	within time.Duration, method, path, key string, body []byte,
) (*webAnswer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	a := &webAnswer{sent: w.clock.Now(), sentAt: w.historyTime()}
	node := w.randomNode()
	defer w.rare.watchRelay(w.Sim, node)()
	response, err := w.request(ctx, node, method, path, key, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWebUnknown, err)
	}
	defer response.Body.Close()
	a.status = response.StatusCode
	if a.text, err = io.ReadAll(response.Body); err == nil {
		err = json.Unmarshal(a.text, a)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWebUnknown, err)
	}
	return a, nil
}

// err is nil for an answer 2xx. Whether an error means that nothing was done is what its body says.
func (a *webAnswer) err() error {
	switch {
	case a.status < 300:
		return nil
	case a.Outcome == "not_done":
		return fmt.Errorf("%d: %s", a.status, a.Message)
	}
	return fmt.Errorf("%w: %d: %s", errWebUnknown, a.status, a.Message)
}

func (w *webProgram) now() bool {
	return w.record.Call(check.Op{Client: w.host, Kind: check.OpNow}, func(op *check.Op) error {
		a, err := w.call(callTimeout, http.MethodGet, "/v1/now", "", nil)
		if err != nil {
			return err
		}
		var at struct {
			Term  uint64      `json:"term,string"`
			Index uint64      `json:"index,string"`
			Time  webDuration `json:"time"`
		}
		err = json.Unmarshal(a.text, &at)
		op.Term, op.Index, op.Time = at.Term, at.Index, time.Duration(at.Time)
		return cmp.Or(a.err(), err)
	}) == nil
}

// webGrant is a lock that the program holds.
type webGrant struct {
	*workload.Hold
	body  []byte        // of requests about it
	until clock.Instant // until then it is certain
}

func (w *webProgram) certain(g *webGrant) bool { return !w.clock.Now().Reached(g.until) }

// left is how long the lock is certain, less what the program's clock may be slow. It bounds what
// the program does without a look at its clock.
func (w *webProgram) left(g *webGrant) time.Duration {
	return max(g.until.Since(w.clock.Now()).Duration()*9/10, 0)
}

func (w *webProgram) lockWithKey() {
	// The key is as random as it must be, and the same in a run with the same seed.
	w.lock(fmt.Sprintf("%016x%016x", w.Uint64(), w.Uint64()))
}

func (w *webProgram) lockWithoutKey() { w.lock("") }

// lock acquires a lock, writes under it, renews, checks and releases it.
func (w *webProgram) lock(key string) {
	name := randomMutex(w.Rand)
	request := map[string]any{
		"name": name, "ttl": webTTL.String(), "label": w.host,
		"wait": workload.UpTo(w.Rand, waitMax).String(),
	}
	within := waitMax + callTimeout
	if key != "" {
		request["poll"], within = webPoll.String(), webPoll+callTimeout
	}
	body, err := json.Marshal(request)
	if err != nil {
		w.Fatal(err)
	}
	op := w.acquisition(name)
	var g *webGrant
	_ = w.record.Call(op, func(op *check.Op) error {
		a, err := w.acquire(within, key, body)
		if err != nil {
			return err
		}
		op.Ref, op.Token = check.Ref{Session: a.Session, Ticket: 1}, a.Token
		g = &webGrant{body: a.text, until: a.certainUntil()}
		if !w.certain(g) {
			op.Ref, op.Token = check.Ref{}, 0
			return fmt.Errorf("answered too late: %w", client.ErrUnavailable)
		}
		g.Hold = w.startHold(op)
		return nil
	})
	switch {
	case g == nil:
		return
	case g.Hold == nil:
		_ = w.release(g)
		return
	}
	for n := w.IntN(webHoldsMax); n > 0 && w.certain(g); n-- {
		w.write(g.Hold)
		time.Sleep(min(w.left(g), 100*time.Millisecond))
		switch again := w.IntN(8); {
		case key != "" && again == 0:
			w.acquireAgain(g, key, body)
		case again == 1 && !w.renew(g):
			return
		}
	}
	if w.IntN(3) == 0 {
		w.check(g)
	}
	if !w.certain(g) {
		g.Finish(check.Lost, "")
		_ = w.release(g)
		return
	}
	g.Finish(check.Unlocked, "")
	op.Kind, op.Ref = check.OpUnlock, g.Ref
	_ = w.record.Call(op, func(*check.Op) error { return w.release(g) })
}

// acquire sends an acquisition. With a key it is sent again, unchanged and to another node, until
// its outcome is known.
func (w *webProgram) acquire(
	within time.Duration, key string, body []byte,
) (a *webAnswer, err error) {
	for until := time.Now().Add(drainMax / 2); ; w.think() {
		a, err = w.call(within, http.MethodPost, "/v1/acquire", key, body)
		if err == nil {
			err = a.err()
		}
		switch {
		case err == nil && a.State == "granted":
			if key != "" {
				ref := check.Ref{Session: a.Session, Ticket: 1}
				w.rare.add(&w.rare.keyed, spanOf{Ref: ref, from: a.sentAt - historyBegin})
			}
			return a, nil
		case key == "" || err != nil && !errors.Is(err, errWebUnknown):
			// 410: it was granted and lost between two requests.
			if a != nil && a.status == http.StatusGone {
				err = fmt.Errorf("%w: %w", errWebUnknown, err)
			}
			return nil, err
		case time.Now().After(until):
			return nil, cmp.Or(err, errWebUnknown)
		}
	}
}

// acquireAgain sends an acquisition again that was answered, as a program does that lost the
// answer. While the lock is certain, a second grant has the session and the token of the first one.
func (w *webProgram) acquireAgain(g *webGrant, key string, body []byte) {
	a, err := w.call(min(w.left(g), webPoll+callTimeout), http.MethodPost, "/v1/acquire", key, body)
	if err != nil || a.err() != nil || a.State != "granted" || !w.certain(g) {
		return // it may have ended by force
	}
	w.rare.add(&w.rare.keyed, spanOf{Ref: g.Ref, from: a.sentAt - historyBegin})
	if a.Session != g.Session || a.Token != g.Token {
		w.Audit.Violation(
			"%s was granted session %d, token %d, and by the same key session %d, token %d",
			w.host, g.Session, g.Token, a.Session, a.Token)
	}
	g.confirm(w, a)
}

// confirm notes that the session was renewed.
func (g *webGrant) confirm(w *webProgram, a *webAnswer) {
	g.until = a.certainUntil()
	w.record.put(check.Record{Renewal: &check.Renewal{
		Session: g.Session, Sent: a.sentAt, Confirmed: w.historyTime(),
	}})
}

// renew renews a lock. It returns false if the lock is lost.
func (w *webProgram) renew(g *webGrant) bool {
	a, err := w.call(min(w.left(g), callTimeout), http.MethodPost, "/v1/renew", "", g.body)
	switch {
	case !w.certain(g): // perhaps before the answer
		g.Finish(check.Lost, "")
		_ = w.release(g)
		return false
	case err == nil && a.status == http.StatusGone:
		g.Finish(check.Lost, a.Reason)
		return false
	case err == nil && a.err() == nil:
		g.confirm(w, a)
	}
	return true
}

func (w *webProgram) check(g *webGrant) {
	op := check.Op{Client: w.host, Kind: check.OpCheck, Ref: g.Ref, Items: g.Items, Token: g.Token}
	_ = w.record.Call(op, func(op *check.Op) error {
		// within its lease, after which it is no holder
		path := fmt.Sprintf("/v1/check?name=%s&token=%d&session=%d",
			url.QueryEscape(op.Items[0].Name), op.Token, op.Session)
		a, err := w.call(min(w.left(g), callTimeout), http.MethodGet, path, "", nil)
		if err != nil {
			return err
		}
		op.Held = a.Held
		op.Term, op.Index, op.Time = a.Stamp.Term, a.Stamp.Index, time.Duration(a.Stamp.Time)
		return a.err()
	})
}

// release releases a lock, and repeats that until it is answered.
func (w *webProgram) release(g *webGrant) (err error) {
	for until := time.Now().Add(drainMax); time.Now().Before(until); w.think() {
		var a *webAnswer
		if a, err = w.call(callTimeout, http.MethodPost, "/v1/release", "", g.body); err != nil {
			continue
		}
		switch err = a.err(); {
		case a.status == http.StatusGone,
			err == nil && a.Reason != "dropped" && a.Reason != "closed":
			return errNotHeld
		case err == nil:
			return nil
		}
	}
	return err
}
