package sim

import (
	"bytes"
	"context"
	"sync"
	"time"

	"zamok/client"
	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

const (
	backupHost = "k1" // runs a program that takes backups
	// backupEvery is the longest time between two backups.
	backupEvery = time.Minute
)

// backups are those that a program took.
type backups struct {
	mu     sync.Mutex
	latest []byte // nil = none yet; guarded by mu
	taken  int    // guarded by mu
}

// last is the latest one; nil = there is none.
func (b *backups) last() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.latest
}

// takeBackups runs a program that takes backups until the load ends. Each is compared with the log.
func (l *Load) takeBackups() (end func()) {
	p, random := l.newProgram(backupHost, backupHost, client.Config{}), l.Random("backups")
	return background(func(context.Context) {
		for workload.Sleep(l.ending, workload.UpTo(random, backupEvery)) {
			var backup bytes.Buffer
			ctx, cancel := context.WithTimeout(l.ending, callTimeout)
			_, err := p.admin().Backup(ctx, &backup)
			cancel()
			if err != nil {
				continue
			}
			m, err := fsm.Restore(bytes.NewReader(backup.Bytes()))
			if err != nil {
				l.Audit.Violation("a backup is none: %v", err)
				continue
			}
			l.Audit.restored("a backup", m)
			l.backups.mu.Lock()
			l.backups.latest, l.backups.taken = backup.Bytes(), l.backups.taken+1
			l.backups.mu.Unlock()
		}
		_ = p.Close()
		p.stack.CloseAll()
	})
}

// restoredCluster restores a backup on a new machine, after the nodes have ended, and starts it
// with two more machines that are to join. It is a cluster of its own, in the same bubble, on the
// same network and with the same storage: a Sim with an audit and a history of its own, whose
// moments are those of the old one.
func (s *Sim) restoredCluster(backup []byte, holdOff time.Duration) (*Sim, error) {
	next := &Sim{
		TB: s.TB, Seed: s.Seed + 1, Network: s.Network, Trace: s.Trace, Audit: newAudit(s.began),
		config: s.config, began: s.began, initialMembers: 3, moves: map[string]int{},
	}
	next.record = newRecorder(next)
	next.record.resource = s.record.resource
	for _, id := range []string{"r1", "r2", "r3"} {
		next.AddNode(id, id)
	}
	first := next.nodes[0]
	first.Disk.dir, first.Disk.memory, first.alone = s.TempDir(), nil, true
	next.Cleanup(func() {
		for _, n := range next.Nodes() {
			n.Kill()
		}
		if n := next.unanswered.Load(); n != 0 {
			next.Errorf("%d proposals to the restored cluster were not answered exactly once", n)
		}
	})
	restored, err := raftnode.Restore(bytes.NewReader(backup), raftnode.RestoreConfig{
		Node: first.Peer(), Dir: first.Disk.dir, HoldOff: clock.FromDuration(holdOff),
	})
	if err != nil {
		return nil, err
	}
	s.Trace.Fault("a backup was restored on %s; tokens are above %d, and nothing is granted for %v",
		first.ID, restored.Index, restored.HoldOff)
	next.Audit.startsAt = restored.Index
	for _, n := range next.nodes[1:] {
		n.joinedCluster = restored.Cluster
	}
	return next, nil
}

// aloneList is the --cluster list that names only this node, as that of a restored one.
func (n *Node) aloneList() peer.List {
	list, err := peer.ParseList(n.ID + "=" + n.Address())
	if err != nil {
		n.sim.Fatal(err)
	}
	return list
}
