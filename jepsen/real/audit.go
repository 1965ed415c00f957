package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// The audit sees what happens to all locks and when sessions end, by watching; which sessions exist and how long
// cluster time stood, by polling; and for how long a client that uses a lock of its own
// can't have it. It is also the operator that takes locks away.
//
// Nothing is asked of the cluster before the watch has begun and the sessions were listed once, and the audit
// ends after the last session of the programs: so what is not in its record did not happen.

const (
	sessionsPollInterval = 250 * time.Millisecond
	probeInterval        = 20 * time.Millisecond
	operatorPauseMax     = 2 * time.Second
	watchStartTimeout    = 30 * time.Second
	// watchRestartsMax is how often the watch is restarted when a node has compacted its history.
	watchRestartsMax = 50
	// noCommitThreshold is how long a list of the sessions may take before that counts as a time without commits.
	noCommitThreshold = time.Second
	listLimit         = 1000
	// operatorFaultRatio: one in this many looks of the operator is followed by a forced end.
	operatorFaultRatio = 3
	prober             = "probe"
)

// auditClients are the audit's clients.
var auditClients = []string{"watch", "operator", prober}

type audit struct {
	*subprocess
	ready sync.WaitGroup // the watch, and the list of sessions

	mu       sync.Mutex         // guards what follows
	gaps     []error            // what it did not see
	released map[check.Ref]bool // of the audit's last lock, once the watch has shown it
}

func (o *subprocess) runAudit() error {
	a := &audit{subprocess: o, released: map[check.Ref]bool{}}
	var workers []*workload.Worker
	for _, label := range auditClients {
		t, err := o.newWorkers(label, 1)
		if err != nil {
			return err
		}
		workers = append(workers, t...)
	}
	watching, stop := context.WithCancel(o.ctx)
	defer stop()
	var watcher, work sync.WaitGroup
	a.ready.Add(2)
	watcher.Go(func() { a.watch(watching, workers[0].Client) })
	work.Go(func() { a.pollSessions(workers[0].Client) })
	a.ready.Wait()
	if err := os.WriteFile(readyFile(filepath.Dir(o.File)), nil, 0o644); err != nil { // nothing that is done from now on is missed
		a.recordGap("the file that marks the audit's beginning: %v", err)
	}
	work.Go(func() { a.operate(workers[1]) })
	work.Go(func() { a.probe(workers[2]) })
	work.Wait()
	a.finalOperation(workers[2])
	stop()
	watcher.Wait()
	for _, t := range workers {
		a.gaps = append(a.gaps, t.Close())
	}
	return errors.Join(a.gaps...)
}

// recordGap records that something was not seen.
func (a *audit) recordGap(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps = append(a.gaps, fmt.Errorf(format, args...))
}

// watch follows all locks and sessions from the first index that it is given.
func (a *audit) watch(ctx context.Context, c *client.Client) {
	begun := sync.OnceFunc(a.ready.Done)
	defer begun()
	var from uint64
	tries := 0
	for ctx.Err() == nil {
		for batch, err := range c.Watch(ctx, "", from) {
			if err == nil {
				from, tries = batch.Index, 0
				begun()
				a.recordBatch(batch)
				continue
			}
			// What one node has compacted, another may still have: one that installed a snapshot has nothing.
			if tries++; ctx.Err() == nil && (!errors.Is(err, client.ErrCompacted) || tries == watchRestartsMax) {
				a.recordGap("the watch ended after index %d: %v", from, err)
				from = 0
			}
			break
		}
		workload.Sleep(ctx, 100*time.Millisecond)
	}
}

// readyFile is there once the audit has begun.
func readyFile(historyDir string) string { return filepath.Join(historyDir, "audit.watching") }

func (a *audit) recordBatch(batch client.EventBatch) {
	at := monotonicNow()
	for _, ev := range batch.Events {
		ref := check.Ref{Session: ev.Session, Ticket: ev.Ticket}
		if ev.Kind == client.EventCancelled { // the checker asks the token whether there was a grant
			ev.Kind = client.EventReleased
		}
		a.record.put(check.Record{Event: &check.Event{
			Node: "watch", At: at, Index: ev.Index, Kind: check.EventKind(ev.Kind.String()),
			Ref: ref, Token: uint64(ev.Token), Reason: ev.Reason, Items: check.ItemsOf(ev.Items), Client: ev.Label,
		}})
		if ev.Kind == client.EventReleased && a.ending.Err() != nil {
			a.mu.Lock()
			a.released[ref] = true
			a.mu.Unlock()
		}
	}
}

// pollSessions lists them again and again. What is missing of the cluster's time between two answers is time that
// did not pass; and one that is listed no more has ended: the watch has that too, but may have it late, as when
// its node is paused. When all is over it waits for the sessions of the killed programs.
func (a *audit) pollSessions(c *client.Client) {
	begun := sync.OnceFunc(a.ready.Done)
	defer begun()
	patience, giveUp := context.WithCancel(a.ctx)
	defer giveUp()
	stop := context.AfterFunc(a.ending, func() { time.AfterFunc(drainMax, giveUp) })
	defer stop()
	live := map[uint64]string{}
	var before client.Stamp
	var asked time.Duration // when the answer before was asked for
	for done := false; !done && patience.Err() == nil; {
		over, call := a.ending.Err() != nil, monotonicNow()
		list, at, err := c.Sessions(patience, 0, listLimit)
		back := monotonicNow()
		if err == nil {
			begun()
			if len(list) == listLimit {
				a.recordGap("there are %d sessions, and perhaps more", listLimit)
			}
			a.recordEndedSessions(live, list, back)
			done = over && !slices.ContainsFunc(list, func(s client.SessionInfo) bool { return !slices.Contains(auditClients, s.Label) })
			if asked != 0 {
				if back-asked > noCommitThreshold {
					a.record.put(check.Record{Stall: &check.Stall{Reason: "no answer", From: asked, To: back,
						CommitsBlocked: true}})
				}
				if lost := back - asked - (at.Time - before.Time); lost > 0 {
					a.record.put(check.Record{Stall: &check.Stall{Reason: "cluster time stood", From: asked,
						To: back, LostTime: lost}})
				}
			}
			before, asked = at, call
		}
		workload.Sleep(patience, sessionsPollInterval)
	}
}

func (a *audit) recordEndedSessions(live map[uint64]string, list []client.SessionInfo, back time.Duration) {
	listed := map[uint64]bool{}
	for _, s := range list {
		listed[s.Session] = true
		if live[s.Session] == "" {
			live[s.Session] = s.Label
			session := sessionOf(s.Session, s.Label)
			a.record.put(check.Record{Session: &session})
		}
	}
	for id := range live {
		if !listed[id] {
			delete(live, id)
			a.record.put(check.Record{Event: &check.Event{
				Node: "sessions", At: back, Kind: check.EvEnded, Ref: check.Ref{Session: id},
			}})
		}
	}
}

// operate looks, and now and then ends what others hold.
func (a *audit) operate(t *workload.Worker) {
	for a.ending.Err() == nil {
		workload.Sleep(a.ending, time.Duration(t.Int64N(int64(operatorPauseMax))))
		inUse, _, err := t.List(a.ctx, "", "", listLimit)
		if err != nil || len(inUse) == 0 {
			continue
		}
		if name := inUse[t.IntN(len(inUse))].Name; name != prober {
			t.Interfere(name, operatorFaultRatio)
		}
	}
	t.AwaitAnswer()
}

// probe locks and unlocks a lock of its own.
func (a *audit) probe(t *workload.Worker) {
	for a.ending.Err() == nil {
		if l, h := t.Lock(prober); l != nil {
			t.Unlock(l, h)
		}
		workload.Sleep(a.ending, probeInterval)
	}
}

// finalOperation does the last thing of the whole run, and sees it in the watch: so nothing before it is missing.
func (a *audit) finalOperation(t *workload.Worker) {
	l, h := t.Lock("last of the audit")
	if l == nil {
		a.recordGap("the audit's last lock was not granted")
		return
	}
	t.Unlock(l, h)
	t.AwaitAnswer()
	seen := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.released[h.Ref]
	}
	if !await(a.ctx, watchStartTimeout, 10*time.Millisecond, seen) {
		a.recordGap("the watch did not show the audit's last release within %v", watchStartTimeout)
	}
}
