package report

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/jepsen/check"
)

func sumCounts(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestReportMatchesHistory(t *testing.T) {
	h := sampleRun(testSeed(t), 2000, names("lock-", 5), names("c", 9))
	log := filepath.Join(t.TempDir(), "stderr")
	require.NoError(t, os.WriteFile(log, []byte("a word\n"), 0o600))
	dir, s, drawn, page := writeSample(t, Run{
		History: h, Command: "make it SEED=1", Logs: map[string]string{"n1.log": log}, Notes: []string{"no root"},
	})
	require.Equal(t, Passed, s.Verdict, "%v %v", s.Violations, s.Invalid)

	tries := len(h.Ops) - 3*2000 // each lock has two lines, and an unlock
	assert.Equal(t, 2*2000+tries, s.Operations)
	assert.Equal(t, map[check.Outcome]int{check.OK: 2 * 2000, check.Refused: tries}, s.Outcomes)
	assert.Equal(t, s.Outcomes[check.OK], sumCounts(drawn.OK))
	assert.Equal(t, s.Outcomes[check.Refused], sumCounts(drawn.Refused))
	assert.Zero(t, sumCounts(drawn.Unknown))
	assert.Equal(t, 2*2000, sumCounts(drawn.Answers.Count)+sumCounts(drawn.Waits.Count))
	assert.Greater(t, sumCounts(drawn.Waits.Count), 100)

	assert.Equal(t, 2000, s.Holds)
	total := int64(0)
	require.Len(t, drawn.Locks, 5)
	for _, l := range drawn.Locks {
		assert.EqualValues(t, l.Holds, holdsDrawn(l))
		assert.EqualValues(t, 1, l.Lanes, "one holds %s at a time", l.Name)
		total += holdsDrawn(l)
	}
	assert.EqualValues(t, 2000, total)

	assert.Equal(t, 20, s.FaultCount)
	assert.Equal(t, 3, s.Kinds())
	assert.Equal(t, 7, s.Faults[0].Count)
	assert.Equal(t, (0+3+6+9+12+15+18)*time.Millisecond, s.Faults[0].Duration)
	assert.Equal(t, 3, s.LeaderChanges, "terms 3 to 6")
	assert.True(t, s.EpochsInferred)

	var back check.History
	text, err := os.ReadFile(filepath.Join(dir, "history.jsonl"))
	require.NoError(t, err)
	require.NoError(t, back.Read(bytes.NewReader(text)))
	assert.Equal(t, h, &back)
	for _, f := range s.Files {
		assert.FileExists(t, filepath.Join(dir, f.Name))
		assert.Contains(t, page+"timeline.html", f.Name)
	}
	text, err = os.ReadFile(filepath.Join(dir, "logs", "n1.log"))
	require.NoError(t, err)
	assert.Equal(t, "a word\n", string(text))
	words, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	require.NoError(t, err)
	for _, want := range []string{"# lived: good", "`make it SEED=1`", "no root", "| unlock | 2000 | 0 | 0 |", "C16", "logs/n1.log"} {
		assert.Contains(t, string(words), want)
	}
}

// The names in a history come from clients, and may be anything.
func TestNamesAreEscaped(t *testing.T) {
	const evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
	h := sampleRun(testSeed(t), 50, []string{evil, `"'&` + evil}, []string{evil, "c" + evil})
	h.Plan.Name = evil
	for i := range h.Faults {
		h.Faults[i].Kind, h.Faults[i].Target = evil, evil
	}
	h.Stalls = []check.Stall{{Reason: evil, From: second, To: 2 * second}}
	r := check.Check(h, check.Limits{})
	r.Violations = []check.Finding{{Check: "C1", Text: `lock "` + evil + `": ` + evil}}
	r.Invalid = []string{evil}
	dir, s, _, _ := writeSample(t, Run{
		History: h, Report: r, Command: evil, Notes: []string{evil}, Epochs: []Epoch{{Node: evil, From: second}}, Probers: []string{evil},
	})
	assert.Equal(t, Violated, s.Verdict)
	files, err := filepath.Glob(filepath.Join(dir, "*.html"))
	require.NoError(t, err)
	require.Len(t, files, 2, "the page, and the lock's picture")
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Empty(t, regexp.MustCompile(`<script>alert|<img|(src|href)="?(https?:)?//`).FindString(string(text)), name)
	}
	words, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	require.NoError(t, err)
	prose, checked, cut := strings.Cut(string(words), "```") // a block of code shows what is in it
	require.True(t, cut)
	_, files2, cut := strings.Cut(checked, "```")
	require.True(t, cut)
	for line := range strings.Lines(prose + files2) {
		if !strings.HasPrefix(line, "Repeat it: `") {
			assert.NotContains(t, line, "<script")
		}
	}
}

// Nothing is asked of the network, and all that is linked lies beside the page.
func TestPageIsSelfContained(t *testing.T) {
	h := sampleRun(testSeed(t), 50, names("lock-", 2), names("c", 2))
	dir, _, _, page := writeSample(t, Run{History: h})
	fetches := regexp.MustCompile(`(?i)\ssrc=|url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(|https?:`)
	assert.Empty(t, fetches.FindString(page))
	assert.Contains(t, page, `default-src 'none'`)
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1)
	assert.Len(t, links, 4)
	for _, link := range links {
		assert.FileExists(t, filepath.Join(dir, link[1]))
	}
}

// A long run has more in it than a page holds: it is counted together, and nothing is left out.
func TestPageSizeLimit(t *testing.T) {
	holds := 250_000
	if testing.Short() {
		holds = 60_000
	}
	for _, c := range []struct {
		name           string
		locks, clients []string
	}{
		{"few", names("lock-", 9), names("c", 30)},
		{"many", names(strings.Repeat("a long name of a lock ", 40), 500), names(strings.Repeat("and of a client ", 30), 30_000)},
	} {
		h := sampleRun(testSeed(t), holds, c.locks, c.clients)
		start := time.Now()
		d := newAnalysis(Run{History: h, Report: &check.Report{}})
		page, err := d.page(d.summary())
		require.NoError(t, err)
		t.Logf("%s: %d operations make %d bytes in %v", c.name, len(h.Ops), len(page), time.Since(start))
		assert.LessOrEqual(t, len(page), pageMax)
		drawn := d.timeline(barsMax)
		bars := 0
		for _, l := range drawn.Locks {
			assert.EqualValues(t, l.Holds, holdsDrawn(l))
			bars += len(l.Bars) / 7
		}
		assert.LessOrEqual(t, bars, barsMax)
		assert.Len(t, drawn.Locks, locksMax)
		assert.Less(t, len(drawn.OK), binsMax)
	}
}

// What lies in the directory already is named, and not copied onto itself; of a very long one the end is kept.
func TestLogs(t *testing.T) {
	h := sampleRun(testSeed(t), 10, names("lock-", 1), names("c", 1))
	dir := t.TempDir()
	inside, long := filepath.Join(dir, "n1", "out"), filepath.Join(t.TempDir(), "long")
	require.NoError(t, os.Mkdir(filepath.Dir(inside), 0o700))
	require.NoError(t, os.WriteFile(inside, []byte("stays"), 0o600))
	require.NoError(t, os.WriteFile(long, nil, 0o600))
	require.NoError(t, os.Truncate(long, logBytesMax+5))
	run := Run{History: h, Report: check.Check(h, check.Limits{}), Logs: map[string]string{"n1": inside, "../../n2": long}}
	s, err := Write(dir, run)
	require.NoError(t, err)
	assert.Contains(t, s.Files, File{"n1/out", "a log"})
	assert.Contains(t, s.Files, File{"logs/_.._n2", "a log"})
	kept, err := os.ReadFile(filepath.Join(dir, "logs", "_.._n2"))
	require.NoError(t, err)
	first, rest, _ := strings.Cut(string(kept), "\n")
	assert.Equal(t, "… 5 bytes before this are left out", first)
	assert.Len(t, rest, logBytesMax)

	run.Logs["gone"] = filepath.Join(dir, "no such file")
	_, err = Write(dir, run)
	assert.ErrorContains(t, err, "no such file")
	assert.FileExists(t, filepath.Join(dir, "summary.md"), "one that fails keeps no other from being written")
}
