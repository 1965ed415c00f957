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

// clientsSpec is the task of the process of the clients. Rate is in cycles a second; with 0 the
// loop is closed, with AtOnce cycles of each session at the same time. The sessions are opened at
// the first endpoint that leads.
type clientsSpec struct {
	Endpoints []string
	Rate      float64
	AtOnce    int
	Window    time.Duration
}

// clientsResult is the result of the window. Unsent cycles were due, but the connections did not
// accept them.
type clientsResult struct {
	Due, Sent, Refused, Cycles, Unsent uint64
	// commands that were sent again, on another stream
	Resent uint64
	// of these: from the first sending to the answer
	ResentMedian, ResentLongest time.Duration
	Median                      time.Duration // of the others
	Unanswered                  uint64        // commands
	Lost                        uint64        // sessions that ended before they were closed
	Seconds                     float64
}

// RunClients is the process of the clients. It prints "ready" when its sessions are open, begins at
// the next line of its input, and prints its result.
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
	var resent, times []time.Duration
	for _, s := range all {
		resent, times = append(resent, s.resent...), append(times, s.times...)
		result.Unanswered += uint64(len(s.inFlight))
		if s.lost {
			result.Lost++
		}
	}
	result.Resent = uint64(len(resent))
	result.ResentMedian, result.ResentLongest = quantile(resent, 0.5), quantile(resent, 1)
	result.Median = quantile(times, 0.5)
	return json.NewEncoder(out).Encode(result)
}

// quantile is the value below which this part of all values lies; 0 if there are none.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[int(q*float64(len(all)-1))]
}
