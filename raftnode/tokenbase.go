package raftnode

import (
	"math/rand/v2"
	"time"
)

const (
	// tokenShift: a history has 2²⁰ tokens for each second of its life.
	tokenShift = 20
	// startJitterMax is the time in which a history that is made now begins. Two that are made at one moment begin at
	// different ones of 2¹⁸ moments. A new cluster needs as long until it has a leader, with the default election
	// timeout; Restore waits.
	startJitterMax = time.Second / 4
)

// TokenClock draws the moment at which a history that is made now begins, and returns it on the scale of
// tokens as well, for fsm.TokenBase: 2²⁰ for each second since 1970, so that it is above the tokens of every
// history that began before by the same clock, and issued no more than that.
//
// The history must issue nothing before that moment. A later history is then above everything that this one has issued
// until then; the operator must make sure that this one issues nothing more. Two that are made at one moment, on one
// machine or two, are some ten thousand tokens apart.
func TokenClock(now time.Time) (tokens uint64, begins time.Time) {
	begins = now.Add(rand.N(startJitterMax))
	seconds := begins.Unix()
	if seconds < 0 {
		return 1, begins // a clock that was never set
	}
	fraction := uint64(begins.Nanosecond()) << tokenShift / uint64(time.Second)
	return uint64(seconds)<<tokenShift + fraction, begins
}
