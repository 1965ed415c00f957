package metrics

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// Metrics counts what a node does and writes it in Prometheus's text format. Its methods are called on the
// goroutine that does the work, some under the state machine's lock, so they are quick. What happens to locks
// and sessions is counted by the leader only, so that a sum over all nodes counts it once. What there is now
// is read from the node when it is asked for. No lock name is ever a label: there may be millions.
type Metrics struct {
	wait, hold     [modes]histogram // by fsm.Mode
	grants         [modes]atomic.Uint64
	refusals, ends [reasonCounters]atomic.Uint64 // by fsm.Reason
	cuts           [codes]atomic.Uint64          // by zamokpb.Code
	stages         [len(stageNames)]histogram
	commands       histogram
	epochs         atomic.Uint64
	writes         histogram
	surveying      sync.Mutex // by one scrape at a time

	mu      sync.Mutex // guards what follows
	leading bool
	granted map[fsm.TicketRef]clock.Time // when held tickets were granted, if this node led
}

const (
	modes          = int(fsm.Permits) + 1
	reasonCounters = int(fsm.ReasonCount)
	codes          = int(zamokpb.Code_CODE_WRONG_CLUSTER) + 1 // the last code
)

// stageNames are the stages of an entry, in their order.
var stageNames = [...]string{"queue", "append", "replicate", "apply", "push"}

const stagePush = len(stageNames) - 1

// New returns metrics without any count.
func New() *Metrics {
	m := &Metrics{commands: newHistogram(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)}
	for mode := range modes {
		m.wait[mode] = newHistogram(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)
		m.hold[mode] = newHistogram(.001, .01, .1, 1, 10, 60, 600, 3600, 6*3600, 24*3600)
	}
	short := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	for stage := range m.stages {
		m.stages[stage] = newHistogram(short...)
	}
	m.writes = newHistogram(short...)
	return m
}

// Entry counts what an entry cost its leader.
func (m *Metrics) Entry(e raftnode.ProposalTiming) {
	for stage, d := range []time.Duration{e.Queue, e.Append, e.Replicate, e.Apply} {
		m.stages[stage].observe(d)
	}
	m.commands.add(float64(e.Commands))
}

// DiskWrite counts a write to this node's disk that succeeded.
func (m *Metrics) DiskWrite(took time.Duration) { m.writes.observe(took) }

// Cut counts the end of a stream with an error of this node.
func (m *Metrics) Cut(code zamokpb.Code) { m.cuts[code].Add(1) }

// Waited counts how long an acquisition that was granted took, from its arrival at this node to the grant.
func (m *Metrics) Waited(items []fsm.Item, d time.Duration) {
	for i := range items {
		m.wait[items[i].Mode].observe(d)
	}
}

// Pushed counts the time from when the first message of a frame was queued, which for a grant is when it was
// applied, until the frame was handed to the connection. Zero: no message was urgent.
func (m *Metrics) Pushed(since time.Time) {
	if !since.IsZero() {
		m.stages[stagePush].observe(time.Since(since))
	}
}

// SetLeading is called when this node begins and ends to lead.
func (m *Metrics) SetLeading(leading bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading, m.granted = leading, make(map[fsm.TicketRef]clock.Time)
	if leading {
		m.epochs.Add(1)
	}
}

// Applied counts the events of an entry. It runs under the state machine's lock.
func (m *Metrics) Applied(a fsm.Applied) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 0; i < len(a.Events) && m.leading; i++ {
		m.count(&a.Events[i], a.Time)
	}
}

func (m *Metrics) count(e *fsm.Event, now clock.Time) {
	switch e.Kind {
	case fsm.EvGranted:
		m.granted[e.TicketRef] = now
		for i := range e.Items {
			m.grants[e.Items[i].Mode].Add(1)
		}
	case fsm.EvRefused:
		m.refusals[e.Reason].Add(1)
	case fsm.EvLost, fsm.EvReleased:
		since, ok := m.granted[e.TicketRef]
		delete(m.granted, e.TicketRef)
		for i := 0; i < len(e.Items) && ok; i++ {
			m.hold[e.Items[i].Mode].observe(now.Sub(since).Duration())
		}
	case fsm.EvSessionEnded:
		m.ends[e.Reason].Add(1)
	}
}

// Text is everything in Prometheus's text format, with the number of streams that are served. Without a node
// what is read from it is left out.
func (m *Metrics) Text(ctx context.Context, node *raftnode.Node, streams int, version string) []byte {
	var x exposition
	x.family("zamok_lock_wait_seconds", "histogram", "Time from a request at this node to the grant.")
	byMode(func(label string, mode int) { x.histogram(label, &m.wait[mode]) })
	x.family("zamok_lock_hold_seconds", "histogram", "Time from a grant to its end, in cluster time; reported by the leader.")
	byMode(func(label string, mode int) { x.histogram(label, &m.hold[mode]) })
	x.family("zamok_grants_total", "counter", "Locks granted; reported by the leader.")
	byMode(func(label string, mode int) { x.value(label, m.grants[mode].Load()) })
	x.family("zamok_refusals_total", "counter", "Acquisitions that ended without a grant, not at their client's request; reported by the leader.")
	x.byReason(m.refusals[:], zamokpb.Reason_name, fsm.Dropped, fsm.Closed)
	x.family("zamok_sessions_expired_total", "counter", "Sessions that ended, not at their client's request; reported by the leader.")
	x.byReason(m.ends[:], zamokpb.Reason_name, fsm.Closed)
	x.family("zamok_streams", "gauge", "Session streams attached to this node.").value("", streams)
	x.family("zamok_streams_cut_total", "counter", "Streams that this node ended.")
	x.byReason(m.cuts[:], zamokpb.Code_name)
	x.family("zamok_commit_stage_seconds", "histogram", "Time that a committed entry spent in each stage, on its leader; push is from apply to the client's connection.")
	for stage, name := range stageNames {
		x.histogram(label("stage", name), &m.stages[stage])
	}
	x.family("zamok_entry_commands", "histogram", "Commands per committed entry, without the leader's own entries.").histogram("", &m.commands)
	x.family("zamok_disk_write_seconds", "histogram", "Time of a write of log or vote, including fsync.").histogram("", &m.writes)
	x.family("zamok_raft_leader_changes_total", "counter",
		"Leadership epochs begun on this node; the sum over all nodes is the number of leader changes.").value("", m.epochs.Load())
	x.family("zamok_build_info", "gauge", "Always 1.").value(label("version", version), 1)
	if node != nil {
		m.surveying.Lock()
		defer m.surveying.Unlock()
		x.present(ctx, node)
	}
	return x.Bytes()
}

func byMode(f func(label string, mode int)) {
	for mode := fsm.Exclusive; mode <= fsm.Permits; mode++ {
		f(label("mode", enumWord(zamokpb.Mode_name, int(mode))), int(mode))
	}
}

// byReason writes the counters of the values of an enum of the wire that are not 0, those left out that are no such thing.
func (x *exposition) byReason(counters []atomic.Uint64, names map[int32]string, except ...fsm.Reason) {
	for value := range counters {
		if n := counters[value].Load(); n > 0 && !slices.Contains(except, fsm.Reason(value)) {
			x.value(label("reason", enumWord(names, value)), n)
		}
	}
}

// enumWord is the wire's name for something, as a label: REASON_MAX_HOLD_EXCEEDED is max_hold_exceeded.
func enumWord(names map[int32]string, value int) string {
	_, word, _ := strings.Cut(names[int32(value)], "_")
	return strings.ToLower(word)
}

// present writes what there is now at a node.
func (x *exposition) present(ctx context.Context, node *raftnode.Node) {
	status := node.Status()
	var counts fsm.Counts
	var seconds float64
	node.View(func(m *fsm.Machine) { counts, seconds = m.Counts(), m.Time().Sub(0).Duration().Seconds() })
	held, deepest := survey(ctx, node, counts)
	leads := 0
	if status.Leading {
		leads = 1
	}
	for _, g := range []struct {
		name, help string
		value      any
	}{
		{"zamok_locks_held", "Locks held.", held},
		{"zamok_waiters", "Waiting acquisitions.", counts.Waiting},
		{"zamok_queue_depth_max", "Length of the longest queue.", deepest},
		{"zamok_sessions", "Live sessions.", counts.Sessions},
		{"zamok_raft_leader", "1 on the leader while its epoch is in force, 0 on other nodes.", leads},
		{"zamok_raft_term", "Raft term.", status.Term},
		{"zamok_raft_election_timeout_seconds", "Election timeout in force; it adapts to round trips and pauses.", node.Timeout().Seconds()},
		{"zamok_applied_index", "Index applied last; it rises with every command.", status.Applied.Index},
		{"zamok_cluster_time_seconds", "Cluster time: how long the cluster has had a leader.", seconds},
		{"zamok_disk_free_bytes", "Free space of the data directory; absent with data in memory.", status.DiskFree},
	} {
		x.family(g.name, "gauge", g.help)
		if g.value != uint64(math.MaxUint64) { // that is a free space that is not known
			x.value("", g.value)
		}
	}
	x.peers(node)
}

// peers writes the contact of a leader with the other nodes. They are few, so their names may be labels.
func (x *exposition) peers(node *raftnode.Node) {
	others := slices.DeleteFunc(node.Servers(), func(s raftnode.Server) bool { return s.Contact == nil })
	x.family("zamok_peer_last_contact_seconds", "gauge", "Time since the leader sent the last message that the peer answered; reported by the leader.")
	for _, s := range others {
		x.value(label("peer", s.ID), s.Contact.Seconds())
	}
	x.family("zamok_peer_lag_entries", "gauge", "Log entries that the peer lacked then; reported by the leader, for peers that have answered it.")
	for _, s := range others {
		if s.Behind != nil {
			x.value(label("peer", s.ID), *s.Behind)
		}
	}
}

// surveyRound is how many locks are looked at in one read of the state machine.
const surveyRound = 1000

// survey counts the locks that are held, and finds the longest queue. It walks over all locks only
// where the counts of the state machine do not answer that.
func survey(ctx context.Context, node *raftnode.Node, counts fsm.Counts) (held, deepest int) {
	if counts.Waiting == 0 && counts.Delayed == 0 {
		return counts.Locks, 0 // without waiters and delays, each of them is held
	}
	var round []fsm.LockSummary
	for after := ""; ctx.Err() == nil; after = round[len(round)-1].Name {
		node.View(func(m *fsm.Machine) { round = m.Locks("", after, surveyRound) })
		for _, lock := range round {
			if lock.Holders > 0 {
				held++
			}
			deepest = max(deepest, lock.Waiters)
		}
		if len(round) < surveyRound {
			break
		}
	}
	return held, deepest
}

// histogram counts values in buckets, without a lock: some are observed under the lock of the state machine.
type histogram struct {
	bounds  []float64
	buckets []atomic.Uint64 // one more than bounds
	nanos   atomic.Uint64   // the sum, in billionths
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, buckets: make([]atomic.Uint64, len(bounds)+1)}
}

func (h *histogram) observe(d time.Duration) { h.add(max(d, 0).Seconds()) }

func (h *histogram) add(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v) // the first bound that is not below it
	h.buckets[i].Add(1)
	h.nanos.Add(uint64(math.Round(v * 1e9)))
}

// exposition is Prometheus's text format. Values belong to the family that was begun last.
type exposition struct {
	bytes.Buffer
	name string
}

func (x *exposition) family(name, kind, help string) *exposition {
	x.name = name
	fmt.Fprintf(x, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	return x
}

func (x *exposition) value(labels string, v any) { x.sample("", labels, v) }

func (x *exposition) sample(suffix, labels string, v any) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	fmt.Fprintf(x, "%s%s%s %v\n", x.name, suffix, labels, v)
}

func (x *exposition) histogram(labels string, h *histogram) {
	before := ""
	if labels != "" {
		before = labels + ","
	}
	sum := uint64(0)
	for i := range h.buckets {
		le := "+Inf"
		if i < len(h.bounds) {
			le = strconv.FormatFloat(h.bounds[i], 'g', -1, 64)
		}
		sum += h.buckets[i].Load()
		x.sample("_bucket", before+label("le", le), sum)
	}
	x.sample("_sum", labels, float64(h.nanos.Load())/1e9)
	x.sample("_count", labels, sum)
}

func label(name, value string) string {
	return name + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}
