package peer

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Condition is the state of a node's data, as it reports it.
type Condition struct {
	// HasData: the data directory holds part of a log or snapshot, so its cluster has begun.
	HasData bool
	// Member: this node is, or was, part of its cluster's committed configuration.
	Member bool
	// Initial are on disk here: the node has agreed to begin a cluster with them, or has begun it.
	Initial InitialMembers
	// Unready is why the node can't agree to begin a cluster now; "": it can.
	Unready string
	// Configuration is the index of the latest configuration that the node knows to be committed; 0:
	// it knows none. Listed: the node that asks is part of it.
	Configuration uint64
	Listed        bool
}

// Answer is what a node reports about itself: each end of a handshake sends one.
type Answer struct {
	Server
	Cluster ClusterID // zero: the node doesn't know one
	List    List      // zero: the node was given none
	Condition
	Generation generation
}

// Mine is this node's own answer.
func (n *Network) Mine() Answer { return n.answer(n.server()) }

func (n *Network) server() Server { return Server{n.config.ID, n.config.Incarnation} }

func (n *Network) answer(asker Server) Answer {
	condition := n.config.Condition(asker)
	condition.Unready = printable(condition.Unready)
	n.mu.Lock()
	defer n.mu.Unlock()
	return Answer{
		Server: n.server(), Cluster: n.cluster, List: n.config.List, Condition: condition, Generation: n.generation,
	}
}

// Ask asks a node about itself. Any node of any cluster answers, whatever its name, and the
// caller checks that; with TLS, only one whose certificate names the node asked.
func (n *Network) Ask(ctx context.Context, node Node) (Answer, error) {
	s, err := n.dial(ctx, node, purposeAsk, nil)
	if err != nil {
		return Answer{}, err
	}
	return s.remote, nil
}

// Reply is the result of asking one node.
type Reply struct {
	Node   Node
	Answer Answer
	Err    error // if set, there is no Answer
	Took   time.Duration
}

// AskAll asks these nodes but this one, all at once. The replies are in the order of the nodes.
func (n *Network) AskAll(ctx context.Context, nodes []Node) []Reply {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(node Node) bool {
		return node.name() == n.config.ID
	})
	replies := make([]Reply, len(nodes))
	var asking sync.WaitGroup
	for i, node := range nodes {
		asking.Go(func() {
			began := time.Now()
			answer, err := n.Ask(ctx, node)
			replies[i] = Reply{node, answer, err, time.Since(began)}
		})
	}
	asking.Wait()
	return replies
}

// Call sends a request to a node, beside Raft, and returns its reply; both are at most 16 KiB. Unlike
// Ask it goes through the whole handshake. After an error it is not known whether the request arrived, unless
// the error is a RefusedError: then it did not.
func (n *Network) Call(ctx context.Context, to Node, request []byte) ([]byte, error) {
	s, err := n.dial(ctx, to, purposeCall, request)
	if err != nil {
		return nil, err
	}
	return s.body, nil
}
