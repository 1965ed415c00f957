package redsync

import (
	"math"
	"time"

	"zamok/client"
)

// Redsync makes mutexes.
type Redsync struct{ c *client.Client }

// New makes mutexes of the locks of a cluster.
func New(c *client.Client) *Redsync { return &Redsync{c: c} }

// NewMutex makes a mutex of a lock. It does nothing on the network.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{c: r.c, name: name, tries: 32, delay: 150 * time.Millisecond}
	for _, o := range options {
		o.Apply(m)
	}
	return m
}

// Option configures a mutex.
type Option interface{ Apply(*Mutex) }

// OptionFunc is a function that configures a mutex.
type OptionFunc func(*Mutex)

// Apply calls f.
func (f OptionFunc) Apply(m *Mutex) { f(m) }

// WithTries is how often redsync would try. Lock waits as long as that takes; with 1 it does not
// wait.
func WithTries(tries int) Option { return OptionFunc(func(m *Mutex) { m.tries = tries }) }

// WithRetryDelay is how long redsync would pause between two tries.
func WithRetryDelay(delay time.Duration) Option {
	return OptionFunc(func(m *Mutex) { m.delay = delay })
}

// WithOptions gives options of the client to each acquisition.
func WithOptions(options ...client.Option) Option {
	return OptionFunc(func(m *Mutex) { m.options = append(m.options, options...) })
}

// waitLimit is how long all tries would take.
func (m *Mutex) waitLimit() time.Duration {
	return time.Duration(min(float64(m.tries-1)*float64(m.delay), math.MaxInt64/2))
}
