package sim

import "time"

// Cut lets nothing pass from one host to the other. The other direction is not touched.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.link(from, to); l.cutAt.IsZero() {
		l.cutAt = time.Now()
	}
}

// Heal undoes Cut. What was held back arrives a moment later, in order.
func (n *Network) Heal(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heal(n.link(from, to))
}

func (n *Network) heal(l *link) {
	if l.cutAt.IsZero() {
		return
	}
	resent := time.Now().Add(n.transmissionTime(l) + time.Duration(n.rand.Int64N(int64(retransmitDelayMax))))
	for s := range l.streams {
		s.delayRetransmitted(l.cutAt, resent)
	}
	l.cutAt = time.Time{}
}

// SetDelay sets how long bytes take from one host to the other: at least delay, up to spread more.
func (n *Network) SetDelay(from, to string, delay, spread time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(from, to)
	l.delay, l.spread = delay, spread
}

// LimitRate sets how many bytes a second one connection takes from one host to the other; 0 = any.
func (n *Network) LimitRate(from, to string, perSecond int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).bytesPerSecond = perSecond
}

// HealAll makes every link as it was at the beginning.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		n.heal(l)
		l.delay, l.spread, l.bytesPerSecond = delayMin, delaySpread, 0
	}
}

// Isolate cuts a host off from all others, both ways.
func (n *Network) Isolate(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.hosts {
		if other == host {
			continue
		}
		for _, l := range []*link{n.link(host, other), n.link(other, host)} {
			if l.cutAt.IsZero() {
				l.cutAt = time.Now()
			}
		}
	}
}
