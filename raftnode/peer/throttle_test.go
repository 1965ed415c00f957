package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slowLink is what all connections of a host share: what is written goes byte by byte, in the order
// of writing, and arrives later.
type slowLink struct {
	rate  int // bytes a second; never changed
	delay time.Duration

	mu   sync.Mutex
	free time.Time // when what was written last has left
}

// slowDialer puts a line between a host and those that it calls.
func (f *testNetwork) slowDialer(from, to string,
	l *slowLink) func(context.Context, string) (net.Conn, error) {
	dial := f.dialer(from)
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dial(ctx, address)
		if err != nil || address != to {
			return conn, err
		}
		return &slowConn{Conn: conn, link: l}, nil
	}
}

type slowConn struct {
	net.Conn
	link     *slowLink
	mu       sync.Mutex // guards deadline
	deadline time.Time
}

func (c *slowConn) SetDeadline(at time.Time) error {
	return c.setDeadlines(at, c.Conn.SetDeadline)
}

func (c *slowConn) SetWriteDeadline(at time.Time) error {
	return c.setDeadlines(at, c.Conn.SetWriteDeadline)
}

func (c *slowConn) setDeadlines(at time.Time, set func(time.Time) error) error {
	c.mu.Lock()
	c.deadline = at
	c.mu.Unlock()
	return set(at)
}

func (c *slowConn) Write(b []byte) (written int, err error) {
	for len(b) > 0 {
		n := min(len(b), 16<<10)
		c.link.mu.Lock()
		if now := time.Now(); c.link.free.Before(now) {
			c.link.free = now
		}
		c.link.free = c.link.free.Add(time.Duration(n) * time.Second / time.Duration(c.link.rate))
		at := c.link.free.Add(c.link.delay)
		c.link.mu.Unlock()
		c.mu.Lock()
		deadline := c.deadline
		c.mu.Unlock()
		if !deadline.IsZero() && at.After(deadline) {
			sleepVirtual(time.Until(deadline))
			return written, os.ErrDeadlineExceeded
		}
		sleepVirtual(time.Until(at))
		done, err := c.Conn.Write(b[:n])
		written += done
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

// A follower catches up over a line that does not bring there within the time-out of an append what
// raft puts into one: 64 entries of 256 KiB. Even a single entry may take longer than that time.
func TestAFollowerOnASlowLineCatchesUp(t *testing.T) {
	const entry = 256 << 10
	for name, c := range map[string]struct {
		rate, entries int
		within        time.Duration
	}{
		"five megabytes a second":          {5 << 20, 70, 30 * time.Second},
		"an entry in five seconds":         {entry / 5, 8, 5 * time.Minute},
		"a line that is as fast as others": {1 << 30, 70, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, false)
				defer w.stopAll()
				d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
				d2.neverCampaigns, d3.neverCampaigns = true, true
				p1 := w.run(d1, openNode(t, w.testNetwork, Config{
					ID: "n1", Incarnation: d1.Incarnation, List: d1.list, Condition: d1.condition,
					Term: d1.term,
					Dial: w.slowDialer("h1:5751", "h2:5751",
						&slowLink{rate: c.rate, delay: time.Millisecond}),
				}))
				p3 := w.start(d3)
				pad := bytes.Repeat([]byte{'x'}, entry)
				for i := range c.entries {
					w.retryOnLeader(func(leader *raftProcess) raft.Future {
						return leader.Apply(append(fmt.Appendf(nil, "entry %d ", i), pad...),
							time.Second)
					}, p1, p3)
				}
				p2 := w.start(d2)
				began := time.Now()
				for p2.applied.count("entry ") < c.entries {
					require.Less(t, time.Since(began), c.within, "%d of %d entries",
						p2.applied.count("entry "), c.entries)
					sleepVirtual(100 * time.Millisecond)
				}
				t.Logf("%d entries in %v", c.entries, time.Since(began))
				if time.Since(began) > 2*progressEvery {
					assert.Contains(t, p1.member.logs.String(), "peer catching up")
				}
			})
		})
	}
}

// What is put into an append follows what the line has taken, whatever its round trip is.
func TestThrottleFollowsTheLine(t *testing.T) {
	const entry = 64 << 10
	var args raft.AppendEntriesRequest
	for range 64 {
		args.Entries = append(args.Entries, &raft.Log{Data: make([]byte, entry)})
	}
	for name, c := range map[string]struct {
		rate     int
		trip     time.Duration
		from, to int // bytes in the end
	}{
		"near":         {100 << 20, time.Millisecond, 60 * entry, 64 * entry},
		"far":          {100 << 20, 300 * time.Millisecond, 60 * entry, 64 * entry},
		"slow":         {1 << 20, time.Millisecond, entry, 8 * entry},
		"far and slow": {1 << 20, 300 * time.Millisecond, entry, 8 * entry},
		"hardly":       {16 << 10, time.Millisecond, entry, entry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &throttle{rate: rateInitial}
				sent := 0
				for range 40 {
					p.observeRoundTrip(c.trip)
					request := args
					p.limit(&request)
					sent = len(request.Entries) * entry
					took := c.trip + time.Duration(sent)*time.Second/time.Duration(c.rate)
					if now := time.Now(); now.Add(took).After(
						p.extendDeadline(now.Add(handshakeTimeoutDefault))) {
						sleepVirtual(time.Until(p.deadline))
						p.observeAppend(time.Since(now), os.ErrDeadlineExceeded)
					} else {
						p.observeAppend(took, nil)
					}
				}
				assert.GreaterOrEqual(t, sent, c.from)
				assert.LessOrEqual(t, sent, c.to)
				assert.Less(t, time.Duration(sent)*time.Second/time.Duration(c.rate),
					time.Until(p.extendDeadline(time.Now().Add(handshakeTimeoutDefault))),
					"it gets there in time")
			})
		})
	}
}

// A server refuses entries that fit its log, since its disk is full. To raft none were sent, so
// that it neither goes back in its log nor waits longer each time; it reads them again, and they
// are sent a while later. Heartbeats continue.
func TestRefusedEntriesAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, false)
		_, _, d3 := threeDisks(t, mustList(t, threeNodes))
		fake := w.impostor(d3, 7)
		defer fake.Close()
		n1 := openNode(t, w.testNetwork, Config{ID: "n1", List: d3.list})
		defer n1.Close()
		tr, err := n1.Transport(hclog.NewNullLogger())
		require.NoError(t, err)
		send := func(entries int) (args raft.AppendEntriesRequest, resp raft.AppendEntriesResponse,
			took time.Duration) {
			args = raft.AppendEntriesRequest{RPCHeader: tr.header(), Term: 7, LeaderCommitIndex: 10,
				PrevLogEntry: 10, PrevLogTerm: 7}
			for i := range entries {
				args.Entries = append(args.Entries, &raft.Log{Index: 11 + uint64(i), Term: 7})
			}
			began := time.Now()
			require.NoError(t, tr.AppendEntries(d3.ID(), raft.ServerAddress(d3.address),
				&args, &resp))
			return args, resp, time.Since(began)
		}
		for i := range 60 {
			args, resp, took := send(3)
			require.Empty(t, args.Entries)
			require.True(t, resp.Success)
			require.Equal(t, i > 0, took > rejectedRetry/2, "it waited for %v", took)
			require.LessOrEqual(t, took, rejectedRetry)
			_, resp, took = send(0)
			require.False(t, resp.Success)
			require.Less(t, took, rejectedRetry/2)
			require.Zero(t, tr.Contact(d3.ID()).Acknowledged)
		}
		assert.Contains(t, n1.logs.String(), "rejects entries")
		began := time.Now()
		go tr.Close()
		_ = tr.AppendEntries(d3.ID(), raft.ServerAddress(d3.address), &raft.AppendEntriesRequest{
			Term: 7, Entries: []*raft.Log{{Index: 1, Term: 7}}}, &raft.AppendEntriesResponse{})
		assert.Less(t, time.Since(began), rejectedRetry/2, "the end is not waited for")
	})
}

// receiver opens n2's end of Raft, which hands the snapshots that it is sent to take and accepts
// them.
func receiver(t *testing.T, n2 testNode, take func(io.Reader) error) *Transport {
	tr, err := n2.Transport(hclog.NewNullLogger())
	require.NoError(t, err)
	tr.Start(new(raft.Raft))
	go func() {
		for {
			select {
			case call := <-tr.Consumer():
				err := take(call.Reader)
				call.Respond(&raft.InstallSnapshotResponse{Success: err == nil}, err)
			case <-tr.ctx.Done():
				return
			}
		}
	}()
	return tr
}

// snapshotOf announces a snapshot of so many bytes, of a cluster whose only member is n1.
func snapshotOf(tr *Transport, size int64) *raft.InstallSnapshotRequest {
	return &raft.InstallSnapshotRequest{
		RPCHeader: tr.header(), SnapshotVersion: 1, Term: 1, Size: size, LastLogIndex: 1,
		Configuration: raft.EncodeConfiguration(
			raft.Configuration{Servers: []raft.Server{{ID: serverOf("n1").ID()}}}),
	}
}

// A snapshot may take as long as bytes of it move, and no longer at either end.
func TestASnapshotLastsAsLongAsBytesMove(t *testing.T) {
	const size = 2 << 20
	for name, c := range map[string]struct {
		rate   int
		take   func(r io.Reader, end chan struct{}) error
		data   func(t *testing.T) io.Reader
		fails  bool
		within time.Duration
	}{
		"a slow line": {
			rate: 32 << 10, within: 80 * time.Second, // 16 s by what raft reckons
			take: func(r io.Reader, end chan struct{}) error {
				_, err := io.CopyN(io.Discard, r, size)
				return err
			},
		},
		"a receiver that hangs": {
			rate: 1 << 20, within: 3 * snapshotStallTimeout, fails: true,
			take: func(r io.Reader, end chan struct{}) error { <-end; return nil },
		},
		"a receiver that hangs when it has everything": {
			rate: 1 << 20, within: time.Minute, fails: true,
			take: func(r io.Reader, end chan struct{}) error {
				_, _ = io.CopyN(io.Discard, r, size)
				<-end
				return nil
			},
		},
		"a sender that hangs": {
			rate: 1 << 20, within: 3 * snapshotStallTimeout, fails: true,
			take: func(r io.Reader, end chan struct{}) error {
				_, err := io.CopyN(io.Discard, r, size)
				return err
			},
			data: func(t *testing.T) io.Reader {
				r, w := io.Pipe()
				go w.Write(make([]byte, size/2))
				t.Cleanup(func() { w.Close() })
				return r
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newTestNetwork()
				list := mustList(t, threeNodes)
				n1 := openNode(t, f, Config{ID: "n1", List: list, Cluster: clusterOf("home"),
					Dial: f.slowDialer("h1:5751", "h2:5751", &slowLink{rate: c.rate})})
				n2 := openNode(t, f, Config{ID: "n2", List: list, Cluster: clusterOf("home")})
				defer n1.Close()
				taken := make(chan error, 1)
				end := make(chan struct{})
				receiver(t, n2, func(r io.Reader) error {
					done := make(chan struct{})
					go func() {
						taken <- c.take(r, end)
						close(done)
					}()
					select {
					case err := <-taken:
						taken <- err
						return err
					case <-end:
						<-done // raft reads nothing behind its answer
						return io.ErrUnexpectedEOF
					}
				})
				defer n2.Close()
				defer close(end)
				tr := openTransport(t, n1)
				var data io.Reader = bytes.NewReader(make([]byte, size))
				if c.data != nil {
					data = c.data(t)
				}
				began := time.Now()
				sent := make(chan error, 1)
				go func() {
					sent <- tr.InstallSnapshot(serverOf("n2").ID(), "h2:5751", snapshotOf(tr, size),
						&raft.InstallSnapshotResponse{}, data)
				}()
				var err error
				if c.data == nil {
					err = <-sent
				} else {
					err = <-taken
				}
				assert.Less(t, time.Since(began), c.within)
				if c.fails {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				assert.Contains(t, n1.logs.String(), "sending a snapshot")
			})
		})
	}
}
