//go:build !linux && !darwin

package clock

// System is Runtime on this system: neither suspend nor a bent clock is covered. A client
// whose machine slept may, for a moment after waking, believe in a lease that is
// over, and one whose clock is slowed by more than 5 % may for longer than that;
// so may clients of a leader whose clock is hurried as much. Storage that checks
// tokens is what protects there.
func System() Source { return Runtime() }
