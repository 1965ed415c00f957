package peer

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bootstrap is three machines whose disks come up empty. Each runs nodes, one after the other,
// until one of them has begun or was sent elsewhere.
type founding struct {
	*testCluster
	mu     sync.Mutex // guards what follows
	random *rand.Rand
	disks  map[string]*nodeData // by name: the one that is in the machine
	every  []*nodeData          // also those that were wiped
	wipes  int                  // as many disks may still be lost
}

func (f *founding) chance(oneIn int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(oneIn) == 0
}

func (f *founding) pause(max time.Duration) {
	f.mu.Lock()
	d := time.Duration(f.random.Int64N(int64(max)))
	f.mu.Unlock()
	time.Sleep(d)
}

// insert puts an empty disk into a machine.
func (f *founding) insert(name string) *nodeData {
	f.mu.Lock()
	defer f.mu.Unlock()
	server := serverOf(name)
	if f.disks[name] != nil {
		server = Server{name, incarnationOf(fmt.Sprint(name, " disk ", len(f.every)))}
	}
	d := newNodeData(server, mustList(f, threeNodes))
	f.disks[name] = d
	f.every = append(f.every, d)
	return d
}

// mayWipe reports whether a disk is lost now.
func (f *founding) mayWipe() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wipes == 0 || f.random.IntN(4) != 0 {
		return false
	}
	f.wipes--
	return true
}

// machine runs a name until one of its nodes has begun; nil: the cluster began without it.
func (f *founding) machine(name string) *raftProcess {
	f.pause(3 * time.Second)
	for d := f.insert(name); ; f.pause(time.Second) {
		p, killed := f.startEmpty(d)
		if !killed {
			return p
		}
		if f.mayWipe() {
			d = f.insert(name)
		}
	}
}

// startEmpty is what a node does with an empty directory. It may be killed at each step: before it
// asks, and before and after each of its two writes.
func (f *founding) startEmpty(d *nodeData) (p *raftProcess, killed bool) {
	m := openNode(f, f.testNetwork, Config{
		ID: d.Name, Incarnation: d.Incarnation, List: d.list, Advertise: d.address,
		Condition: d.condition,
	})
	kill := func() bool {
		if !f.chance(6) {
			return false
		}
		assert.NoError(f, m.Close())
		return true
	}
	for {
		if d.condition(Server{}).HasData { // it was killed right after it had begun
			return f.run(d, m), false
		}
		do := Decide(m.Mine(), m.AskAll(f.Context(), d.list.Nodes()))
		if kill() {
			return nil, true
		}
		switch do.Action {
		case Agree:
			d.agree(do.Initial)
		case Bootstrap:
			d.bootstrap(f.T)
		case Wait:
			time.Sleep(200 * time.Millisecond)
		case JoinElsewhere:
			assert.NoError(f, m.Close())
			return nil, false
		default:
			assert.Fail(f, "refused", "%s: %s", d.Server, do.Reason)
			assert.NoError(f, m.Close())
			return nil, false
		}
		if kill() {
			return nil, true
		}
	}
}

// first is the first entry that was written to a disk; nil: none was.
func (f *founding) first(d *nodeData) []byte {
	var entry raft.Log
	if d.logs.GetLog(1, &entry) != nil {
		return nil
	}
	require.Equal(f, raft.LogConfiguration, entry.Type)
	return entry.Data
}

// Three empty machines are started at any moments. Each asks until all have put the same list of
// initial members on disk and then begins, or finds one that has. They are killed at any step and,
// in every second run, one or two lose their disks between the steps. All end with the same first
// entry, and continue as one cluster; a machine whose disk was lost when another had begun is no
// part of it.
func TestBootstrapByAskingAllNodes(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	for round := range 60 {
		synctest.Test(t, func(t *testing.T) {
			f := &founding{testCluster: newTestCluster(t, false), random: random,
				disks: map[string]*nodeData{}, wipes: round % 3}
			defer f.stopAll()
			var begun [3]*raftProcess
			var starting sync.WaitGroup
			for i, name := range []string{"n1", "n2", "n3"} {
				starting.Go(func() { begun[i] = f.machine(name) })
			}
			starting.Wait()
			var up []*raftProcess
			var entry []byte
			for i, p := range begun {
				if p == nil {
					assert.Less(t, f.wipes, round%3,
						"n%d: only one that lost its disk is sent elsewhere", i+1)
					continue
				}
				up = append(up, p)
				if entry == nil {
					entry = f.first(p.nodeData)
				}
				require.Equal(t, entry, f.first(p.nodeData), p.Name)
			}
			require.GreaterOrEqual(t, len(up), 3-round%3)
			if len(up) < 2 {
				return // two of three disks were lost
			}
			f.write("acknowledged ", acknowledged, up...)

			// One that loses its disk later has to join.
			f.stop(up[0])
			d := f.insert(up[0].Name)
			p, killed := f.startEmpty(d)
			for killed {
				p, killed = f.startEmpty(d)
			}
			require.Nil(t, p)
			require.Nil(t, f.first(d))
		})
	}
}
