package peer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// header is how a node of threeNodes names itself in a request.
func header(from *raftProcess) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(from.ID()), Addr: []byte(from.address)}
}

// A harm is a request that would change a node's term, or its log, for good. It is sent over from's
// own connections, so the handshake lets it in.
type harm func(from, to *raftProcess, term uint64) error

func appending(from, to *raftProcess, change func(*raft.AppendEntriesRequest)) error {
	request := raft.AppendEntriesRequest{RPCHeader: header(from), Term: to.CurrentTerm()}
	change(&request)
	var response raft.AppendEntriesResponse
	return from.member.transport.AppendEntries(to.ID(), raft.ServerAddress(to.address), &request,
		&response)
}

func voting(from, to *raftProcess, change func(*raft.RequestVoteRequest)) error {
	request := raft.RequestVoteRequest{RPCHeader: header(from), LeadershipTransfer: true,
		LastLogIndex: 1 << 20}
	change(&request)
	var response raft.RequestVoteResponse
	return from.member.transport.RequestVote(to.ID(), raft.ServerAddress(to.address), &request,
		&response)
}

func installing(from, to *raftProcess, change func(*raft.InstallSnapshotRequest)) error {
	data := make([]byte, 1<<20) // more than what the connection holds on its way
	request := raft.InstallSnapshotRequest{
		RPCHeader: header(from), SnapshotVersion: 1, Term: to.CurrentTerm(), LastLogIndex: 1,
		LastLogTerm:   1,
		Configuration: raft.EncodeConfiguration(to.GetConfiguration().Configuration()),
		Size:          int64(len(data)),
	}
	change(&request)
	var response raft.InstallSnapshotResponse
	return from.member.transport.InstallSnapshot(to.ID(), raft.ServerAddress(to.address), &request,
		&response, bytes.NewReader(data))
}

// leaps are the requests that carry a term of their own.
var leaps = map[string]harm{
	"heartbeat": func(from, to *raftProcess, term uint64) error {
		return appending(from, to, func(a *raft.AppendEntriesRequest) { a.Term = term })
	},
	"append": func(from, to *raftProcess, term uint64) error {
		return appending(from, to,
			func(a *raft.AppendEntriesRequest) { a.Term, a.LeaderCommitIndex = term, 1 })
	},
	"vote": func(from, to *raftProcess, term uint64) error {
		return voting(from, to, func(v *raft.RequestVoteRequest) { v.Term = term })
	},
	"pre-vote": func(from, to *raftProcess, term uint64) error {
		request := raft.RequestPreVoteRequest{RPCHeader: header(from), Term: term,
			LastLogIndex: 1 << 20}
		var response raft.RequestPreVoteResponse
		return from.member.transport.RequestPreVote(to.ID(), raft.ServerAddress(to.address),
			&request, &response)
	},
	"snapshot": func(from, to *raftProcess, term uint64) error {
		return installing(from, to, func(s *raft.InstallSnapshotRequest) {
			s.Term, s.LastLogIndex = term, to.LastIndex()+1
		})
	},
}

// hidden are requests of a fitting term that carry another one, or an index, that leaps.
var hidden = map[string]harm{
	"entry of a later term than its request": func(from, to *raftProcess, term uint64) error {
		return appending(from, to, func(a *raft.AppendEntriesRequest) {
			last := to.LastIndex()
			var entry raft.Log
			_ = to.logs.GetLog(last, &entry)
			a.PrevLogEntry, a.PrevLogTerm = last, entry.Term
			a.Entries = []*raft.Log{{Index: last + 1, Term: term, Type: raft.LogNoop}}
		})
	},
	"entry far behind the end of the log": func(from, to *raftProcess, term uint64) error {
		return appending(from, to, func(a *raft.AppendEntriesRequest) {
			a.Entries = []*raft.Log{{Index: term, Term: a.Term, Type: raft.LogNoop}}
		})
	},
	"previous entry of a later term": func(from, to *raftProcess, term uint64) error {
		return appending(from, to,
			func(a *raft.AppendEntriesRequest) { a.PrevLogEntry, a.PrevLogTerm = 1, term })
	},
	"vote for a log of a later term": func(from, to *raftProcess, term uint64) error {
		return voting(from, to, func(v *raft.RequestVoteRequest) {
			v.Term, v.LastLogTerm = to.CurrentTerm()+1, term
		})
	},
	"pre-vote for a log of a later term": func(from, to *raftProcess, term uint64) error {
		request := raft.RequestPreVoteRequest{RPCHeader: header(from), Term: to.CurrentTerm() + 1,
			LastLogTerm: term}
		var response raft.RequestPreVoteResponse
		return from.member.transport.RequestPreVote(to.ID(), raft.ServerAddress(to.address),
			&request, &response)
	},
	"snapshot of a later term": func(from, to *raftProcess, term uint64) error {
		return installing(from, to, func(s *raft.InstallSnapshotRequest) { s.LastLogTerm = term })
	},
	"snapshot far behind the end of any log": func(from, to *raftProcess, _ uint64) error {
		return installing(from, to,
			func(s *raft.InstallSnapshotRequest) { s.LastLogIndex = math.MaxUint64 })
	},
	"snapshot of a configuration behind its end": func(from, to *raftProcess, term uint64) error {
		return installing(from, to,
			func(s *raft.InstallSnapshotRequest) { s.ConfigurationIndex = term })
	},
}

// threeRunning starts a cluster that has acknowledged something.
func threeRunning(t *testing.T) (*testCluster, [3]*raftProcess) {
	w := newTestCluster(t, false)
	d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
	all := [3]*raftProcess{w.start(d1), w.start(d2), w.start(d3)}
	w.write("before ", acknowledged, all[:]...)
	for _, p := range all {
		w.requireApplied(p, "before ", acknowledged)
	}
	return w, all
}

// serves demands that the cluster takes entries and that they reach all of its nodes.
func (w *testCluster) serves(all [3]*raftProcess, prefix string) {
	require.NotNil(w, w.leader(20*time.Second, all[:]...), "no leader: the terms are %d, %d, %d",
		all[0].CurrentTerm(), all[1].CurrentTerm(), all[2].CurrentTerm())
	w.write(prefix, acknowledged, all[:]...)
	for _, p := range all {
		w.requireApplied(p, prefix, acknowledged)
	}
}

// restarted starts all nodes again from their disks.
func (w *testCluster) restarted(all [3]*raftProcess) (again [3]*raftProcess) {
	for _, p := range all {
		w.stop(p)
	}
	for i, p := range all {
		again[i] = w.start(p.nodeData)
	}
	return again
}

func TestARequestThatLeapsIsRefused(t *testing.T) {
	for _, kinds := range []map[string]harm{leaps, hidden} {
		for name, send := range kinds {
			t.Run(name, func(t *testing.T) {
				t.Run("the last term there is", func(t *testing.T) {
					rejected(t, send, func(uint64) uint64 { return math.MaxUint64 })
				})
				t.Run("one too far", func(t *testing.T) {
					rejected(t, send, func(own uint64) uint64 { return own + termAdvanceMax + 1 })
				})
			})
		}
	}
}

// rejected sends a harm to each node of a cluster, which serves on, restarts included.
func rejected(t *testing.T, send harm, ahead func(own uint64) uint64) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		for i, to := range all {
			own, from := to.CurrentTerm(), all[(i+1)%3]
			assert.ErrorContains(t, send(from, to, ahead(own)), to.Name+" rejected", "the answer")
			assert.Less(t, to.CurrentTerm(), own+10)
			assert.Contains(t, to.member.logs.String(),
				"node="+from.Server.String()+" address="+from.address)
		}
		w.serves(all, "after ")
		w.serves(w.restarted(all), "restarted ")
	})
}

// What may come: a cluster that was restored from a backup has terms of the seconds since 1970, and
// a node that joins it has none.
func TestATermThatIsNotTooFarAheadPasses(t *testing.T) {
	for name, send := range leaps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, all := threeRunning(t)
				defer w.stopAll()
				own := all[0].CurrentTerm()
				for i, to := range all {
					if err := send(all[(i+1)%3], to, own+termAdvanceMax); err != nil {
						assert.NotContains(t, err.Error(), "refused") // a journal can't be restored
					}
				}
				if name != "pre-vote" { // which raises no term
					assert.GreaterOrEqual(t, all[0].CurrentTerm(), own+termAdvanceMax)
				}
				w.serves(all, "after ")
				if name != "snapshot" { // for the same reason
					w.serves(w.restarted(all), "restarted ")
				}
			})
		})
	}
}

// A peer in n3's place answers everything with the last term that there is. Its two companions
// continue without it, elections and restarts included.
func TestAnAnswerThatLeapsIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		w.stop(all[2])
		fake := w.impostor(all[2].nodeData, math.MaxUint64)
		logs := ""
		for _, prefix := range []string{"first ", "second ", "third "} {
			two := [2]*raftProcess{all[0], all[1]}
			require.NotNil(t, w.leader(20*time.Second, two[:]...), "the terms are %d, %d",
				two[0].CurrentTerm(), two[1].CurrentTerm())
			w.write(prefix, acknowledged, two[:]...)
			for i, p := range two {
				w.requireApplied(p, prefix, acknowledged)
				assert.Less(t, p.CurrentTerm(), uint64(1000))
				logs += p.member.logs.String()
				w.stop(p)
				all[i] = w.start(p.nodeData)
			}
		}
		assert.Contains(t, logs, "node="+all[2].Server.String()+" address="+all[2].address)
		assert.NoError(t, fake.Close())
	})
}

// impostor runs no raft: it answers whatever it is asked with a term.
func (w *testCluster) impostor(d *nodeData, term uint64) testNode {
	m := openNode(w, w.testNetwork, Config{
		ID: d.Name, Incarnation: d.Incarnation, Cluster: d.cluster, List: d.list,
		Advertise: d.address,
		Condition: d.condition,
	})
	tr, err := m.Transport(hclog.NewNullLogger())
	require.NoError(w, err)
	tr.Start(new(raft.Raft))
	go answerWith(tr, term)
	return m
}

func answerWith(tr *Transport, term uint64) {
	for {
		select {
		case call := <-tr.Consumer():
			switch call.Command.(type) {
			case *raft.AppendEntriesRequest:
				call.Respond(&raft.AppendEntriesResponse{Term: term}, nil)
			case *raft.RequestVoteRequest:
				call.Respond(&raft.RequestVoteResponse{Term: term}, nil)
			case *raft.RequestPreVoteRequest:
				call.Respond(&raft.RequestPreVoteResponse{Term: term}, nil)
			case *raft.InstallSnapshotRequest:
				call.Respond(&raft.InstallSnapshotResponse{Term: term}, nil)
			}
		case <-tr.ctx.Done():
			return
		}
	}
}

// Each kind of answer by itself, at both sides of the bound, with the term that is measured against
// in between.
func TestWhichAnswersAreRefused(t *testing.T) {
	const own = 7
	for term, refused := range map[uint64]bool{
		0: false, own: false, own + termAdvanceMax: false, own + termAdvanceMax + 1: true,
		math.MaxUint64: true,
	} {
		t.Run(fmt.Sprint(term), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, all := threeRunning(t)
				defer w.stopAll()
				w.stop(all[1])
				w.stop(all[2])
				caller := openNode(t, w.testNetwork, Config{
					ID: "n2", Incarnation: all[1].Incarnation, List: all[1].list,
					Condition: all[1].condition,
					Term:      func() uint64 { return own },
				})
				defer caller.Close()
				tr, err := caller.Transport(hclog.NewNullLogger())
				require.NoError(t, err)
				fake := w.impostor(all[2].nodeData, term)
				defer fake.Close()
				id, at := all[2].ID(), raft.ServerAddress(all[2].address)
				for kind, err := range map[string]error{
					"append": tr.AppendEntries(id, at,
						&raft.AppendEntriesRequest{RPCHeader: header(all[1]), LeaderCommitIndex: 1},
						&raft.AppendEntriesResponse{}),
					"vote": tr.RequestVote(id, at,
						&raft.RequestVoteRequest{RPCHeader: header(all[1]), Term: 1},
						&raft.RequestVoteResponse{}),
					"pre-vote": tr.RequestPreVote(id, at,
						&raft.RequestPreVoteRequest{RPCHeader: header(all[1]), Term: 1},
						&raft.RequestPreVoteResponse{}),
					"snapshot": tr.InstallSnapshot(id, at, &raft.InstallSnapshotRequest{
						RPCHeader: header(all[1]), SnapshotVersion: 1, LastLogIndex: 1,
						Configuration: raft.EncodeConfiguration(
							all[1].GetConfiguration().Configuration()),
					}, &raft.InstallSnapshotResponse{}, strings.NewReader("")),
				} {
					assert.Equal(t, refused, errors.Is(err, ErrImplausible), "%s: %v", kind, err)
					assert.True(t, refused || err == nil, "%s: %v", kind, err)
				}
			})
		})
	}
}

// A peer that continues sending is named in the log at a limited rate, and delays no other.
func TestManyRefusalsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		for range 100 {
			require.Error(t, leaps["append"](all[1], all[0], math.MaxUint64))
		}
		assert.Equal(t, 1, strings.Count(all[0].member.logs.String(),
			"rejected an implausible raft request"))
		w.serves(all, "after ")
	})
}

// Raft can't apply an entry of an unknown type: the process would end at each start.
func TestAnEntryOfAnUnknownTypeIsRefused(t *testing.T) {
	request := raft.AppendEntriesRequest{Term: 2, PrevLogEntry: 1, PrevLogTerm: 1}
	request.Entries = []*raft.Log{{Index: 2, Term: 2, Type: raft.LogBarrier}}
	require.Empty(t, entriesFault(&request))
	request.Entries = append(request.Entries,
		&raft.Log{Index: 3, Term: 2, Type: raft.LogConfiguration + 1})
	require.Contains(t, entriesFault(&request), "its entry 3 is of type 6")
	for _, deprecated := range []raft.LogType{raft.LogAddPeerDeprecated,
		raft.LogRemovePeerDeprecated} {
		request.Entries[1].Type = deprecated
		require.Contains(t, entriesFault(&request), "its entry 3 is of type")
	}
}

// Raft counts as committed what its log has up to the leader's commit index, also behind the
// entries of the request: a follower would apply entries of an earlier leader there that came to
// nothing.
func TestOnlyWhatAnAppendShowsIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		from, to := all[0], all[1]
		if to.State() == raft.Leader {
			to = all[2]
		}
		last := to.LastIndex()
		var entry raft.Log
		require.NoError(t, to.logs.GetLog(last, &entry))
		at := func(a *raft.AppendEntriesRequest) {
			a.PrevLogEntry, a.PrevLogTerm = last, entry.Term
		}
		require.NoError(t, appending(from, to, func(a *raft.AppendEntriesRequest) {
			at(a)
			a.Entries = []*raft.Log{{Index: last + 1, Term: 1, Data: []byte("stale ")}}
		}))
		require.NoError(t, appending(from, to,
			func(a *raft.AppendEntriesRequest) { at(a); a.LeaderCommitIndex = last + 1 }))
		synctest.Wait()
		assert.Zero(t, to.applied.count("stale "))
		w.serves(all, "after ")
		assert.Zero(t, to.applied.count("stale "))
	})
}

// Raft ends the process with a configuration that it can't read, at each start, once it is in the
// log or a snapshot.
func TestAConfigurationThatCannotBeReadIsRefused(t *testing.T) {
	good := raft.EncodeConfiguration(
		raft.Configuration{Servers: []raft.Server{{ID: serverOf("n1").ID(), Address: "h1:5751"}}})
	for name, data := range map[string][]byte{
		"nothing": nil, "torn": good[:len(good)-3], "no map": []byte("\x01"),
		"without a server": raft.EncodeConfiguration(raft.Configuration{}),
		"of empty servers": []byte("\x81\xa7Servers\xdc\x10\x00" +
			strings.Repeat("\x80", requestValuesMax)),
	} {
		synctest.Test(t, func(t *testing.T) {
			w, all := threeRunning(t)
			defer w.stopAll()
			entries := []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: good},
				{Index: 2, Term: 1, Type: raft.LogConfiguration, Data: data}}
			assert.ErrorContains(t, appending(all[0], all[1],
				func(r *raft.AppendEntriesRequest) { r.Entries = entries }),
				"its entry 2 is a configuration that can't be read", name)
			assert.ErrorContains(t, installing(all[0], all[1],
				func(r *raft.InstallSnapshotRequest) {
					r.Configuration = data
					r.LastLogIndex = all[1].LastIndex() + 1
				}),
				"its configuration can't be read", name)
			w.write("after ", 1, all[:]...)
		})
	}
}

// In its first protocol a snapshot had a list of peers in place of a configuration, which Raft
// still takes, and which may be empty: the node would be left without servers.
func TestASnapshotWithAListOfPeersIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		all[1].applied.restores = true
		assert.ErrorContains(t, installing(all[0], all[1], func(r *raft.InstallSnapshotRequest) {
			r.SnapshotVersion, r.Peers, r.LastLogIndex = 0, []byte("\x90"), all[1].LastIndex()+1
		}), "its configuration can't be read")
		assert.Len(t, all[1].GetConfiguration().Configuration().Servers, 3)
		w.write("after ", 1, all[:]...)
	})
}
