package raftnode

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/tail"
)

// authority signs the certificates of peers, and perhaps of others.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	a := authority{}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
		// the clock of a bubble begins in 2000
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
	}
	der, key := a.sign(t, template, nil)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{cert, key}
}

func (a authority) sign(t *testing.T,
	template, parent *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	signer := key
	if parent == nil {
		parent = template
	} else {
		signer = a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	return der, key
}

// names returns what shows a certificate with this name.
func (a authority) names(t *testing.T, name string) func() *tls.Config {
	der, key := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: a.cert.NotBefore,
		NotAfter:    a.cert.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	c := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs: pool}
	return func() *tls.Config { return c }
}

// secured runs a test on three nodes whose peers have TLS.
func secured(t *testing.T, test func(*bubble, authority)) {
	a := newAuthority(t)
	inBubbleTuned(t, func(c *Config) { c.Peers.TLS = a.names(t, c.ID) },
		func(b *bubble) { test(b, a) })
}

// joins takes a new machine into the cluster.
func (b *bubble) joins(name string, leader *bubbleNode) *bubbleNode {
	n := b.machine(name, "h"+name[1:]+":1")
	b.waits(n, b.list)
	require.NoError(b, leader.Join(b.Context(), n.self))
	return n
}

// machine is one with an empty disk.
func (b *bubble) machine(name, address string) *bubbleNode {
	return &bubbleNode{self: peer.Node{ID: name, Address: address}, dir: b.TempDir(),
		disk: newSickDisk(), ended: make(chan error, 1)}
}

// waits starts a node that is to be added to the cluster of these nodes.
func (b *bubble) waits(n *bubbleNode, members peer.List) {
	usual := b.tune
	defer func() { b.tune = usual }()
	b.tune = func(c *Config) {
		if usual != nil {
			usual(c)
		}
		c.Peers.List, c.Join = peer.List{}, members
	}
	b.start(n)
}

func (b *bubble) applies(n *bubbleNode, index uint64) bool {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
		if n.Status().Applied.Index >= index {
			return true
		}
	}
	return false
}

// A node returns whose cluster consists of others by now. It takes them for its own if a server
// that it knows vouches for them, or its operator does.
func TestAReturningNodeFollowsReplacedNodes(t *testing.T) {
	for name, c := range map[string]struct {
		all     bool // both others were replaced, otherwise one
		allowed []string
		follows bool
	}{
		"one is left that knows the new one":      {false, nil, true},
		"none is left":                            {true, nil, false},
		"none is left, and the operator vouches":  {true, []string{"n[45]"}, true},
		"none is left, and the operator misnames": {true, []string{"n6", "m*"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			secured(t, func(b *bubble, _ authority) {
				away, n2, n3 := b.nodes[0], b.nodes[1], b.nodes[2]
				b.leader(b.nodes...)
				b.kill(away)
				leader := b.leader(n2, n3)
				other := n3
				if leader == n3 {
					other = n2
				}
				replace := func(old *bubbleNode, name string, leader *bubbleNode) *bubbleNode {
					added := b.joins(name, leader)
					b.kill(old)
					require.NoError(b, leader.Remove(b.Context(), old.self.ID))
					return added
				}
				n4 := replace(other, "n4", leader)
				require.NoError(b, leader.Transfer(b.Context(), "n4"))
				require.Equal(b, n4, b.leader(leader, n4))
				up := []*bubbleNode{leader, n4}
				if c.all {
					up = []*bubbleNode{n4, replace(leader, "n5", n4)}
				}
				require.NoError(b, b.fence(n4))
				want := n4.Status().Applied.Index
				usual := b.tune
				b.tune = func(cfg *Config) { usual(cfg); cfg.Peers.AllowedNames = c.allowed }
				b.start(away)
				assert.Equal(b, c.follows, b.applies(away, want), "it has %d of %d",
					away.Status().Applied.Index, want)
				logs := strings.Join(n4.diary.new(), "")
				if !c.follows {
					assert.Contains(b, logs, "not known")
					assert.Contains(b, logs, "--peer-allowed-names")
				}
				b.nodes = append(up, away)
			})
		})
	}
}

// A node without a configuration knows the nodes of its list, or those that the cluster had when it
// began to wait. A node that has joined since then may lead; it follows that one, too.
func TestAWaitingNodeFollowsANewLeader(t *testing.T) {
	for name, emptied := range map[string]bool{
		"it lost its data, and has the list of its first start": true,
		"it joins, and requests it again":                       false,
	} {
		t.Run(name, func(t *testing.T) {
			secured(t, func(b *bubble, _ authority) {
				leader := b.leader(b.nodes...)
				lost := b.others(leader)[0]
				waiting := b.machine(lost.self.ID, lost.self.Address)
				if !emptied {
					waiting = b.machine("n5", "h5:1")
					b.waits(waiting, b.list)
				}
				n4 := b.joins("n4", leader)
				require.NoError(b, leader.Transfer(b.Context(), "n4"))
				require.Equal(b, n4, b.leader(leader, n4))
				if emptied {
					b.kill(lost)
					b.nodes = b.others(lost)
					usual := b.tune
					b.tune = func(c *Config) { usual(c); c.Join = b.list }
					b.start(waiting)
					b.tune = usual
					time.Sleep(2 * replaceSilence)
				} else {
					require.ErrorContains(b, waiting.RequestJoin(b.Context()), "zamok join")
				}
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				assert.NoError(b, n4.Join(ctx, waiting.self))
				for began := time.Now(); !waiting.Voter() &&
					time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
				}
				assert.True(b, waiting.Voter())
				b.nodes = append(b.nodes, n4, waiting)
			})
		})
	}
}

// A certificate of the peers' authority does not make a node: a client that has one can do nothing
// to the cluster.
func TestAStrangerWithACertificate(t *testing.T) {
	secured(t, func(b *bubble, a authority) {
		leader := b.leader(b.nodes...)
		term := leader.Status().Term
		var cluster peer.ClusterID
		leader.View(func(m *fsm.Machine) { cluster = peer.ClusterID(m.Cluster()) })
		door := b.listen("h9:1")
		network, err := peer.New(peer.Config{
			Format: fsm.Format(),
			ID:     "client", Incarnation: peer.Incarnation{9}, Cluster: cluster, Listener: door,
			Dial: b.dialer(door), TLS: a.names(b.T, "client"),
			Knows:     func(peer.Server) bool { return true },
			Condition: func(peer.Server) peer.Condition { return peer.Condition{} },
			Term:      func() uint64 { return math.MaxUint64 },
			Tail:      func() tail.State { return tail.State{} }, Logger: leader.log,
		})
		require.NoError(b, err)
		defer network.Close()
		transport, err := network.Transport(hclog.NewNullLogger())
		require.NoError(b, err)
		known := leader.Status().Applied.Index
		for _, n := range b.nodes {
			require.True(b, b.applies(n, known),
				"a follower knows its cluster once it has applied it")
			id, at := n.Node.self.ID(), raft.ServerAddress(n.self.Address)
			as := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(id), Addr: []byte(at)}
			last := uint64(math.MaxUint64)
			_, call := network.Call(b.Context(), peer.Node{ID: string(id), Address: n.self.Address},
				[]byte("{}"))
			for kind, err := range map[string]error{
				"vote": transport.RequestVote(id, at, &raft.RequestVoteRequest{
					RPCHeader: as, Term: last, LastLogTerm: last, LastLogIndex: 1 << 40,
					LeadershipTransfer: true}, &raft.RequestVoteResponse{}),
				"append": transport.AppendEntries(id, at,
					&raft.AppendEntriesRequest{RPCHeader: as, Term: last},
					&raft.AppendEntriesResponse{}),
				"transfer": transport.TimeoutNow(id, at, &raft.TimeoutNowRequest{RPCHeader: as},
					&raft.TimeoutNowResponse{}),
				"call": call,
			} {
				assert.ErrorContains(b, err, "knows no node of the name client", kind)
			}
			answer, err := network.Ask(b.Context(), n.self)
			require.NoError(b, err,
				"whoever asks is answered, since a node that was removed asks too")
			assert.Equal(b, cluster, answer.Cluster)
		}
		require.NoError(b, b.fence(leader))
		assert.Equal(b, term, leader.Status().Term)
	})
}

// After a start raft says which configuration is the latest in the log, and not whether it is
// committed; if it is not, a node that it lacks may lead. The one before is committed.
func TestTheLastTwoConfigurationsAreKnownAtFirst(t *testing.T) {
	configurationOf := func(names ...string) (c raft.Configuration) {
		for _, name := range names {
			c.Servers = append(c.Servers,
				raft.Server{ID: (peer.Server{Name: name, Incarnation: peer.Incarnation{1}}).ID()})
		}
		return c
	}
	for name, c := range map[string]struct {
		snapshot []string
		log      map[uint64][]string
		opened   configuration
		listedAt uint64
	}{
		"nothing": {nil, nil, configuration{}, 0},
		"the first": {nil, map[uint64][]string{1: {"n1", "n2"}},
			configuration{1, configurationOf("n1", "n2").Servers}, 1},
		"two of three": {nil,
			map[uint64][]string{1: {"n1", "n3"}, 4: {"n1", "n2"}, 6: {"n1"}},
			configuration{6, configurationOf("n1", "n1", "n2").Servers}, 6},
		"one is in the snapshot": {[]string{"n1", "n2"}, map[uint64][]string{6: {"n2"}},
			configuration{6, configurationOf("n2", "n1", "n2").Servers}, 3},
		"removed long ago": {[]string{"n1", "n2"},
			map[uint64][]string{5: {"n2"}, 6: {"n2", "n4"}},
			configuration{6, configurationOf("n2", "n4", "n2").Servers}, 3},
	} {
		logs, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		for i := uint64(1); i <= 7 && len(c.log) > 0; i++ {
			entry := &raft.Log{Index: i, Type: raft.LogCommand}
			if names := c.log[i]; names != nil {
				entry.Type, entry.Data = raft.LogConfiguration,
					raft.EncodeConfiguration(configurationOf(names...))
			}
			require.NoError(t, logs.StoreLog(entry))
		}
		if c.snapshot != nil {
			_, trans := raft.NewInmemTransport("")
			sink, err := snapshots.Create(1, 3, 1, configurationOf(c.snapshot...), 3, trans)
			require.NoError(t, err)
			require.NoError(t, sink.Close())
		}
		r := &roster{base: &base{self: peer.Server{Name: "n1", Incarnation: peer.Incarnation{1}}}}
		require.NoError(t, r.read(logs, snapshots), name)
		assert.Equal(t, c.opened, r.opened, name)
		assert.Equal(t, c.listedAt, r.listedAt, name)
	}
}

// What is announced is about the node that announces it, and only a server of the configuration
// does: so a record is made only for a name that has been a node's, also without TLS. There, 1 021
// such records once took the place of those of the nodes.
func TestOnlyServersAnnounceThemselves(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		for began := time.Now(); len(announced(leader)) < len(b.nodes) &&
			time.Since(began) < time.Minute; time.Sleep(time.Second) {
		}
		before := announced(leader)
		require.Len(b, before, len(b.nodes))
		var cluster peer.ClusterID
		leader.View(func(m *fsm.Machine) { cluster = peer.ClusterID(m.Cluster()) })
		door := b.listen("h9:1")
		for i, self := range []peer.Server{{Name: "ghost", Incarnation: peer.Incarnation{9}},
			{Name: "n1", Incarnation: peer.Incarnation{9}}} {
			network, err := peer.New(peer.Config{
				Format: fsm.Format(),
				ID:     self.Name, Incarnation: self.Incarnation, Cluster: cluster,
				Listener: b.listen("h9:" + string(rune('2'+i))), Dial: b.dialer(door),
				Condition: func(peer.Server) peer.Condition { return peer.Condition{} },
				Logger:    leader.log,
			})
			require.NoError(b, err)
			for name, incarnation := range map[string]peer.Incarnation{self.Name: self.Incarnation,
				"other": self.Incarnation, "n1": b.nodes[0].Node.self.Incarnation} {
				entry := fsm.Entry{
					Commands: []fsm.Command{&fsm.Member{ID: name,
						Incarnation: fsm.Incarnation(incarnation), Peer: "h9:1",
						StateVersionMax: 1}}}
				body, err := json.Marshal(nodeRequest{Entry: entry.Append(nil)})
				require.NoError(b, err)
				refusal, err := network.Call(b.Context(),
					peer.Node{ID: string(leader.Node.self.ID()), Address: leader.self.Address},
					body)
				require.NoError(b, err, "without TLS the call is taken")
				assert.Contains(b, string(refusal), "may only announce itself", "%v announces %s",
					self, name)
			}
			require.NoError(b, network.Close())
		}
		require.NoError(b, b.fence(leader))
		assert.Equal(b, before, announced(leader))
	})
}

func announced(n *bubbleNode) (addresses map[string]string) {
	addresses = make(map[string]string)
	n.View(func(m *fsm.Machine) {
		for _, member := range m.Members() {
			addresses[member.ID] = member.Peer
		}
	})
	return addresses
}
