package peer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
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
	s, err := n.exchange(ctx, node, purposeAsk, nil)
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
	var replies []Reply
	for _, node := range nodes {
		if NameOf(raft.ServerID(node.ID)) != n.config.ID {
			replies = append(replies, Reply{Node: node})
		}
	}
	var asking sync.WaitGroup
	for i := range replies {
		asking.Go(func() {
			began := time.Now()
			replies[i].Answer, replies[i].Err = n.Ask(ctx, replies[i].Node)
			replies[i].Took = time.Since(began)
		})
	}
	asking.Wait()
	return replies
}

// Call sends a request to a node, beside Raft, and returns its reply; both are at most 16 KiB less
// one byte. Unlike Ask it goes through the whole handshake. After an error it is not known whether
// the request arrived, unless the error is a RefusedError: then it did not.
func (n *Network) Call(ctx context.Context, to Node, request []byte) ([]byte, error) {
	if len(request) > callBytesMax {
		return nil, fmt.Errorf("peer: a request of %d bytes, %d is the most; nothing was sent",
			len(request), callBytesMax)
	}
	s, err := n.exchange(ctx, to, purposeCall, request)
	if err != nil {
		return nil, err
	}
	return s.body, nil
}

// exchange makes a connection for one question within HandshakeTimeout, and closes it.
func (n *Network) exchange(ctx context.Context, to Node, use purpose, request []byte) (*stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.HandshakeTimeout,
		fmt.Errorf("no answer within %v", n.config.HandshakeTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(n.ctx, func() { end(ErrClosed) })()
	s, err := n.dial(ctx, to, use, request)
	if err == nil {
		err = s.Conn.Close()
	}
	return s, err
}

// serveCall is the called end of Call, after the handshake.
func (n *Network) serveCall(ctx context.Context, from *stream) error {
	reply := n.config.Handle(ctx, from.remote.Server, from.body)
	if len(reply) > callBytesMax {
		return fmt.Errorf("the answer to %s has %d bytes, %d is the most; it was not sent",
			from.remote.Name, len(reply), callBytesMax)
	}
	if err := writeFrame(from, &payload{kindReply, reply}); err != nil {
		return err
	}
	awaitPeerClose(from)
	return nil
}
