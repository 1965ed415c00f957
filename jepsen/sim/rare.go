package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"zamok/fsm"
	"zamok/jepsen/check"
)

// The rare states that long runs count.
const (
	rareKeyedRetry  = "keyed retries answered by another leader than the one that granted"
	rareHold        = "holds over HTTP that outlived a change of leader"
	rareReservation = "reservations that outlived a change of leader"
	rareRelay       = "relayed calls in flight when their leader died"
	rareExpiration  = "expirations of a thousand tickets or more in one entry"
	rareRestore     = "restores while no leader was elected"
)

// rareNames are all of them, in the order in which they are printed.
var rareNames = []string{
	rareKeyedRetry, rareHold, rareReservation, rareRelay, rareExpiration, rareRestore,
}

// manyTickets is how many tickets are many.
const manyTickets = 1000

// rareRecord is what programs note of their calls, to find rare states when a run has ended.
type rareRecord struct {
	mu           sync.Mutex // guards what follows
	keyed        []spanOf   // grants by key: from is when the request was sent that was answered
	holds        []spanOf   // of a connection, until the last heartbeat
	reservations []spanOf   // until the last renewal
	relays       int
	restores     int
}

// spanOf is a time that belongs to a ticket.
type spanOf struct {
	check.Ref
	from, to time.Duration
}

func (r *rareRecord) add(to *[]spanOf, one spanOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, one)
}

// watchRelay is called before a call to a node, and the returned function after it. It counts the
// call if the node does not lead, and the leader's process has ended meanwhile.
func (r *rareRecord) watchRelay(s *Sim, host string) (after func()) {
	leaders := s.Leaders()
	if len(leaders) != 1 || leaders[0].Host == host {
		return func() {}
	}
	p := leaders[0].latest()
	return func() {
		if isClosed(p.stopping) {
			r.mu.Lock()
			r.relays++
			r.mu.Unlock()
		}
	}
}

// counts are how often each rare state occurred.
func (r *rareRecord) counts(a *Audit) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{rareRelay: r.relays, rareRestore: r.restores}
	var epochs []time.Duration
	granted := map[check.Ref]time.Duration{}
	entries := a.Entries()
	for i := range entries {
		e, ended := &entries[i], 0
		if startsEpoch(e) {
			epochs = append(epochs, e.At)
		}
		for _, ev := range e.Events {
			switch {
			case ev.Kind == fsm.EvGranted:
				granted[checkRef(ev.TicketRef)] = e.At
			case ev.Kind == fsm.EvLost && reasonText(ev.Reason) == check.Expired:
				ended++
			}
		}
		if ended >= manyTickets {
			counts[rareExpiration]++
		}
	}
	changed := func(from, to time.Duration) bool {
		i, _ := slices.BinarySearch(epochs, from+1)
		return i < len(epochs) && epochs[i] < to
	}
	for _, k := range r.keyed {
		if at, known := granted[k.Ref]; known && changed(at, k.from) {
			counts[rareKeyedRetry]++
		}
	}
	for name, spans := range map[string][]spanOf{rareHold: r.holds,
		rareReservation: r.reservations} {
		counts[name] = count(spans, func(s spanOf) bool { return changed(s.from, s.to) })
	}
	return counts
}

// formatRare is a line for each rare state.
func formatRare(counts map[string]int) (text string) {
	for _, name := range rareNames {
		text += fmt.Sprintf("rare: %d %s\n", counts[name], name)
	}
	return text
}

func count[T any](all []T, condition func(T) bool) (n int) {
	for _, one := range all {
		if condition(one) {
			n++
		}
	}
	return n
}
