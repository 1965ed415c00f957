package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"zamok/jepsen/check"
)

// requiredChecks are the checks that must have found something to look at. C6 is not among them: what it looks at,
// leases that end by themselves though their client lives, is rare in a short run. C13 and C15 need what a
// node does not expose: the order of entries within a read, and digests, which the nodes compare themselves.
var requiredChecks = []string{"C1", "C2", "C3", "C4", "C5", "C8", "C9", "C10", "C11", "C12", "C14", "C16", "C17"}

// deathSlack is by how much later than promised the end of a dead session may be seen: 1 s is the bound's
// own, the rest passes between two looks at the sessions.
const deathSlack = 2*time.Second + 2*sessionsPollInterval

// collectHistory reads what all processes recorded, and completes it with what only all of them know.
func (c *cluster) collectHistory(plan check.Plan) (*check.History, error) {
	files, err := filepath.Glob(filepath.Join(c.historyDir(), "*.jsonl"))
	if err != nil {
		return nil, err
	}
	h, err := readHistory(files)
	if err != nil {
		return nil, err
	}
	h.Plan = plan
	addHoldersSessions(h)
	c.recordDeaths(h)
	h.AddUnansweredGrants()
	dropStaleQueued(h)
	return h, nil
}

// addHoldersSessions adds the sessions that held something and ended before the audit listed them.
func addHoldersSessions(h *check.History) {
	known := map[uint64]bool{}
	for _, s := range h.Sessions {
		known[s.Session] = true
	}
	for _, hold := range h.Holds {
		if !known[hold.Session] {
			known[hold.Session] = true
			h.Sessions = append(h.Sessions, sessionOf(hold.Session, hold.Client))
		}
	}
}

// sessionOf is a session of a client.
func sessionOf(id uint64, label string) check.Session {
	cfg := configOf(label)
	return check.Session{Session: id, Client: label, TTL: cfg.TTL, ReleaseOnDisconnect: cfg.ReleaseOnDisconnect != 0}
}

// recordDeaths records when each session of a killed program fell silent: what the program had sent may have
// been on its way for a while.
func (c *cluster) recordDeaths(h *check.History) {
	silent := map[string]time.Duration{}
	for name, at := range c.deaths {
		for _, label := range clientLabels(name) {
			silent[label] = max(at, c.network.lastDelivery(name))
		}
	}
	for i := range h.Sessions {
		h.Sessions[i].Died = silent[h.Sessions[i].Client]
	}
	for client, at := range silent { // also of clients that died before they had a session
		if !slices.ContainsFunc(h.Sessions, func(s check.Session) bool { return s.Client == client }) {
			h.Sessions = append(h.Sessions, check.Session{Client: client, Died: at})
		}
	}
}

// dropStaleQueued keeps Queued, when a call was first reported to wait, only where it belongs to the session that
// was granted in the end: with a session its queue positions are lost. A session's number is the index
// at which it was opened, so it was open when a greater index had been seen.
func dropStaleQueued(h *check.History) {
	type point struct {
		at    time.Duration
		index uint64
	}
	var known []point
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Outcome == check.OK && op.Return != 0 {
			known = append(known, point{op.Return, max(op.Token, op.Index)})
		}
	}
	for _, ev := range h.Events {
		known = append(known, point{ev.At, ev.Index})
	}
	slices.SortFunc(known, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(known); i++ {
		known[i].index = max(known[i].index, known[i-1].index)
	}
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Queued == 0 {
			continue
		}
		n, _ := slices.BinarySearchFunc(known, op.Queued, func(p point, at time.Duration) int { return cmp.Compare(p.at, at) })
		if n == 0 || known[n-1].index < op.Session {
			op.Queued = 0
		}
	}
}

var unexplained = regexp.MustCompile(`(?m)^.*(?:panic:|fatal error:|DATA RACE|ALARM).*$`)

// unexplainedLogLines are lines of the servers' logs that no fault explains.
func (c *cluster) unexplainedLogLines() (found []string) {
	for _, n := range c.nodes {
		text, err := os.ReadFile(n.log)
		if err != nil {
			found = append(found, err.Error())
		}
		for _, line := range unexplained.FindAllString(string(text), -1) {
			found = append(found, n.id+": "+strings.TrimSpace(line))
		}
	}
	return found[:min(len(found), 10)]
}

// checkAndReport checks the history and writes the report.
func (c *cluster) checkAndReport(o *options, h *check.History, failed error) (*runReport, error) {
	h.Plan.CompleteEvents = c.audited
	r := &runReport{
		Report: check.Check(h), history: h, command: o.reproduceCommand(), epochs: c.epochs, notes: c.readerNotes(),
	}
	if failed != nil {
		r.Invalid = append(r.Invalid, failed.Error())
	}
	r.analyze()
	if len(r.faults) < o.faults {
		missing := fmt.Sprintf("%d faults happened, and %d were asked for", len(r.faults), o.faults)
		r.Invalid = append(r.Invalid, missing)
	}
	for _, line := range c.unexplainedLogLines() {
		r.Violations = append(r.Violations, check.Finding{Check: "log", Text: line})
	}
	if err := r.write(c.dir); err != nil {
		return nil, err
	}
	fmt.Print(r)
	if r.OK() { // history.jsonl has it all; the nodes' data may explain what is wrong
		return r, errors.Join(os.RemoveAll(c.historyDir()), os.RemoveAll(filepath.Join(c.dir, "data")),
			os.RemoveAll(filepath.Join(c.dir, "zamok")))
	}
	return r, nil
}

// readerNotes are what else a reader must know.
func (c *cluster) readerNotes() (all []string) {
	for _, n := range c.nodes {
		if len(n.unexpectedExits) > 0 {
			all = append(all, fmt.Sprintf("%s ended by itself, and was started again: %s", n.id,
				strings.Join(n.unexpectedExits, ", ")))
		}
	}
	return append(all, c.notes...)
}
