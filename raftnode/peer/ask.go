package peer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Condition is what a node says about its data.
type Condition struct {
	// Holds: the data directory holds part of a log or snapshot, so its cluster has begun.
	Holds bool
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

// Answer is what a node says when it is asked.
type Answer struct {
	Server
	Cluster ClusterID // zero: the node doesn't know one
	List    List      // zero: the node was given none
	Condition
}

// Mine is this node's own answer.
func (n *Network) Mine() Answer {
	mine := n.self()
	return n.answer(mine, mine.Server)
}

func (n *Network) answer(mine identity, asker Server) Answer {
	return Answer{
		Server: mine.Server, Cluster: mine.cluster, List: n.config.List, Condition: n.config.Condition(asker),
	}
}

// Ask asks a node about itself. Any node of any cluster answers, whatever its name, and the
// caller looks at that; with TLS, only one whose certificate names the node asked.
func (n *Network) Ask(ctx context.Context, node Node) (Answer, error) {
	var answer Answer
	err := n.once(ctx, node, purposeAsk, func(conn net.Conn, _ identity) error {
		body, err := readFrame(conn, kindAnswer, answerBytesMax)
		if err != nil {
			return err
		}
		answer, err = decodeAnswer(body)
		return err
	})
	return answer, err
}

// once makes a connection for one question within HandshakeTimeout, and closes it.
func (n *Network) once(ctx context.Context, to Node, reason purpose,
	talk func(net.Conn, identity) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.HandshakeTimeout,
		fmt.Errorf("no answer within %v", n.config.HandshakeTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(n.ctx, func() { end(ErrClosed) })()
	conn, _, err := n.handshake(ctx, to, reason, talk)
	if err != nil {
		return err
	}
	return conn.Close()
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
