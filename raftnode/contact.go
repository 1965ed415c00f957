package raftnode

import (
	"time"

	"zamok/raftnode/peer"
)

// Contact is what a leader has heard from another node.
type Contact struct {
	// Ago is how long ago the latest append was sent that the node has answered: since this node leads, if it
	// has answered none since then.
	Ago time.Duration
	// Reached: it has answered one. Without that nothing is known of its log.
	Reached bool
	// Behind is how many entries of this node's log it lacked by its latest answer.
	Behind uint64
}

// Contacts returns what this node has heard from each other node of the cluster, by name, if it leads; nil
// otherwise: nobody else hears them.
func (n *Node) Contacts() map[string]Contact {
	in, err := n.leading()
	if err != nil {
		return nil
	}
	since := in.ledSince.Load()
	if since == nil {
		return nil
	}
	contacts, last := make(map[string]Contact), in.raft.LastIndex()
	for _, s := range in.servers() {
		if s.ID == n.self.ID() {
			continue
		}
		heard := in.transport.Contact(s.ID)
		c := Contact{Ago: time.Since(*since)}
		if heard.At.After(*since) {
			c = Contact{Ago: time.Since(heard.At), Reached: true, Behind: last - min(last, heard.LastLog)}
		}
		contacts[peer.NameOf(s.ID)] = c
	}
	return contacts
}
