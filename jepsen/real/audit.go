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
	"zamok/client/admin"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// The audit watches all locks and sessions. It polls which sessions exist and how long cluster time
// stood, and its probe measures for how long a client can't get a lock of its own. It is also the
// operator, who force-releases locks and expires sessions.
//
// No program sends a request before the watch has begun and the sessions were listed once, and the
// audit ends after the last session of the programs. So only what is in its record happened.

const (
	sessionsPollInterval = 250 * time.Millisecond
	probeInterval        = 20 * time.Millisecond
	operatorIntervalMax  = 2 * time.Second
	watchStartTimeout    = 30 * time.Second
	// watchRestartsMax is how often the watch is restarted when a node has compacted its history.
	watchRestartsMax = 50
	// noCommitThreshold is how long a list of the sessions may take before that counts as a time
	// without commits.
	noCommitThreshold = time.Second
	listLimit         = 1000
	// operatorFaultRatio: one in this many reads of the operator is followed by a forced end.
	operatorFaultRatio = 3
	prober             = "probe"
)

// auditClients are the audit's clients.
var auditClients = []string{"watch", "operator", prober}

type audit struct {
	*subprocess
	ready sync.WaitGroup // the watch, and the list of sessions

	mu       sync.Mutex         // guards what follows
	gaps     []error            // what it did not record, and why
	released map[check.Ref]bool // of the audit's last lock, once the watch has shown it
}

func (o *subprocess) runAudit() error {
	a := &audit{subprocess: o, released: map[check.Ref]bool{}}
	var workers []*workload.Worker
	for _, label := range auditClients {
		one, err := o.newWorkers(label, 1)
		if err != nil {
			return err
		}
		workers = append(workers, one...)
	}
	watching, stop := context.WithCancel(o.ctx)
	defer stop()
	var watcher, work sync.WaitGroup
	a.ready.Add(2)
	watcher.Go(func() { a.watch(watching, workers[0].Client) })
	work.Go(func() { a.pollSessions(workers[0].Client) })
	a.ready.Wait()
	// nothing that is done from now on is missed
	if err := os.WriteFile(readyFile(filepath.Dir(o.File)), nil, 0o644); err != nil {
		a.recordGap("the file that marks the audit's beginning: %v", err)
	}
	work.Go(func() { a.operate(workers[1]) })
	work.Go(func() { a.probe(workers[2]) })
	work.Wait()
	a.finalOperation(workers[2])
	stop()
	watcher.Wait()
	for _, w := range workers {
		a.gaps = append(a.gaps, w.Close())
	}
	return errors.Join(a.gaps...)
}

// recordGap records that the audit missed something.
func (a *audit) recordGap(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps = append(a.gaps, fmt.Errorf(format, args...))
}

// watch follows all locks and sessions from the first index that the cluster offers.
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
			// What one node has compacted, another may still have: one that installed a snapshot
			// has nothing.
			if tries++; ctx.Err() == nil &&
				(!errors.Is(err, client.ErrCompacted) || tries == watchRestartsMax) {
				a.recordGap("the watch ended after index %d: %v", from, err)
				from = 0
			}
			break
		}
		workload.Sleep(ctx, 100*time.Millisecond)
	}
}

// readyFile exists once the audit has begun.
func readyFile(historyDir string) string { return filepath.Join(historyDir, "audit.watching") }

func (a *audit) recordBatch(batch client.EventBatch) {
	at := monotonicNow()
	for _, ev := range batch.Events {
		ref := check.Ref{Session: ev.Session, Ticket: ev.Ticket}
		if ev.Kind == client.EventCancelled { // the token tells whether there was a grant
			ev.Kind = client.EventReleased
		}
		a.record.put(check.Record{Event: &check.Event{
			Node: "watch", At: at, Index: ev.Index, Kind: check.EventKind(ev.Kind.String()),
			Ref: ref, Token: uint64(ev.Token), Reason: ev.Reason, Items: check.ItemsOf(ev.Items),
			Client: ev.Label,
		}})
		if ev.Kind == client.EventReleased && a.ending.Err() != nil {
			a.mu.Lock()
			a.released[ref] = true
			a.mu.Unlock()
		}
	}
}

// pollSessions lists the sessions again and again. Cluster time that is missing between two answers
// did not pass. A session that is listed no longer has ended; the watch shows that too, but perhaps
// late, as when its node is paused. In the end it waits until the sessions of killed programs are
// over.
func (a *audit) pollSessions(c *client.Client) {
	begun := sync.OnceFunc(a.ready.Done)
	defer begun()
	polling, giveUp := context.WithCancel(a.ctx)
	defer giveUp()
	stop := context.AfterFunc(a.ending, func() { time.AfterFunc(drainMax, giveUp) })
	defer stop()
	live := map[uint64]string{}
	var before client.Stamp
	var calledBefore time.Duration // when the call before was made
	for done := false; !done && polling.Err() == nil; {
		over, called := a.ending.Err() != nil, monotonicNow()
		list, at, err := admin.New(c).Sessions(polling, 0, listLimit)
		returned := monotonicNow()
		if err == nil {
			begun()
			if len(list) == listLimit {
				a.recordGap("there are %d sessions, and perhaps more", listLimit)
			}
			a.recordEndedSessions(live, list, returned)
			done = over && !slices.ContainsFunc(list,
				func(s admin.SessionInfo) bool { return !slices.Contains(auditClients, s.Label) })
			if calledBefore != 0 {
				if returned-calledBefore > noCommitThreshold {
					a.record.put(check.Record{Stall: &check.Stall{
						Reason: "no answer", From: calledBefore, To: returned, CommitsBlocked: true,
					}})
				}
				if lost := returned - calledBefore - (at.Time - before.Time); lost > 0 {
					a.record.put(check.Record{Stall: &check.Stall{
						Reason: "cluster time stood", From: calledBefore, To: returned,
						LostTime: lost,
					}})
				}
			}
			before, calledBefore = at, called
		}
		workload.Sleep(polling, sessionsPollInterval)
	}
}

func (a *audit) recordEndedSessions(
	live map[uint64]string, list []admin.SessionInfo, at time.Duration,
) {
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
				Node: "sessions", At: at, Kind: check.EvEnded, Ref: check.Ref{Session: id},
			}})
		}
	}
}

// operate reads locks, and now and then ends what others hold.
func (a *audit) operate(w *workload.Worker) {
	for a.ending.Err() == nil {
		workload.Sleep(a.ending, workload.UpTo(w.Rand, operatorIntervalMax))
		inUse, _, err := w.List(a.ctx, "", "", listLimit)
		if err != nil || len(inUse) == 0 {
			continue
		}
		if name := inUse[w.IntN(len(inUse))].Name; name != prober {
			w.Interfere(name, operatorFaultRatio)
		}
	}
	w.AwaitRead()
}

// probe locks and unlocks its own lock again and again.
func (a *audit) probe(w *workload.Worker) {
	for a.ending.Err() == nil {
		if l, h := w.Lock(prober); l != nil {
			w.Unlock(l, h)
		}
		workload.Sleep(a.ending, probeInterval)
	}
}

// finalOperation makes the last release of the run, and waits until the watch shows it. Then
// nothing before it is missing.
func (a *audit) finalOperation(w *workload.Worker) {
	l, h := w.Lock("last of the audit")
	if l == nil {
		a.recordGap("the audit's last lock was not granted")
		return
	}
	w.Unlock(l, h)
	w.AwaitRead()
	seen := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.released[h.Ref]
	}
	if !await(a.ctx, watchStartTimeout, 10*time.Millisecond, seen) {
		a.recordGap("the watch did not show the audit's last release within %v", watchStartTimeout)
	}
}
