package sim

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"zamok/fsm"
)

// resourceCounts is what there is at one moment, counted by what each thing is.
type resourceCounts map[string]int

// countResources counts what a run has: what the machines know, its goroutines, connections and descriptors, and the
// objects that live, by the place that made them. The simulation's own objects are left out: it remembers
// what it sees. What is under way at this moment is over before.
func (s *Sim) countResources() resourceCounts {
	synctest.Wait()
	c := resourceCounts{}
	for _, n := range s.InitialMembers() {
		n.Running().View(func(m *fsm.Machine) {
			c["sessions at "+n.ID] = m.Counts().Sessions
			c["locks at "+n.ID] = m.Counts().Locks
			c["tickets that wait at "+n.ID] = m.Counts().Waiting
			c["delays at "+n.ID] = m.Counts().Delayed
		})
	}
	c.addGoroutines()
	s.Network.mu.Lock()
	c["listening ports"] = len(s.Network.listeners)
	for route, link := range s.Network.links {
		c["streams from "+route.from+" to "+route.to] = len(link.streams)
	}
	s.Network.mu.Unlock()
	c.addObjects()
	if open, err := openDescriptors(1); err == nil { // where there is such a place
		c["descriptors"] = open
	}
	return c
}

// openDescriptors is how many there are. What was dropped without being closed is closed some time after a
// collection, so the least of several counts is what is kept.
func openDescriptors(samples int) (min int, err error) {
	for i := range samples {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0, err
		}
		if i == 0 || len(open) < min {
			min = len(open)
		}
		runtime.GC()
	}
	return min, nil
}

var bubbleOf = regexp.MustCompile(`^goroutine \d+ \[[^]]*(synctest bubble \d+)`)

// addGoroutines counts those of this bubble by what they were begun for.
func (c resourceCounts) addGoroutines() {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var mine []byte
	for i, one := range bytes.Split(stacks, []byte("\n\n")) {
		bubble := bubbleOf.FindSubmatch(one)
		if i == 0 { // who asks is the first
			mine = bubble[1]
		}
		if bubble == nil || !bytes.Equal(bubble[1], mine) {
			continue
		}
		_, by, _ := strings.Cut(string(one), "created by ")
		by, _, _ = strings.Cut(by, " in goroutine")
		c["goroutines of "+by]++
		c["goroutines"]++
	}
}

// addObjects counts what lives by the function and line that made it; for what a library made, by the place in
// this module that had it do so. The tiniest are left out: several lie in one block, and keep each other.
func (c resourceCounts) addObjects() {
	runtime.GC() // a profile is as of the collection before the last one; pools are empty after two
	runtime.GC()
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<16)
	n, _ := runtime.MemProfile(records, false)
	for _, r := range records[:n] {
		if site, ours := allocationSite(r.Stack()); ours && r.InUseBytes() > tinyObjectBytes*r.InUseObjects() {
			c["objects of "+site] += int(r.InUseObjects())
		}
	}
}

// tinyObjectBytes, in bytes, is below what the runtime gives a place of its own.
const tinyObjectBytes = 16

// allocationSite is the place in this module that made something. Left out is what is kept, but not forever: records
// of waiting goroutines, which the runtime collects; what packages fsm and record encode and decode, as the latest entries
// are in the log and its cache; and what events have, as the latest are in the ring of those who watch.
func allocationSite(stack []uintptr) (site string, ours bool) {
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.acquireSudog",
			strings.HasSuffix(f.File, "/fsm/codec.go"), strings.Contains(f.File, "/session/record/"),
			slices.Contains([]string{"zamok/fsm.(*ticket).setItems", "zamok/fsm.(*Machine).downgrade", "zamok/fsm.(*Machine).refuseTicket"}, f.Function):
			return "", false
		}
		if strings.HasPrefix(f.Function, "zamok/") {
			return fmt.Sprintf("%s:%d", f.Function, f.Line), !strings.HasPrefix(f.Function, "zamok/jepsen/")
		}
		if !more {
			return "", false
		}
	}
}

// growthBetween says what there is more of, by so many at least and of objects twice that and half as many again, at each of the later moments
// than at any of those before.
func growthBetween(before, after []resourceCounts, by int) (found []string) {
	for what := range after[0] {
		most, least := 0, math.MaxInt
		for _, c := range before {
			most = max(most, c[what])
		}
		for _, c := range after {
			least = min(least, c[what])
		}
		need := by
		if strings.HasPrefix(what, "objects") { // maps and pools grow a little, whenever chance has it
			need = 2*by + most/2
		}
		if least-most >= need {
			found = append(found, fmt.Sprintf("%s: %d, and %d before", what, least, most))
		}
	}
	slices.Sort(found)
	return found
}

func TestResourceGrowthIsDetected(t *testing.T) {
	before := []resourceCounts{{"a": 1, "b": 5}, {"a": 2, "b": 5}}
	after := []resourceCounts{{"a": 6, "b": 9, "c": 3}, {"a": 5, "b": 6, "c": 3}}
	assert.Equal(t, []string{"a: 5, and 2 before", "c: 3, and 0 before"}, growthBetween(before, after, 3))
	assert.Empty(t, growthBetween(before, after, 4))
	assert.Empty(t, growthBetween([]resourceCounts{{}}, []resourceCounts{{"objects of x": 5}}, 3))
	assert.NotEmpty(t, growthBetween([]resourceCounts{{}}, []resourceCounts{{"objects of x": 6}}, 3))
}
