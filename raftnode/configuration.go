package raftnode

import (
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// configuration is a committed list of servers. Raft itself returns only its latest one, which may never be committed.
type configuration struct {
	index   uint64 // raft's; 0 = none is known
	servers []raft.Server
}

func (c configuration) has(id raft.ServerID) bool {
	return slices.ContainsFunc(c.servers, func(s raft.Server) bool { return s.ID == id })
}

// committed is the latest committed configuration that this node has seen: applied, or in a snapshot.
type committed struct {
	mu  sync.Mutex
	now configuration
}

func (c *committed) view() configuration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *committed) seen(index uint64, servers []raft.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index > c.now.index {
		c.now = configuration{index, servers}
	}
}

// lastListed is the index of the latest configuration in a log, or in the latest snapshot, that names
// a server; 0 = none does.
func lastListed(logs raft.LogStore, snapshots raft.SnapshotStore, id raft.ServerID) (uint64, error) {
	first, err := logs.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return 0, err
	}
	for i := last; i >= max(first, 1); i-- {
		var l raft.Log
		if err := logs.GetLog(i, &l); err != nil {
			return 0, err
		}
		if l.Type == raft.LogConfiguration && (configuration{servers: raft.DecodeConfiguration(l.Data).Servers}).has(id) {
			return i, nil
		}
	}
	metas, err := snapshots.List()
	if err != nil || len(metas) == 0 || !(configuration{servers: metas[0].Configuration.Servers}).has(id) {
		return 0, err
	}
	return metas[0].ConfigurationIndex, nil
}
