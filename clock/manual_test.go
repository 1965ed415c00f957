package clock

import "sync"

// Manual is a Source that moves only by its methods, for tests. The zero value shows
// the zero Instant. It may be used by several goroutines at once.
type Manual struct {
	mu  sync.Mutex
	now Instant // Guarded by mu.
}

// Now shows what was last set.
func (m *Manual) Now() Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Advance lets time pass on both clocks. A negative span makes both go back,
// which no real clock should do and a test may want to see survived.
func (m *Manual) Advance(s Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(s)
}

// Bend lets time pass on the raw clock, and something else on the monotonic one.
func (m *Manual) Bend(raw, mono Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = Instant{mono: m.now.Add(mono).mono, raw: m.now.Add(raw).raw}
}

// Suspend lets time pass as a sleeping machine sees it: the raw clock runs, the
// monotonic one stands.
func (m *Manual) Suspend(s Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.raw = m.now.Add(s).raw
}

// Set puts each clock where the test wants it.
func (m *Manual) Set(mono, raw Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = Instant{mono: mono, raw: raw}
}
