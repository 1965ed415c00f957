package overload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
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
	Again                              uint64        // commands that were sent again, on another stream
	AgainMedian, AgainLongest          time.Duration // of these: from the first sending to the answer
	Median                             time.Duration // of the others
	Unanswered                         uint64        // commands
	Lost                               uint64        // sessions that ended before they were closed
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
	var again, waits []time.Duration
	for _, s := range all {
		again, waits = append(again, s.again...), append(waits, s.waits...)
		result.Unanswered += uint64(len(s.inHand))
		if s.lost {
			result.Lost++
		}
	}
	result.Again = uint64(len(again))
	result.AgainMedian, result.AgainLongest = quantile(again, 0.5), quantile(again, 1)
	result.Median = quantile(waits, 0.5)
	return json.NewEncoder(out).Encode(result)
}

// quantile is the value below which a share of all lies; 0 = there are none.
func quantile(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[int(share*float64(len(all)-1))]
}
