package sim

import "time"

const (
	// retransmitTimeout is how much later a segment arrives that was lost once.
	retransmitTimeout = 200 * time.Millisecond
	// passesMax is how much is sent at once and passes a black hole: a node's heartbeats and votes do.
	passesMax = 1400
)

// Lose loses segments in these directions, so probably; they are sent again. 0 = none.
func (n *Network) Lose(probability float64, routes ...route) {
	n.changeLinks(routes, func(l *link) { l.loss = probability })
}

// BlackHole loses what is large in these directions, as where a part of the way takes only smaller
// packets and does not say so. What follows on the same connection does not arrive either.
func (n *Network) BlackHole(routes ...route) {
	n.changeLinks(routes, func(l *link) { l.blackHole = true })
}

// FillBlackHole undoes BlackHole. What was lost arrives a moment later, in order.
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

// lose returns when a segment arrives that would arrive at a time if none were lost. The caller
// holds the lock.
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
