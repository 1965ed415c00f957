package raftnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// askEvery is how often the others of the list are asked while some are silent.
const askEvery = 250 * time.Millisecond

// begin starts raft, on what the store holds or, with a list and an empty store, on a new cluster.
func (n *Node) begin(ctx context.Context) error {
	var servers []raft.Server
	switch n.store.State() {
	case store.Unmarked:
		// A bootstrap or a joining was cut short after its first write: it is complete now.
		if err := n.store.Mark(store.ID{}); err != nil {
			return err
		}
	case store.Empty:
		if len(n.cfg.Cluster.Nodes()) == 0 {
			n.log.Info("this node holds nothing and waits to be taken into a cluster: `zamok join`", "id", n.cfg.ID, "peer", n.network.Addr())
			break
		}
		var err error
		if servers, err = n.found(ctx); err != nil {
			return err
		}
	}
	in, err := n.newInstance(servers)
	if err != nil {
		return err
	}
	if servers != nil {
		if err := n.store.Mark(store.ID{}); err != nil {
			return errors.Join(err, in.stop())
		}
	}
	n.exchangeInstance(in)
	return nil
}

// found asks the others of the list until the cluster may begin, and returns its servers. Who the
// founders are is on disk before the log is: the record by which a wiped one is recognised.
func (n *Node) found(ctx context.Context) ([]raft.Server, error) {
	said := ""
	for {
		d := peer.Decide(n.network.Mine(), n.network.AskAll(ctx))
		switch d.Act {
		case peer.Bootstrap:
			n.log.Info("the cluster begins", "reason", d.Reason)
			return n.servers(), n.store.Found(incarnations(d.Founders))
		case peer.Refuse:
			return nil, fmt.Errorf("raftnode: this node does not start: %s", d.Reason)
		}
		if d.Reason != said {
			n.log.Info("waiting", "reason", d.Reason)
			said = d.Reason
		}
		pause := time.NewTimer(askEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, fmt.Errorf("raftnode: the cluster has not begun, nothing was changed: %s (%w)", d.Reason, context.Cause(ctx))
		}
	}
}

func (n *Node) servers() []raft.Server {
	var servers []raft.Server
	for _, node := range n.cfg.Cluster.Nodes() {
		servers = append(servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(node.ID), Address: raft.ServerAddress(node.Address),
		})
	}
	return servers
}

func incarnations(founders map[string]peer.Incarnation) map[string]store.ID {
	ids := make(map[string]store.ID, len(founders))
	for node, incarnation := range founders {
		ids[node] = store.ID(incarnation)
	}
	return ids
}

// recordedMembers reads who announced what in a log. The first word on an id counts, as it does for
// the machine.
func recordedMembers(logs raft.LogStore) (map[string]peer.Incarnation, error) {
	recorded := make(map[string]peer.Incarnation)
	first, err := logs.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := logs.LastIndex()
	if err != nil || last == 0 {
		return nil, err
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		err := logs.GetLog(i, &l)
		if errors.Is(err, raft.ErrLogNotFound) {
			continue // raft leaves a hole before a snapshot that it was sent
		}
		if err != nil {
			return nil, fmt.Errorf("raftnode: the log can't be read at %d: %w", i, err)
		}
		entry, err := fsm.DecodeEntry(l.Data)
		if l.Type != raft.LogCommand || err != nil {
			continue
		}
		for _, c := range entry.Commands {
			if m, ok := c.(*fsm.Member); ok && recorded[m.ID] == (peer.Incarnation{}) {
				recorded[m.ID] = peer.Incarnation(m.Incarnation)
			}
		}
	}
	return recorded, nil
}

// holds tells whether this node has any part of a log: then it is bound by what it promised.
func (n *Node) holds() bool {
	if n.store.State() != store.Empty {
		return true
	}
	last, err := n.store.Logs().LastIndex()
	return err != nil || last > 0
}
