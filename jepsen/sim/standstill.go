package sim

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// standLook is how often, in real time, it is looked whether virtual time goes on.
	standLook = time.Second
	// standLooks is how many looks may find it where it was. Looks are counted, not time: a machine
	// that was suspended makes none.
	standLooks = 180
	// standBeat is how often, in virtual time, it is shown that time goes on: on a machine with much else to do
	// and a slow disk a second of it can take a minute.
	standBeat = 50 * time.Millisecond
)

// standstill is a watch over a bubble from outside of it. Limits in virtual time don't end a run in which
// virtual time stands: something spins, or waits for a mutex whose owner waits for something else.
type standstill struct {
	every  time.Duration // of real time, between two looks
	looks  int           // so many that find no change are too many
	giveUp func(why string)
	beats  atomic.Int64 // of virtual time
	sim    atomic.Pointer[Sim]
}

func newStandstill(t *testing.T) *standstill {
	return &standstill{every: standLook, looks: standLooks, giveUp: func(why string) {
		panic(t.Name() + ": " + why)
	}}
}

// watch looks until it is told to end.
func (w *standstill) watch() (end func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(w.every)
		defer tick.Stop()
		for last, same := int64(-1), 0; same <= w.looks; same++ {
			if now := w.beats.Load(); now != last {
				last, same = now, 0
			}
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
		w.giveUp(w.why())
	}()
	return func() {
		close(over)
		<-ended
	}
}

func (w *standstill) why() string {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	s := w.sim.Load()
	if s == nil {
		return fmt.Sprintf("sim: the run did not begin\n%s", stacks)
	}
	return fmt.Sprintf("sim: virtual time stands, for %v of real time (seed %d): something spins, or waits for a mutex "+
		"whose owner waits for something else; look for both among the stacks of its bubble\n%s\n%s",
		time.Duration(w.looks)*w.every, s.Seed, s.Trace, stacks)
}

// beat shows from within the bubble that time goes on there.
func (w *standstill) beat(s *Sim) (end func()) {
	w.sim.Store(s)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(standBeat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.beats.Add(1)
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}
