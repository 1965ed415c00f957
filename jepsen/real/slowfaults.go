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
func (t *injection) forceSnapshotInstall() string {
	nodes := followerNode(t)
	if len(nodes) == 0 || !t.allVoters() {
		return ""
	}
	n := nodes[0]
	n.kill()
	at := t.appliedIndex()
	await(t.ctx, laggingMax, time.Second, func() bool { return t.oldestSnapshotIndex(n) >= at+trailingEntries })
	log, err := os.ReadFile(n.log)
	if err != nil {
		t.logf("%v", err)
	}
	t.restart(n)
	if l := leaderNode(t); len(l) > 0 {
		l[0].kill()
		t.wait(t.duration)
		t.restart(l...)
	}
	installed := func() bool {
		text, err := os.ReadFile(n.log)
		return err == nil && bytes.Contains(text[len(log):], []byte("Installed remote snapshot"))
	}
	if !await(t.done, nodeReadyTimeout, 200*time.Millisecond, installed) {
		t.logf("%s was kept away and needed no snapshot", n.id)
		return ""
	}
	return n.id
}

// appliedIndex is the greatest index that a node has applied.
func (t *injection) appliedIndex() (index uint64) {
	for _, n := range t.members() {
		if counts, err := n.metrics(t.done); err == nil {
			index = max(index, uint64(counts["zamok_applied_index"]))
		}
	}
	return index
}

// oldestSnapshotIndex is the least index of the newest snapshots of the nodes but one: what comes trailing before it is
// in no log any more.
func (t *injection) oldestSnapshotIndex(but *node) uint64 {
	least := ^uint64(0)
	for _, n := range t.others(but) {
		names, _ := filepath.Glob(filepath.Join(n.data, "snapshots", "*-*-*")) // its error is about the pattern
		newest := uint64(0)
		for _, name := range names {
			index, err := strconv.ParseUint(strings.Split(filepath.Base(name), "-")[1], 10, 64)
			if err == nil && !strings.HasSuffix(name, ".tmp") {
				newest = max(newest, index)
			}
		}
		least = min(least, newest)
	}
	return least
}

// replaceNode loses a node with its disk, and has another take its place under a new id.
func (t *injection) replaceNode() string {
	nodes := anyNode(t)
	if len(nodes) == 0 || !t.allVoters() {
		return ""
	}
	old := nodes[0]
	old.kill()
	t.wait(t.duration)
	ctx, cancel := context.WithTimeout(t.done, replaceTimeout)
	defer cancel()
	gone := func(all []client.Member) bool { return memberOf(all, old.id) == nil }
	if !t.awaitMembers(ctx, gone, func() error { return t.client.Remove(ctx, old.id) }) {
		t.logf("%s could not be removed within %v", old.id, replaceTimeout)
		t.restart(old)
		return ""
	}
	old.mu.Lock()
	old.removed = true
	old.mu.Unlock()
	fresh, err := t.addNode("--join", t.others(old)[0].address(clientPort))
	if err != nil {
		t.logf("%v", err)
		return ""
	}
	voter := func(all []client.Member) bool { m := memberOf(all, fresh.id); return m != nil && m.Voter }
	if !t.awaitMembers(ctx, voter, fresh.start) {
		t.logf("%s did not become a voter within %v", fresh.id, replaceTimeout)
	}
	return old.id + " by " + fresh.id
}

// wipeNode takes a node its data away and starts it again with the flags that it always had: it takes its own
// place. The cluster gives a name to another directory once in ten minutes.
func (t *injection) wipeNode() string {
	nodes := anyNode(t)
	if len(nodes) == 0 || nodes[0].dataWiped || !t.allVoters() {
		return ""
	}
	n := nodes[0]
	all, _, err := t.client.Members(t.ctx)
	before := memberOf(all, n.id)
	if err != nil || before == nil || before.Incarnation == "" {
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
		t.logf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.done, wipeTimeout)
	defer cancel()
	back := func(all []client.Member) bool {
		m := memberOf(all, n.id)
		return m != nil && m.Voter && m.Incarnation != "" && m.Incarnation != before.Incarnation
	}
	if !t.awaitMembers(ctx, back, n.start) {
		t.logf("%s did not take its own place within %v", n.id, wipeTimeout)
		return ""
	}
	return n.id
}

// allVoters reports whether every node has a vote, so that the others can do without one of them.
func (t *injection) allVoters() bool {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	all, _, err := t.client.Members(ctx)
	return err == nil && !slices.ContainsFunc(all, func(m client.Member) bool { return !m.Voter })
}

// memberOf finds a member; nil: it is none.
func memberOf(all []client.Member, id string) *client.Member {
	if i := slices.IndexFunc(all, func(m client.Member) bool { return m.ID == id }); i >= 0 {
		return &all[i]
	}
	return nil
}

// awaitMembers does something again and again until the members are as they should be.
func (t *injection) awaitMembers(ctx context.Context, satisfied func([]client.Member) bool, do func() error) bool {
	return await(ctx, max(replaceTimeout, wipeTimeout), 500*time.Millisecond, func() bool {
		if all, _, err := t.client.Members(ctx); err == nil && satisfied(all) {
			return true
		}
		if err := do(); err != nil {
			t.logf("%v", err)
		}
		return false
	})
}
