//go:build !linux && !darwin

package clock

// System is Runtime on this system: suspend is *not* covered. A client whose
// machine slept may, for a moment after waking, believe in a lease that is
// over; storage that checks tokens is what protects it. Servers lose nothing,
// since a leader's clock may always be slow.
func System() Source { return Runtime() }
