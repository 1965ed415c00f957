package main

import (
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

// requiredChecks are the checks that must have found something to look at. C6 is not one of them:
// leases that expire although their client lives are rare in a short run. C13 and C15 need what a
// node does not expose: the order of entries within a read, and digests, which the nodes compare
// themselves.
var requiredChecks = []string{"C1", "C2", "C3", "C4", "C5", "C8", "C9", "C10", "C11", "C12", "C14",
	"C16", "C17"}

// expirationSlack is by how much later than promised the end of a dead session may be seen: 1 s is
// part of the bound, the rest passes between two lists of the sessions.
const expirationSlack = 2*time.Second + 2*sessionsPollInterval

// collectHistory reads the records of all processes, and adds what follows only from all of them
// together.
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
	useHolds(h)
	c.recordDeaths(h)
	h.AddUnansweredGrants()
	return h, nil
}

// useHolds derives from the holds which sessions there were, also those that ended before the audit
// listed them, and since when each was open. It clears Queued, the time at which a call was first
// known to wait, unless the session that was granted the lock was open by then: queue positions are
// lost with a session.
func useHolds(h *check.History) {
	open := map[uint64]time.Duration{}
	for _, hold := range h.Holds {
		at, known := open[hold.Session]
		if !known || hold.From < at {
			open[hold.Session] = hold.From
		}
		if !known && !slices.ContainsFunc(h.Sessions,
			func(s check.Session) bool { return s.Session == hold.Session }) {
			h.Sessions = append(h.Sessions, sessionOf(hold.Session, hold.Client))
		}
	}
	for i := range h.Ops {
		op := &h.Ops[i]
		if at, known := open[op.Session]; !known || at > op.Queued {
			op.Queued = 0
		}
	}
}

// sessionOf is a session of a client.
func sessionOf(id uint64, label string) check.Session {
	cfg := configOf(label)
	return check.Session{Session: id, Client: label, TTL: cfg.TTL,
		ReleaseOnDisconnect: cfg.ReleaseOnDisconnect != 0}
}

// recordDeaths records when the last bytes of each client of a killed program arrived, with its
// sessions if it had any. Bytes may arrive a while after the kill.
func (c *cluster) recordDeaths(h *check.History) {
	for name, at := range c.deaths {
		at = max(at, c.network.lastDelivery(name))
		for _, label := range clientLabels(name) {
			for i := range h.Sessions {
				if h.Sessions[i].Client == label {
					h.Sessions[i].Died = at
				}
			}
			h.Sessions = append(h.Sessions, check.Session{Client: label, Died: at})
		}
	}
}

var unexplained = regexp.MustCompile(`(?m)^.*(?:panic:|fatal error:|DATA RACE|ALARM).*$`)

// unexplainedLogLines are lines in the logs of nodes that no fault explains.
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
	r := newReport(h, o.reproduceCommand())
	r.epochs, r.notes = c.epochs, c.notes
	for _, n := range c.nodes {
		if len(n.unexpectedExits) > 0 {
			r.notes = append(r.notes,
				fmt.Sprintf("%s ended by itself, and was started again: %s", n.id,
					strings.Join(n.unexpectedExits, ", ")))
		}
	}
	if failed != nil {
		r.Invalid = append(r.Invalid, failed.Error())
	}
	if len(r.faults) < o.faults {
		r.Invalid = append(r.Invalid,
			fmt.Sprintf("%d faults happened, and the run requires %d", len(r.faults), o.faults))
	}
	for _, line := range c.unexplainedLogLines() {
		r.Violations = append(r.Violations, check.Finding{Check: "log", Text: line})
	}
	if err := r.write(c.dir); err != nil {
		return nil, err
	}
	fmt.Print(r)
	if r.OK() { // otherwise the nodes' data may explain what is wrong
		return r, errors.Join(os.RemoveAll(c.historyDir()),
			os.RemoveAll(filepath.Join(c.dir, "data")),
			os.RemoveAll(filepath.Join(c.dir, "zamok")))
	}
	return r, nil
}
