package sim

import (
	"context"

	"zamok/api"
	"zamok/raftnode"
)

// clientPort is where a host's node serves clients.
const clientPort = "5750"

// serve starts a whole node: what Open would start with this config, and the server of its clients.
func (n *Node) serve(ctx context.Context, p *process, cfg raftnode.Config) {
	port, err := p.stack.Listen(clientPort)
	if err != nil {
		p.err = err
		_ = cfg.Peers.Listener.Close()
		return
	}
	p.server, p.err = api.StartNode(ctx, api.NodeConfig{Config: cfg, Listener: port, Advertise: n.Host})
	if p.err == nil {
		p.node = p.server.Raft()
	}
}
