package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zamok/client"
)

// Faults that take long have a worker of their own, so that the others go on beside them.

const (
	// trailing is how many entries nodes keep in front of a snapshot: who is further behind needs it.
	trailing = 4096
	// behindMost is how long a follower may be kept away for that.
	behindMost  = 110 * time.Second
	replaceMost = 60 * time.Second
	// wipeMost is how long a wiped node may take to get its place back: the lost directory has to be silent
	// for 30 s of one leadership first.
	wipeMost = 2 * time.Minute
	// termEntries is how many entries there are in a term beside those that the nodes count.
	termEntries = 10
)

func slowKinds() []kind {
	return []kind{
		{"snapshot to a follower, leader dies", (*faults).snapshot},
		{"replace node", (*faults).replace},
	}
}

// loneKinds are chosen by their names only, since they need a leader that stays.
func loneKinds() []kind {
	return []kind{{"wipe node", (*faults).wipe}}
}

func slow(k kind) bool {
	return slices.ContainsFunc(append(slowKinds(), loneKinds()...), func(s kind) bool { return s.name == k.name })
}

// bigKinds need five nodes.
func bigKinds() []kind {
	return []kind{{"two killed, one paused", (*faults).twoAndOne}}
}

// snapshot keeps a follower away until it needs a snapshot, and kills the leader when it comes back. Without it
// the others must be a majority, so all are to have a vote: nothing gets on otherwise.
func (f *faults) snapshot(t *turn) string {
	nodes := f.take(t, false, 1)
	if len(nodes) == 0 || !f.allVote(t.ctx) {
		return ""
	}
	n := nodes[0]
	n.kill()
	at := f.written()
	for until := now() + behindMost; f.oldest(n) < at+trailing && now() < until; {
		if !pause(t.ctx, time.Second) {
			break
		}
	}
	log, err := os.ReadFile(n.log)
	if err != nil {
		f.say("%v", err)
	}
	f.restart(n)
	if l := f.take(t, true, 1); len(l) > 0 {
		l[0].kill()
		pause(t.ctx, t.lasts)
		f.restart(l...)
	}
	for until := now() + readyMost; now() < until; {
		if text, err := os.ReadFile(n.log); err == nil && bytes.Contains(text[len(log):], []byte("Installed remote snapshot")) {
			return n.id
		}
		if !pause(f.over, 200*time.Millisecond) {
			break
		}
	}
	f.say("%s was kept away and needed no snapshot", n.id)
	return ""
}

// oldest is the least index of the newest snapshots of the nodes but one: what comes trailing before it is
// in no log any more.
func (f *faults) oldest(but *node) uint64 {
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

// replace loses a node with its disk, and has another take its place under a new id.
func (f *faults) replace(t *turn) string {
	nodes := f.takeAny(t, 1)
	if len(nodes) == 0 || !f.allVote(t.ctx) {
		return ""
	}
	old := nodes[0]
	old.kill()
	pause(t.ctx, t.lasts)
	ctx, cancel := context.WithTimeout(f.over, replaceMost)
	defer cancel()
	gone := func(all []client.Member) bool { return at(all, old.id) < 0 }
	if !f.until(ctx, gone, func() error { return f.client.Remove(ctx, old.id) }) {
		f.say("%s could not be removed within %v", old.id, replaceMost)
		f.restart(old)
		return ""
	}
	old.mu.Lock()
	old.retired = true
	old.mu.Unlock()
	fresh, err := f.add("--join", f.others(old)[0].address(clientPort))
	if err != nil {
		f.say("%v", err)
		return ""
	}
	voter := func(all []client.Member) bool { i := at(all, fresh.id); return i >= 0 && all[i].Voter }
	if !f.until(ctx, voter, fresh.start) {
		f.say("%s did not become a voter within %v", fresh.id, replaceMost)
	}
	return old.id + " by " + fresh.id
}

// wipe takes a node its data away and starts it again with the flags that it always had: it takes its own
// place. The cluster gives a name to another directory once in ten minutes.
func (f *faults) wipe(t *turn) string {
	nodes := f.takeAny(t, 1)
	if len(nodes) == 0 || nodes[0].wiped || !f.allVote(t.ctx) {
		return ""
	}
	n := nodes[0]
	incarnation := func(all []client.Member) string {
		if i := at(all, n.id); i >= 0 && all[i].Voter {
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
	n.wiped = true
	files, err := os.ReadDir(n.data)
	for _, file := range files {
		if file.Name() != "lost+found" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(n.data, file.Name())))
		}
	}
	if err != nil {
		f.say("%v", err)
	}
	ctx, cancel := context.WithTimeout(f.over, wipeMost)
	defer cancel()
	back := func(all []client.Member) bool { now := incarnation(all); return now != "" && now != lost }
	if !f.until(ctx, back, n.start) {
		f.say("%s did not take its own place within %v", n.id, wipeMost)
		return ""
	}
	return n.id
}

// allVote tells whether every node has a vote, so that the others can do without one of them.
func (f *faults) allVote(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, _, err := f.client.Members(ctx)
	return err == nil && !slices.ContainsFunc(all, func(m client.Member) bool { return !m.Voter })
}

func at(all []client.Member, id string) int {
	return slices.IndexFunc(all, func(m client.Member) bool { return m.ID == id })
}

// until does something again and again until the members are as they should be.
func (f *faults) until(ctx context.Context, is func([]client.Member) bool, do func() error) bool {
	for ctx.Err() == nil {
		if all, _, err := f.client.Members(ctx); err == nil && is(all) {
			return true
		}
		if err := do(); err != nil {
			f.say("%v", err)
		}
		pause(ctx, 500*time.Millisecond)
	}
	return false
}

// twoAndOne kills two of five nodes, and stops a third for a while: each in turn, with a majority between.
func (f *faults) twoAndOne(t *turn) string {
	all := f.takeAny(t, len(f.members()))
	if len(all) < 5 {
		return ""
	}
	var struck []string
	for i := range all {
		a, b, c := all[i], all[(i+1)%len(all)], all[(i+2)%len(all)]
		a.kill()
		b.kill()
		c.signal(syscall.SIGSTOP)
		pause(t.ctx, t.lasts/2)
		c.signal(syscall.SIGCONT)
		pause(t.ctx, t.lasts/2)
		f.restart(a, b)
		struck = append(struck, fmt.Sprintf("%s,%s and %s", a.id, b.id, c.id))
		if !pause(t.ctx, 2*election) {
			break
		}
	}
	return strings.Join(struck, "; ")
}
