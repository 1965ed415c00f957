package overload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	sessions     = 128
	drainTimeout = 30 * time.Second
)

// clientsSpec is what the process of the clients is asked to do. Rate is in cycles a second; with 0 the loop is closed,
// and AtOnce cycles of each session are under way. The sessions are opened at the first of the endpoints that leads.
type clientsSpec struct {
	Endpoints []string
	Rate      float64
	AtOnce    int
	Window    time.Duration
}

// clientsResult is the result of the window. Unsent cycles were due, and the connections did not take them.
type clientsResult struct {
	Due, Sent, Refused, Cycles, Unsent uint64
	Again                              uint64 // commands sent again on another stream, or never answered, until the end
	Late                               uint64 // of these, those whose answer did not come within answerMax of the first sending
	Lost                               uint64 // sessions that ended before they were closed
	Seconds                            float64
}

// RunClients is the process of the clients. It says "ready" when its sessions are open, begins at the next line of its
// input, and prints its result.
func RunClients(ctx context.Context, spec string, in io.Reader, out io.Writer) error {
	c := clientsSpec{}
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*session
	for i := range sessions {
		s := newSession(ctx, &c, i)
		if err := s.follow(nil); err != nil {
			return err
		}
		all = append(all, s)
	}
	if _, err := fmt.Fprintln(out, readyMessage); err != nil {
		return err
	}
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return err
	}
	began := time.Now()
	var running sync.WaitGroup
	for _, s := range all {
		running.Go(func() { s.run(began) })
	}
	time.Sleep(c.Window)
	result := clientsResult{Seconds: time.Since(began).Seconds()}
	for _, s := range all {
		s.stop.Store(true)
		result.Sent += s.sent.Load()
		result.Refused += s.refused.Load()
		result.Cycles += s.cycles.Load()
	}
	if c.Rate > 0 {
		result.Due = uint64(c.Rate * result.Seconds)
		result.Unsent = result.Due - min(result.Due, result.Sent)
	}
	time.AfterFunc(drainTimeout, cancel)
	running.Wait()
	for _, s := range all {
		unanswered := uint64(len(s.inHand))
		result.Again += s.again + unanswered
		result.Late += s.late + unanswered
		if s.lost {
			result.Lost++
		}
	}
	return json.NewEncoder(out).Encode(result)
}
