package raftnode

import (
	"time"

	"zamok/raftnode/peer"
)

// Contact is a leader's contact with another node.
type Contact struct {
	// Ago is how long ago the latest append was sent that the node has answered, or since when this node leads, if it has
	// answered none since.
	Ago time.Duration
	// Reached: it has answered one. Otherwise its log is unknown.
	Reached bool
	// Behind is how many entries of this node's log it lacked at its latest answer.
	Behind uint64
}

// Contacts returns this node's contact with each other node of the cluster, by name, if it leads, and nil otherwise:
// only a leader has contact with all nodes.
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
		contact := in.transport.Contact(s.ID)
		c := Contact{Ago: time.Since(*since)}
		if contact.At.After(*since) {
			c = Contact{Ago: time.Since(contact.At), Reached: true, Behind: last - min(last, contact.LastLog)}
		}
		contacts[peer.NameOf(s.ID)] = c
	}
	return contacts
}
