package peer

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Answer is what a node says it holds.
type Answer struct {
	ID          string
	Incarnation Incarnation
	Holds       bool      // the data directory holds part of a log or snapshot
	Cluster     ClusterID // zero: the node doesn't know one
	List        List      // zero: the node was given none
	// Yours is the incarnation that the node has on record for the one that asked; zero: none.
	Yours Incarnation
}

// Mine is this node's own answer.
func (n *Network) Mine() Answer { return n.answer(n.self(), n.config.ID) }

func (n *Network) answer(mine identity, asker string) Answer {
	return Answer{
		ID: mine.id, Incarnation: mine.incarnation, Holds: n.config.Holds(),
		Cluster: mine.cluster, List: n.config.List, Yours: n.record(asker),
	}
}

// Ask asks a node what it holds. Any node of any cluster answers, whatever its id, and Decide looks
// at that; with TLS, only one whose certificate names the node asked.
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
func (n *Network) once(ctx context.Context, to Node, why purpose,
	talk func(net.Conn, identity) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.HandshakeTimeout,
		fmt.Errorf("no answer within %v", n.config.HandshakeTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(n.ctx, func() { end(ErrClosed) })()
	conn, _, err := n.introduce(ctx, to, why, talk)
	if err != nil {
		return err
	}
	return conn.Close()
}

// AskAll asks every node of the list but this one, all at once.
func (n *Network) AskAll(ctx context.Context) []Reply {
	var replies []Reply
	for _, node := range n.config.List.Nodes() {
		if node.ID != n.config.ID {
			replies = append(replies, Reply{Node: node})
		}
	}
	var asking sync.WaitGroup
	for i := range replies {
		asking.Go(func() { replies[i].Answer, replies[i].Err = n.Ask(ctx, replies[i].Node) })
	}
	asking.Wait()
	return replies
}
