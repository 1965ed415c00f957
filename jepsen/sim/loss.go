package sim

import "time"

const (
	// retransmitTimeout is how much later a segment arrives that is lost once.
	retransmitTimeout = 200 * time.Millisecond
	// passesMax is the size of the largest write that passes a black hole: heartbeats and votes do.
	passesMax = 1400
)

// Lose loses segments on these routes with this probability; they are sent again.
func (n *Network) Lose(probability float64, routes ...route) {
	n.changeLinks(routes, func(l *link) { l.loss = probability })
}

// BlackHole loses large writes on these routes, as a path that silently drops large packets. Later
// writes on the same connection do not arrive either.
func (n *Network) BlackHole(routes ...route) {
	n.changeLinks(routes, func(l *link) { l.blackHole = true })
}

// FillBlackHole undoes BlackHole. The lost writes arrive a moment later, in order.
func (n *Network) FillBlackHole(routes ...route) { n.changeLinks(routes, n.fillHole) }

func (n *Network) fillHole(l *link) {
	l.blackHole = false
	resent := time.Now().Add(n.transmissionTime(l) + retransmitTimeout)
	for s := range l.streams {
		if !s.lostFrom.IsZero() {
			s.delayRetransmitted(s.lostFrom.Add(-1), resent)
			s.lostFrom = time.Time{}
		}
	}
}

// delayRetransmitted lets segments that a cut held back arrive at a later time.
func (s *stream) delayRetransmitted(cutAt, resent time.Time) {
	for i := range s.segments {
		if s.segments[i].at.After(cutAt) && s.segments[i].at.Before(resent) {
			s.segments[i].at = resent
		}
	}
	s.changed.Broadcast()
}

// lose returns when a segment arrives that would arrive at a time without losses. The caller holds
// the lock.
func (s *stream) lose(data []byte, at time.Time) time.Time {
	for s.link.loss > 0 && s.network.rand.Float64() < s.link.loss {
		at = at.Add(retransmitTimeout)
	}
	if s.link.blackHole && len(data) > passesMax && s.lostFrom.IsZero() {
		at = at.Add(1) // behind all that was sent before
		s.lostFrom = at
	}
	return at
}
