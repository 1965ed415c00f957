package api

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// fetch sends a request to a node's HTTP port.
func fetch(t *testing.T, address, path string) (code int, text string) {
	t.Helper()
	hurry := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := hurry.Get("http://" + address + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(body)
}

// contractMetrics are the names that users build their graphs on.
var contractMetrics = map[string]string{
	"zamok_lock_wait_seconds": "histogram", "zamok_lock_hold_seconds": "histogram",
	"zamok_grants_total":   "counter",
	"zamok_refusals_total": "counter", "zamok_locks_held": "gauge", "zamok_waiters": "gauge",
	"zamok_queue_depth_max": "gauge",
	"zamok_sessions":        "gauge", "zamok_sessions_expired_total": "counter",
	"zamok_streams":           "gauge",
	"zamok_streams_cut_total": "counter", "zamok_commit_stage_seconds": "histogram",
	"zamok_entry_commands": "histogram",
	"zamok_answer_seconds": "histogram",
	"zamok_denied_total":   "counter", "zamok_unauthenticated_total": "counter",
	"zamok_audit_failures_total": "counter",
	"zamok_audit_omitted_total":  "counter",
	"zamok_quota_used":           "gauge", "zamok_quota_limit": "gauge",
	"zamok_quota_identity_limit": "gauge", "zamok_limit_refusals_total": "counter",
	"zamok_peer_last_contact_seconds": "gauge", "zamok_peer_lag_entries": "gauge",
	"zamok_raft_leader": "gauge", "zamok_raft_term": "gauge",
	"zamok_raft_election_timeout_seconds": "gauge", "zamok_raft_leader_changes_total": "counter",
	"zamok_leader_gave_way_total": "counter",
	"zamok_sessions_short_ttl":    "gauge",
	"zamok_applied_index":         "gauge", "zamok_cluster_time_seconds": "gauge",
	"zamok_disk_write_seconds": "histogram",
	"zamok_disk_free_bytes":    "gauge", "zamok_build_info": "gauge",
}

var (
	sampleLine = regexp.MustCompile(
		`^(zamok_[a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})? ([0-9.e+-]+|\+Inf)$`)
	headLine = regexp.MustCompile(`^# (HELP|TYPE) (zamok_[a-z_]+) (.+)$`)
)

// scrape reads an exposition strictly: every sample belongs to a family that was announced before
// it, and histograms only rise to their count.
func scrape(t *testing.T, text string) (samples map[string]float64, families map[string]string) {
	samples, families = map[string]float64{}, map[string]string{}
	require.True(t, strings.HasSuffix(text, "\n"))
	family, last := "", 0.0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := headLine.FindStringSubmatch(line); m != nil {
			family = m[2]
			if m[1] == "TYPE" {
				require.NotContains(t, families, family)
				families[family] = m[3]
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		require.NotNil(t, m, "not a sample: %s", line)
		name := m[1]
		if families[family] == "histogram" {
			name = strings.TrimSuffix(
				strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		}
		require.Equal(t, family, name)
		require.NotContains(t, samples, m[1]+m[2])
		value, err := strconv.ParseFloat(m[3], 64)
		require.NoError(t, err)
		samples[m[1]+m[2]] = value
		switch {
		case strings.HasSuffix(m[1], "_bucket"):
			if last > 0 && !strings.Contains(m[2], `le="0.`) {
				require.GreaterOrEqual(t, value, last, line)
			}
			if last = value; strings.Contains(m[2], `le="+Inf"`) {
				last = 0
			}
		case strings.HasSuffix(m[1], "_count"):
			inf := strings.TrimSuffix(m[1], "_count") + "_bucket" +
				strings.Replace("{"+strings.Trim(m[2], "{}")+`,le="+Inf"}`, "{,", "{", 1)
			require.Equal(t, samples[inf], value, line)
		}
	}
	return samples, families
}

func TestMetricsAreTheContracts(t *testing.T) {
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.ListenHTTP, cfg.Version = "127.0.0.1:0", `v1 "quoted" \ here`
	})
	n := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, n))
	first := s.hold("secret-name/1")
	s.hold("secret-name/2")
	_, err := s.Acquire(ctx, s.next("secret-name/1", 0))
	require.Error(t, err)
	s.drop(first.Ticket)
	short := openSession(t, ctx, call(t, n))
	_, err = s.admin.ExpireSession(ctx,
		&zamokpb.ExpireSessionRequest{Session: short.id, Reason: "a test"})
	require.NoError(t, err)
	third := s.hold("secret-name/3")
	waits := openSession(t, ctx, call(t, n))
	waiting := waits.next("secret-name/3", -1)
	go waits.Acquire(ctx, waiting) // ends with the node
	require.Eventually(t, func() bool {
		lock, err := s.Get(ctx, &zamokpb.GetRequest{Name: "secret-name/3"})
		return err == nil && lock.Lock.Waiters == 1
	}, patience, 5*time.Millisecond)

	w := openStream(t, call(t, n), settings(clock.Minute))
	w.send(exclusive(1, "secret-name/4", -1))
	w.is(1, zamokpb.State_STATE_GRANTED)

	var code int
	var text string
	require.Eventually(t, func() bool { // what was sent is counted a moment later
		code, text = fetch(t, n.HTTP(), "/metrics")
		return !strings.Contains(text, `zamok_commit_stage_seconds_count{stage="push"} 0`) &&
			strings.Contains(text, "\nzamok_streams 1\n") &&
			strings.Contains(text, "zamok_grants_total{mode=\"exclusive\"} 4\n")
	}, patience, 5*time.Millisecond)
	require.Equal(t, http.StatusOK, code)
	samples, families := scrape(t, text)
	want := maps.Clone(contractMetrics)
	for _, absent := range []string{"zamok_disk_free_bytes", "zamok_peer_last_contact_seconds",
		"zamok_peer_lag_entries"} {
		delete(want, absent) // it has neither a disk nor peers
	}
	assert.Equal(t, want, families)
	assert.NotContains(t, text, "secret-name")
	assert.NotContains(t, samples, "zamok_disk_free_bytes", "it has no disk")
	members, err := s.admin.Members(ctx, &zamokpb.MembersRequest{})
	require.NoError(t, err)
	assert.Zero(t, members.Members[0].FreeBytes)
	for sample, want := range map[string]float64{
		`zamok_grants_total{mode="exclusive"}`: 4, `zamok_grants_total{mode="shared"}`: 0,
		`zamok_refusals_total{reason="try_failed"}`:                  1,
		`zamok_sessions_expired_total{reason="expired_by_operator"}`: 1,
		`zamok_lock_wait_seconds_count{mode="exclusive"}`:            4,
		`zamok_lock_hold_seconds_count{mode="exclusive"}`:            1,
		"zamok_locks_held": 3, "zamok_waiters": 1, "zamok_queue_depth_max": 1, "zamok_sessions": 3,
		"zamok_streams":     1,
		"zamok_raft_leader": 1, "zamok_raft_leader_changes_total": 1,
		`zamok_quota_used{resource="sessions"}`:              3,
		`zamok_quota_limit{resource="sessions"}`:             1 << 17,
		`zamok_quota_identity_limit{resource="bytes"}`:       64 << 20,
		`zamok_limit_refusals_total{limit="identity_bytes"}`: 0,
		`zamok_build_info{version="v1 \"quoted\" \\ here"}`:  1,
	} {
		assert.Contains(t, samples, sample)
		assert.InDelta(t, want, samples[sample], 0, sample)
	}
	for _, positive := range []string{
		"zamok_raft_term", "zamok_applied_index", "zamok_cluster_time_seconds",
		"zamok_entry_commands_count",
		`zamok_answer_seconds_count{outcome="done"}`,
		`zamok_commit_stage_seconds_count{stage="queue"}`,
		`zamok_commit_stage_seconds_count{stage="append"}`,
		`zamok_commit_stage_seconds_count{stage="push"}`,
		`zamok_commit_stage_seconds_count{stage="commit"}`,
		`zamok_commit_stage_seconds_count{stage="apply"}`,
		"zamok_disk_write_seconds_count", "zamok_disk_write_seconds_sum",
	} {
		assert.Positive(t, samples[positive], positive)
	}
	waits.drop(waiting.Acquire.Ticket)
	s.drop(third.Ticket)
}

// However an answer begins, it names the cluster.
func TestEachBeginningOfAnAnswerNamesTheCluster(t *testing.T) {
	s := &server{gate: gate.New(gate.Config{})}
	m := fsm.New()
	_, err := m.Apply(1, (&fsm.Entry{Version: m.Version(), Commands: []fsm.Command{
		&fsm.LeaderStart{Node: "n1", Cluster: fsm.ClusterID{0xab}, TokenBase: 1},
	}}).Append(nil))
	require.NoError(t, err)
	s.gate.LearnCluster(m)
	for what, handler := range map[string]http.HandlerFunc{
		"a status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		},
		"a body": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a") },
		"a flush": func(w http.ResponseWriter, _ *http.Request) {
			assert.NoError(t, http.NewResponseController(w).Flush())
		},
		"nothing": func(http.ResponseWriter, *http.Request) {},
	} {
		server := httptest.NewServer(s.named(handler))
		answer, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		assert.NoError(t, answer.Body.Close())
		server.Close()
		assert.Equal(t, s.gate.Cluster(), answer.Header.Get("Zamok-Cluster"), what)
	}
}

// A node that waits for the others of a new cluster lives and is not ready; so is one without a
// leader.
func TestReadiness(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0") // nothing answers there yet
	require.NoError(t, err)
	mine, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := web.Addr().String()
	require.NoError(t, web.Close())

	list := fmt.Sprintf("n1=%v,n2=%v", mine.Addr(), other.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 2)
	var nodes [2]*Node
	start := func(i int, l net.Listener, http string) {
		cfg := nodeConfig(fmt.Sprintf("n%d", i+1), list)
		cfg.Peers.Listener, cfg.ListenHTTP = l, http
		var err error
		nodes[i], err = StartNode(ctx, cfg)
		started <- err
	}
	go start(0, mine, address)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, patience, 5*time.Millisecond)
	code, text := fetch(t, address, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, text, "not ready: the node is starting")
	code, text = fetch(t, address, "/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\n", text)
	code, text = fetch(t, address, "/metrics")
	require.Equal(t, http.StatusOK, code)
	_, families := scrape(t, text)
	require.NotContains(t, families, "zamok_sessions")

	go start(1, other, "")
	for range nodes {
		require.NoError(t, <-started)
	}
	cancel()
	require.Eventually(t, func() bool {
		code, text = fetch(t, address, "/readyz")
		return code == http.StatusOK
	}, patience, 5*time.Millisecond, "%s", text)
	require.Equal(t, "ready\n", text)
	require.NoError(t, nodes[1].Kill())
	require.Eventually(t, func() bool {
		code, text = fetch(t, address, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "no leader is known")
	}, patience, 5*time.Millisecond, "%s", text)
	require.NoError(t, nodes[0].Close())
	_, err = net.Dial("tcp", address)
	require.Error(t, err, "the port is closed with the node")
}

// A port in use is an error before anything is written, and the other ports are free again.
func TestAnHTTPPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := t.TempDir()
	cfg := nodeConfig("n1", "n1=127.0.0.1:1")
	cfg.Store.Dir, cfg.ListenPeers, cfg.ListenHTTP = dir+"/data", "127.0.0.1:0",
		taken.Addr().String()
	_, err = StartNode(t.Context(), cfg)
	require.ErrorContains(t, err, "ListenHTTP: can't listen for HTTP on "+taken.Addr().String())
	require.NoDirExists(t, cfg.Store.Dir)
}

func TestProfilesAreOffByDefault(t *testing.T) {
	for on, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			c := startCluster(t, 1, func(cfg *NodeConfig) {
				cfg.ListenHTTP, cfg.Profile = "127.0.0.1:0", on
			})
			for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1",
				"/debug/pprof/cmdline"} {
				code, _ := fetch(t, c.nodes[0].HTTP(), path)
				assert.Equal(t, want, code, path)
			}
			code, _ := fetch(t, c.nodes[0].HTTP(), "/")
			assert.Equal(t, http.StatusNotFound, code)
		})
	}
}
