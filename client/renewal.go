package client

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"zamok/clock"
)

const (
	// checkEvery is how often the clocks are read while a lock is held; they are read once more at
	// a deadline. A timer for the deadline alone is not enough, because timers stop while the
	// machine is suspended, and are late while its clock is slowed. Periodic reads alone are not
	// enough either, because they may be later than the margin allows.
	checkEvery   = 100 * clock.Millisecond
	checkIdleMax = clock.Second // between reads when nothing is held

	renewals = 3  // in a ttl; 2 while nothing is held
	retries  = 12 // in a ttl, while a renewal has no answer
	// A stream is closed if it receives nothing for a part of the ttl after something was sent.
	// These are the bounds of that part.
	silenceParts = 6
	silenceMin   = 300 * clock.Millisecond
	silenceMax   = 2500 * clock.Millisecond
	// retryAfter is the delay before a message is sent again that the leader could not accept.
	retryAfter = 100 * time.Millisecond
	// limitDelayMax is the longest delay after a limit was exceeded, unless the node says a longer
	// one. These delays are logged every limitLogEvery.
	limitDelayMax = 2 * time.Second
	limitLogEvery = 10 * clock.Second
)

// renewalLoop checks the clocks until the session ends: for deadlines that have passed and renewals
// that are due.
func (s *session) renewalLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.kick:
		case <-s.ctx.Done():
			return
		}
		timer.Reset(s.renewalTick().Timer())
	}
}

// renewalTick does what is due, and returns the time until its next call.
func (s *session) renewalTick() (rest clock.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.c.clock.Now()
	defer func() { s.checksNext = now.Add(rest) }()
	left := s.checkDeadlines(now)
	rest = min(max(s.ttl/retries, checkEvery), checkIdleMax)
	if s.heldCount > 0 {
		rest = min(checkEvery, left)
	}
	if s.stream == nil {
		return rest
	}
	if s.c.nodes.relayUnneeded(s.stream.node) {
		s.stream.cancel(errRelayUnneeded)
	}
	span := s.renewSpan
	if s.heldCount == 0 {
		span += span / 2
	}
	due := s.confirmed.Add(span).Later(s.sent.Add(s.ttl / retries))
	if now.Reached(due) {
		s.keepAliveDue = true
		signal(s.wake)
	} else {
		rest = min(rest, now.Until(due))
	}
	if silenceLimit := min(max(s.ttl/silenceParts, silenceMin), silenceMax); s.silent {
		switch {
		case now.Reached(s.silentAt.Add(silenceLimit)):
			s.stream.cancel(errSilent)
		case now.Reached(s.silentAt.Add(silenceLimit/2)) && !s.probed:
			// Not every answer is a confirmation, and an answer may take long. So probe the stream:
			// the leader acknowledges a KeepAlive at once if something before it has no answer yet.
			s.probed, s.keepAliveDue = true, true
			signal(s.wake)
			s.c.running.Go(s.c.nodes.connectAll) // for the stream at another node
			fallthrough
		default:
			rest = min(rest, silenceLimit/4)
		}
	}
	return rest
}

// checkDeadlines marks every handle as lost whose deadline has passed, and returns the time to the
// next deadline. Every method of a handle calls it.
func (s *session) checkDeadlines(now clock.Instant) (left clock.Span) {
	if s.heldCount == 0 {
		return 0
	}
	if !s.lease.Valid(now) {
		for _, t := range s.tickets {
			t.lose(errLeaseUnconfirmed)
		}
		return 0
	}
	until, _ := s.lease.Until()
	left = now.Until(until)
	for t := range s.holds {
		switch {
		case t.state != ticketHeld:
		case now.Reached(t.holdEnd):
			t.lose(&Error{Kind: ErrMaxHoldExceeded, Outcome: Done, Reason: "max_hold_exceeded"})
		default:
			left = min(left, now.Until(t.holdEnd))
		}
	}
	return left
}

// confirmRenewal applies a confirmation: the answer to a frame that was sent at an instant. It also
// shows that the stream works.
func (s *session) confirmRenewal(sent []byte, at int64) {
	now := s.c.clock.Now()
	s.silentAt, s.probed = now, false
	if len(sent) != instantBytes { // not an instant of this client: it confirms nothing
		return
	}
	instant := clock.DecodeInstant(binary.BigEndian.Uint64(sent), binary.BigEndian.Uint64(sent[8:]))
	s.checkDeadlines(now) // a lock whose deadline passed meanwhile stays lost
	before := s.lease.Valid(now)
	s.lease.Confirm(clock.Confirmation{Sent: instant, At: clock.Time(at)})
	s.silent = instant != s.sent
	if instant.After(s.confirmed) {
		s.confirmed = instant
		s.drawRenewal()
	}
	for t := range s.holds {
		t.setHoldDeadline()
		t.wantsConfirmation = false
		t.notify() // a grant may be handed over now
	}
	if !before && s.lease.Valid(now) {
		// grants that arrived while the lease was not considered valid may be handed over now
		for _, t := range s.tickets {
			if t.state == ticketGranted {
				t.notify()
			}
		}
	}
}

// drawRenewal draws the time to the next renewal: a third of the ttl, plus or minus a tenth, so
// that sessions which began together do not renew together.
func (s *session) drawRenewal() {
	third := s.ttl / renewals
	s.renewSpan = third - third/10 + clock.Span(rand.Int64N(int64(third/5)))
}

const instantBytes = 16

func encodeInstant(i clock.Instant) []byte {
	mono, raw := i.Encode()
	b := binary.BigEndian.AppendUint64(make([]byte, 0, instantBytes), mono)
	return binary.BigEndian.AppendUint64(b, raw)
}
