package aggregate

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const every = 9500 * time.Millisecond

// emitted is a counter and what it has emitted.
func emitted(most int) (*Counter[string, int], func() []string) {
	var mu sync.Mutex
	var lines []string
	t := New(every, most, func(key string, c Count[int]) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprint(key, " ", c.N, " ", c.First, "-", c.Last))
	})
	return t, func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		taken := lines
		lines = nil
		return taken
	}
}

// TestEachIsEmittedOnce: nothing is emitted before its time, and each addition is in exactly one
// count.
func TestEachIsEmittedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, taken := emitted(2)
		for i := range 30 { // one a second
			counts.Add([]string{"b", "a"}[i%2], "rest", i)
			time.Sleep(time.Second)
		}
		assert.Equal(t, []string{"b 5 0-8", "a 5 1-9", "b 5 10-18", "a 5 11-19", "b 5 20-28",
			"a 5 21-29"}, taken())
		time.Sleep(time.Hour)
		assert.Empty(t, taken())
		counts.Add("a", "rest", 7)
		time.Sleep(every - 1)
		assert.Empty(t, taken())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, []string{"a 1 7-7"}, taken())
	})
}

// TestKeysAreBounded: what has no room is counted as the rest.
func TestKeysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, taken := emitted(2)
		for i := range 1000 {
			counts.Add(fmt.Sprint("key", i), "rest", i)
			counts.Add("key1", "rest", i)
			counts.mu.Lock()
			require.LessOrEqual(t, len(counts.counts), 3)
			counts.mu.Unlock()
		}
		time.Sleep(every)
		assert.Equal(t, []string{"key0 1 0-0", "key1 1001 0-999", "rest 998 2-999"}, taken())
	})
}

// TestStopEmitsTheRest: and nothing follows.
func TestStopEmitsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, taken := emitted(2)
		counts.Add("a", "rest", 1)
		counts.Stop()
		assert.Equal(t, []string{"a 1 1-1"}, taken())
		counts.Add("a", "rest", 2)
		counts.Stop()
		time.Sleep(time.Minute)
		assert.Empty(t, taken())
	})
}
