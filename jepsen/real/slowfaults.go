package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"zamok/client"
)

// Faults that take long have a worker of their own, so that the others continue beside them.

const (
	// trailingEntries is how many entries nodes keep before a snapshot: a node further behind needs the snapshot.
	trailingEntries = 4096
	// laggingMax is how long a follower may be kept away for that.
	laggingMax     = 110 * time.Second
	replaceTimeout = 60 * time.Second
	// wipeTimeout is how long a wiped node may take to get its place back: the lost directory has to be silent
	// for 30 s of one leadership first.
	wipeTimeout = 2 * time.Minute
)

// forceSnapshotInstall keeps a follower away until it needs a snapshot, and kills the leader when it comes back. Without it
// the others must be a majority, so all are to have a vote: nothing gets on otherwise.
func (f *nemesis) forceSnapshotInstall(t *injection) string {
	nodes := followerNode(f, t)
	if len(nodes) == 0 || !f.allVoters(t.ctx) {
		return ""
	}
	n := nodes[0]
	n.kill()
	at := f.appliedIndex()
	for until := monotonicNow() + laggingMax; f.oldestSnapshotIndex(n) < at+trailingEntries && monotonicNow() < until; {
		if !sleepContext(t.ctx, time.Second) {
			break
		}
	}
	log, err := os.ReadFile(n.log)
	if err != nil {
		f.logf("%v", err)
	}
	f.restart(n)
	if l := leaderNode(f, t); len(l) > 0 {
		l[0].kill()
		sleepContext(t.ctx, t.duration)
		f.restart(l...)
	}
	for until := monotonicNow() + nodeReadyTimeout; monotonicNow() < until; {
		text, err := os.ReadFile(n.log)
		if err == nil && bytes.Contains(text[len(log):], []byte("Installed remote snapshot")) {
			return n.id
		}
		if !sleepContext(f.done, 200*time.Millisecond) {
			break
		}
	}
	f.logf("%s was kept away and needed no snapshot", n.id)
	return ""
}

// appliedIndex is the greatest index that a node has applied.
func (f *nemesis) appliedIndex() (index uint64) {
	for _, n := range f.members() {
		if counts, err := n.metrics(f.done); err == nil {
			index = max(index, uint64(counts["zamok_applied_index"]))
		}
	}
	return index
}

// oldestSnapshotIndex is the least index of the newest snapshots of the nodes but one: what comes trailing before it is
// in no log any more.
func (f *nemesis) oldestSnapshotIndex(but *node) uint64 {
	least := ^uint64(0)
	for _, n := range f.others(but) {
		names, _ := filepath.Glob(filepath.Join(n.data, "snapshots", "*-*-*")) // its error is about the pattern
		newest := uint64(0)
		for _, name := range names {
			if parts := strings.Split(filepath.Base(name), "-"); !strings.HasSuffix(name, ".tmp") {
				index, err := strconv.ParseUint(parts[1], 10, 64)
				if err == nil {
					newest = max(newest, index)
				}
			}
		}
		least = min(least, newest)
	}
	return least
}

// replaceNode loses a node with its disk, and has another take its place under a new id.
func (f *nemesis) replaceNode(t *injection) string {
	nodes := anyNode(f, t)
	if len(nodes) == 0 || !f.allVoters(t.ctx) {
		return ""
	}
	old := nodes[0]
	old.kill()
	sleepContext(t.ctx, t.duration)
	ctx, cancel := context.WithTimeout(f.done, replaceTimeout)
	defer cancel()
	gone := func(all []client.Member) bool { return memberIndex(all, old.id) < 0 }
	if !f.awaitMembers(ctx, gone, func() error { return f.client.Remove(ctx, old.id) }) {
		f.logf("%s could not be removed within %v", old.id, replaceTimeout)
		f.restart(old)
		return ""
	}
	old.mu.Lock()
	old.removed = true
	old.mu.Unlock()
	fresh, err := f.addNode("--join", f.others(old)[0].address(clientPort))
	if err != nil {
		f.logf("%v", err)
		return ""
	}
	voter := func(all []client.Member) bool { i := memberIndex(all, fresh.id); return i >= 0 && all[i].Voter }
	if !f.awaitMembers(ctx, voter, fresh.start) {
		f.logf("%s did not become a voter within %v", fresh.id, replaceTimeout)
	}
	return old.id + " by " + fresh.id
}

// wipeNode takes a node its data away and starts it again with the flags that it always had: it takes its own
// place. The cluster gives a name to another directory once in ten minutes.
func (f *nemesis) wipeNode(t *injection) string {
	nodes := anyNode(f, t)
	if len(nodes) == 0 || nodes[0].dataWiped || !f.allVoters(t.ctx) {
		return ""
	}
	n := nodes[0]
	incarnation := func(all []client.Member) string {
		if i := memberIndex(all, n.id); i >= 0 && all[i].Voter {
			return all[i].Incarnation
		}
		return ""
	}
	all, _, err := f.client.Members(t.ctx)
	lost := incarnation(all)
	if err != nil || lost == "" {
		return ""
	}
	n.kill()
	n.dataWiped = true
	files, err := os.ReadDir(n.data)
	for _, file := range files {
		if file.Name() != "lost+found" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(n.data, file.Name())))
		}
	}
	if err != nil {
		f.logf("%v", err)
	}
	ctx, cancel := context.WithTimeout(f.done, wipeTimeout)
	defer cancel()
	back := func(all []client.Member) bool { now := incarnation(all); return now != "" && now != lost }
	if !f.awaitMembers(ctx, back, n.start) {
		f.logf("%s did not take its own place within %v", n.id, wipeTimeout)
		return ""
	}
	return n.id
}

// allVoters reports whether every node has a vote, so that the others can do without one of them.
func (f *nemesis) allVoters(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, _, err := f.client.Members(ctx)
	return err == nil && !slices.ContainsFunc(all, func(m client.Member) bool { return !m.Voter })
}

func memberIndex(all []client.Member, id string) int {
	return slices.IndexFunc(all, func(m client.Member) bool { return m.ID == id })
}

// awaitMembers does something again and again until the members are as they should be.
func (f *nemesis) awaitMembers(ctx context.Context, satisfied func([]client.Member) bool, do func() error) bool {
	for ctx.Err() == nil {
		if all, _, err := f.client.Members(ctx); err == nil && satisfied(all) {
			return true
		}
		if err := do(); err != nil {
			f.logf("%v", err)
		}
		sleepContext(ctx, 500*time.Millisecond)
	}
	return false
}
