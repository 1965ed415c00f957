package sim

import (
	"context"

	"zamok/api"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// clientPort is where a host's node serves clients.
const clientPort = "5750"

// serve starts a whole node: what Open would start with this config, and the server of its clients.
func (n *Node) serve(ctx context.Context, p *process, cfg raftnode.Config) {
	port, err := p.stack.Listen(clientPort)
	if err != nil {
		p.err = err
		_ = cfg.Listener.Close()
		return
	}
	whole := api.NodeConfig{
		ID: cfg.ID, Dir: cfg.Dir, Cluster: cfg.Cluster.String(), Listener: port, PeerListener: cfg.Listener,
		Advertise: n.Host, Dial: cfg.Dial, Version: cfg.Version, ElectionTimeout: cfg.Election, Logger: cfg.Logger, Fatal: cfg.Fatal,
		Tune: func(c *raftnode.Config) {
			c.Memory, c.Source, c.Wrap = cfg.Memory, cfg.Source, cfg.Wrap
			c.SnapshotEntries, c.SnapshotEvery = cfg.SnapshotEntries, cfg.SnapshotEvery
			applied, restored := c.Applied, c.Restored
			c.Applied = func(m *fsm.Machine, a fsm.Applied) {
				cfg.Applied(m, a)
				applied(m, a)
			}
			c.Restored = func(m *fsm.Machine) {
				cfg.Restored(m)
				restored(m)
			}
		},
	}
	if cfg.JoinCluster != (store.ID{}) {
		whole.Cluster, whole.JoinCluster = "", cfg.JoinCluster.String()
	}
	p.server, p.err = api.StartNode(ctx, whole)
	if p.err == nil {
		p.node = p.server.Raft()
	}
}
