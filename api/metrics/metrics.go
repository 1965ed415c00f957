package metrics

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"zamok/api/gate/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// Metrics counts what a node does, for Prometheus. Its methods are called on the goroutine that
// does the work, some under the state machine's lock, so they are quick. What happens to locks and
// sessions is counted by the leader only, so that a sum over all nodes counts it once. What there
// is now is read from the node at a scrape. No lock name is ever a label: there may be millions.
type Metrics struct {
	registry         *prometheus.Registry
	wait, hold       [modes]prometheus.Observer // by fsm.Mode
	grants           [modes]prometheus.Counter
	refusals, ends   *prometheus.CounterVec // by fsm.Reason
	cuts             *prometheus.CounterVec // by zamokpb.Code
	limits           *prometheus.CounterVec // by the limit or quota that was met
	denials          *prometheus.CounterVec // by verb
	gaveWay          *prometheus.CounterVec // by outcome
	unauthenticated  prometheus.Counter
	unaudited        prometheus.Counter
	omitted          prometheus.Counter
	stages           [len(stageNames)]prometheus.Observer
	commands, writes prometheus.Histogram
	answers          map[zamokpb.Outcome]prometheus.Observer
	epochs           prometheus.Counter
	surveying        sync.Mutex // by one scrape at a time

	mu      sync.Mutex // guards what follows
	leading bool
	granted map[fsm.TicketRef]clock.Time // when held tickets were granted, if this node led
}

const modes = int(fsm.Permits) + 1

// amounts are what quotas bound, in the order of the fields of fsm.Amounts.
var amounts = [...]string{"sessions", "tickets", "bytes"}

// stageNames are the stages of an entry, in their order.
var stageNames = [...]string{"queue", "append", "commit", "apply", "push"}

// anyVerb is the label of requests for which any permission is enough.
const anyVerb = "any"

const stagePush = len(stageNames) - 1

// New returns metrics without any count.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	register := registerer{promauto.With(m.registry)}
	m.registerLocks(register)
	m.registerRefusals(register)
	m.registerEntries(register)
	return m
}

// registerer makes counters and histograms of a registry.
type registerer struct{ promauto.Factory }

func (r registerer) counter(name, help string) prometheus.Counter {
	return r.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (r registerer) counters(name, help, label string) *prometheus.CounterVec {
	return r.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

func histogram(name, help string, buckets ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
}

// registerLocks makes what counts locks, sessions and streams.
func (m *Metrics) registerLocks(register registerer) {
	wait := register.NewHistogramVec(
		histogram("zamok_lock_wait_seconds", "Time from a request at this node to the grant.",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300),
		[]string{"mode"})
	hold := register.NewHistogramVec(histogram("zamok_lock_hold_seconds",
		"Time from a grant to its end, in cluster time; reported by the leader.",
		.001, .01, .1, 1, 10, 60, 600, 3600, 6*3600, 24*3600), []string{"mode"})
	grants := register.counters("zamok_grants_total",
		"Locks granted; reported by the leader.", "mode")
	for mode := fsm.Exclusive; mode <= fsm.Permits; mode++ {
		name := label(zamokpb.Mode(mode))
		m.wait[mode], m.hold[mode], m.grants[mode] = wait.WithLabelValues(name),
			hold.WithLabelValues(name), grants.WithLabelValues(name)
	}
	m.refusals = register.counters("zamok_refusals_total",
		"Acquisitions that ended without a grant, not at their client's request; reported by "+
			"the leader.", "reason")
	m.ends = register.counters("zamok_sessions_expired_total",
		"Sessions that ended, not at their client's request; reported by the leader.", "reason")
	m.cuts = register.counters("zamok_streams_cut_total", "Streams that this node ended.", "reason")
	for code := range zamokpb.Code_name {
		m.cuts.WithLabelValues(label(zamokpb.Code(code))) // so that the first one is seen as a rise
	}
}

// registerRefusals makes what counts requests that were refused, and lines of the audit log.
func (m *Metrics) registerRefusals(register registerer) {
	m.limits = register.counters("zamok_limit_refusals_total",
		"Requests and connections refused by a limit of this node or by a quota.", "limit")
	for _, name := range append(limits.Names(), limits.AllConnections, limits.UnreadBytes,
		limits.RelayedCalls) {
		if !strings.Contains(name, "denial-lines") { // they refuse nothing
			m.limits.WithLabelValues(name)
		}
	}
	for _, quota := range []string{"total_", "identity_"} {
		for _, amount := range amounts {
			m.limits.WithLabelValues(quota + amount)
		}
	}
	m.denials = register.counters("zamok_denied_total",
		"Requests denied by the access rules, by required verb.", "verb")
	for _, verb := range []string{"lock", "read", "watch", "release", "operate", anyVerb} {
		m.denials.WithLabelValues(verb)
	}
	m.unauthenticated = register.counter("zamok_unauthenticated_total",
		"Calls and open streams without valid credentials.")
	m.unaudited = register.counter("zamok_audit_failures_total",
		"Lines that could not be written to the audit log.")
	m.omitted = register.counter("zamok_audit_omitted_total",
		"Denials that share a line of the audit log, because there were too many.")
}

// registerEntries makes what counts entries of the log, answers and changes of the leader.
func (m *Metrics) registerEntries(register registerer) {
	short := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5,
		1, 2.5, 5}
	stages := register.NewHistogramVec(histogram("zamok_commit_stage_seconds",
		"Time that a committed entry spent in each stage, on its leader; append, its own write, "+
			"goes on beside commit; push is from apply to the client's connection.", short...),
		[]string{"stage"})
	for stage, name := range stageNames {
		m.stages[stage] = stages.WithLabelValues(name)
	}
	m.commands = register.NewHistogram(histogram("zamok_entry_commands",
		"Commands per committed entry, without the leader's own entries.",
		1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
	m.writes = register.NewHistogram(histogram("zamok_disk_write_seconds",
		"Time of a write of log or vote, including fsync.", short...))
	answers := register.NewHistogramVec(histogram("zamok_answer_seconds",
		"Time from the arrival of a command at this node to its answer, by outcome; a lock that "+
			"has to wait is answered when it is queued.", short...),
		[]string{"outcome"})
	m.answers = make(map[zamokpb.Outcome]prometheus.Observer)
	for _, outcome := range []zamokpb.Outcome{zamokpb.Outcome_OUTCOME_DONE,
		zamokpb.Outcome_OUTCOME_NOT_DONE, zamokpb.Outcome_OUTCOME_UNKNOWN} {
		m.answers[outcome] = answers.WithLabelValues(label(outcome))
	}
	m.epochs = register.counter("zamok_raft_leader_changes_total",
		"Leadership epochs begun on this node; the sum over all nodes is the number of leader "+
			"changes.")
	m.gaveWay = register.counters("zamok_leader_gave_way_total",
		"Times that this leader gave way by itself (moved), or made no progress and stayed, by "+
			"the reason.", "outcome")
	for _, outcome := range []string{raftnode.Moved, raftnode.StayedWithoutMajority,
		raftnode.StayedUnfit, raftnode.StayedRecent, raftnode.StayedMembers} {
		m.gaveWay.WithLabelValues(outcome)
	}
}

// label is a value of an enum of the wire as the value of a label: REASON_MAX_HOLD_EXCEEDED is
// max_hold_exceeded.
func label(value wire.Enum) string { return strings.ToLower(wire.EnumName(value)) }

// Entry counts what an entry cost its leader.
func (m *Metrics) Entry(e raftnode.ProposalTiming) {
	for stage, d := range []time.Duration{e.Queue, e.Append, e.Commit, e.Apply} {
		m.stages[stage].Observe(d.Seconds())
	}
	m.commands.Observe(float64(e.Commands))
}

// DiskWrite counts a write to this node's disk that succeeded.
func (m *Metrics) DiskWrite(took time.Duration) { m.writes.Observe(took.Seconds()) }

// Cut counts the end of a stream with an error of this node.
func (m *Metrics) Cut(code zamokpb.Code) { m.cuts.WithLabelValues(label(code)).Inc() }

// LimitReached counts what was refused by a limit of this node or by a quota.
func (m *Metrics) LimitReached(limit string) { m.limits.WithLabelValues(limit).Inc() }

// Denied counts a request that the access rules denied, by the verb that it needs; Unauthenticated
// one without valid credentials.
func (m *Metrics) Denied(verb string) { m.denials.WithLabelValues(cmp.Or(verb, anyVerb)).Inc() }
func (m *Metrics) Unauthenticated()   { m.unauthenticated.Inc() }

// Unaudited counts a line that could not be written to the audit log; Omitted a denial that got no
// line of its own.
func (m *Metrics) Unaudited() { m.unaudited.Inc() }
func (m *Metrics) Omitted()   { m.omitted.Inc() }

// GaveWay counts the outcomes for raftnode.Config.GaveWay.
func (m *Metrics) GaveWay(outcome string) { m.gaveWay.WithLabelValues(outcome).Inc() }

// Waited counts how long an acquisition that was granted took, from its arrival at this node to the
// grant.
func (m *Metrics) Waited(items []fsm.Item, d time.Duration) {
	for i := range items {
		m.wait[items[i].Mode].Observe(d.Seconds())
	}
}

// Answered counts a command that arrived at a time and is answered now.
func (m *Metrics) Answered(arrived time.Time, refusal *wire.Error) {
	outcome := zamokpb.Outcome_OUTCOME_DONE
	if refusal != nil {
		outcome = refusal.Info.Outcome
	}
	m.answers[outcome].Observe(time.Since(arrived).Seconds())
}

// Pushed counts the time from when the first message of a frame was queued, which for a grant is
// when it was applied, until the frame was handed to the connection. Zero: no message was urgent.
func (m *Metrics) Pushed(since time.Time) {
	if !since.IsZero() {
		m.stages[stagePush].Observe(time.Since(since).Seconds())
	}
}

// SetLeading is called when this node begins and ends to lead.
func (m *Metrics) SetLeading(leading bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading, m.granted = leading, make(map[fsm.TicketRef]clock.Time)
	if leading {
		m.epochs.Inc()
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
			m.grants[e.Items[i].Mode].Inc()
		}
	case fsm.EvRefused:
		if e.Reason != fsm.Dropped && e.Reason != fsm.Closed {
			m.refusals.WithLabelValues(label(zamokpb.Reason(e.Reason))).Inc()
		}
	case fsm.EvLost, fsm.EvReleased:
		since, ok := m.granted[e.TicketRef]
		delete(m.granted, e.TicketRef)
		for i := 0; i < len(e.Items) && ok; i++ {
			m.hold[e.Items[i].Mode].Observe(now.Sub(since).Duration().Seconds())
		}
	case fsm.EvSessionEnded:
		if e.Reason != fsm.Closed {
			m.ends.WithLabelValues(label(zamokpb.Reason(e.Reason))).Inc()
		}
	}
}

// Serve answers a scrape. It adds the number of streams, the expiry of the certificates for clients
// and peers, and which reloaded files are valid. Without a node its metrics are omitted.
func (m *Metrics) Serve(w http.ResponseWriter, r *http.Request, node *raftnode.Node, streams int,
	version string,
	expiry map[string]time.Time, files map[string]bool) {
	now := prometheus.NewRegistry()
	gauge := func(name, help string, value float64) {
		promauto.With(now).NewGauge(prometheus.GaugeOpts{Name: name, Help: help}).Set(value)
	}
	gauge("zamok_streams", "Session streams attached to this node.", float64(streams))
	promauto.With(now).NewGauge(prometheus.GaugeOpts{Name: "zamok_build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version}}).Set(1)
	expiries := promauto.With(now).NewGaugeVec(
		prometheus.GaugeOpts{Name: "zamok_certificate_expiry_timestamp_seconds",
			Help: "Expiry of this node's certificate for clients or for peers, in seconds since " +
				"1970; absent without TLS."}, []string{"certificate"})
	for certificate, at := range expiry {
		expiries.WithLabelValues(certificate).Set(float64(at.Unix()))
	}
	usable := promauto.With(now).NewGaugeVec(prometheus.GaugeOpts{Name: "zamok_file_usable",
		Help: "1 if the file is valid; 0 if it was changed and is invalid, so that the previous " +
			"version is in force."}, []string{"file"})
	for file, is := range files {
		usable.WithLabelValues(file).Set(map[bool]float64{true: 1}[is])
	}
	if node != nil {
		m.present(r.Context(), node, gauge)
		quotas(node, promauto.With(now))
		contacts(node, promauto.With(now))
	}
	promhttp.HandlerFor(prometheus.Gatherers{m.registry, now}, promhttp.HandlerOpts{}).ServeHTTP(w,
		r)
}

// present describes what there is now at a node.
func (m *Metrics) present(ctx context.Context, node *raftnode.Node,
	gauge func(name, help string, value float64)) {
	m.surveying.Lock()
	defer m.surveying.Unlock()
	status := node.Status()
	var counts fsm.Counts
	var now clock.Time
	node.View(func(m *fsm.Machine) { counts, now = m.Counts(), m.Time() })
	held, deepest := survey(ctx, node, counts)
	leads := 0.
	if status.Leading {
		leads = 1
	}
	gauge("zamok_locks_held", "Locks held.", float64(held))
	gauge("zamok_waiters", "Waiting acquisitions.", float64(counts.Waiting))
	gauge("zamok_queue_depth_max", "Length of the longest queue.", float64(deepest))
	gauge("zamok_sessions", "Live sessions.", float64(counts.Sessions))
	gauge("zamok_raft_leader",
		"1 on the leader while its epoch is in force, 0 on other nodes.", leads)
	gauge("zamok_raft_term", "Raft term.", float64(status.Term))
	gauge("zamok_raft_election_timeout_seconds",
		"Election timeout in force; it adapts to round trips and pauses.", node.Timeout().Seconds())
	gauge("zamok_sessions_short_ttl",
		"Live sessions whose ttl is shorter than four election timeouts: most failovers end them.",
		float64(node.ShortTTLs()))
	gauge("zamok_applied_index", "Index applied last; it rises with every command.",
		float64(status.Applied.Index))
	gauge("zamok_cluster_time_seconds", "Cluster time: how long the cluster has had a leader.",
		now.Sub(0).Duration().Seconds())
	if status.DiskFree != math.MaxUint64 { // that is a free space that is not known
		gauge("zamok_disk_free_bytes",
			"Free space of the data directory; absent with data in memory.",
			float64(status.DiskFree))
	}
}

// quotas describes the usage of clients and their quotas.
func quotas(node *raftnode.Node, register promauto.Factory) {
	var used fsm.Amounts
	var quotas fsm.Quotas
	node.View(func(m *fsm.Machine) { used, quotas = m.Used(), m.Quotas() })
	for _, of := range []struct {
		name, help string
		fsm.Amounts
	}{
		{"zamok_quota_used", "Usage of all clients together.", used},
		{"zamok_quota_limit", "Quota of all clients together.", quotas.Amounts},
		{"zamok_quota_identity_limit", "Quota of one identity.", quotas.OfIdentity()},
	} {
		gauges := register.NewGaugeVec(prometheus.GaugeOpts{Name: of.name, Help: of.help},
			[]string{"resource"})
		for i, value := range []uint64{of.Sessions, of.Tickets, of.Bytes} {
			gauges.WithLabelValues(amounts[i]).Set(float64(value))
		}
	}
}

// contacts describes the contact of a leader with the other nodes. They are few, so their names may
// be labels.
func contacts(node *raftnode.Node, register promauto.Factory) {
	ago := register.NewGaugeVec(prometheus.GaugeOpts{Name: "zamok_peer_last_contact_seconds",
		Help: "Time since the leader sent the last message that the peer answered; reported by " +
			"the leader."}, []string{"peer"})
	lag := register.NewGaugeVec(prometheus.GaugeOpts{Name: "zamok_peer_lag_entries",
		Help: "Log entries that the peer lacked then; reported by the leader, for peers that " +
			"have answered it."}, []string{"peer"})
	for _, s := range node.Servers() {
		if s.Contact == nil {
			continue
		}
		ago.WithLabelValues(s.ID).Set(s.Contact.Seconds())
		if s.Behind != nil {
			lag.WithLabelValues(s.ID).Set(float64(*s.Behind))
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
