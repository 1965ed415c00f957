package peer

import (
	"context"
	"fmt"
	"net"
)

// callBytesMax bounds what a node can be told, and its answer.
const callBytesMax = 16*1024 - 1

// Call says something to a node, beside Raft, and returns its answer; both are at most 16 KiB less
// one byte. Unlike Ask it goes through the whole handshake. After an error it is not known whether
// the other end heard, unless the error is a RefusedError: then it did not.
func (n *Network) Call(ctx context.Context, to Node, what []byte) ([]byte, error) {
	if len(what) > callBytesMax {
		return nil, fmt.Errorf("peer: %d bytes are too many to tell a node, %d is the most; "+
			"nothing was sent", len(what), callBytesMax)
	}
	var answer []byte
	err := n.once(ctx, to, purposeCall, func(conn net.Conn, mine identity) error {
		if _, err := n.agreeOn(conn, mine, to); err != nil {
			return err
		}
		if err := writeFrame(conn, encodeCall(kindCall, what)); err != nil {
			return err
		}
		body, err := readFrame(conn, kindReply, callBytesMax+1)
		if err == nil {
			answer = body[1:]
		}
		return err
	})
	return answer, err
}

// serveCall is the called end of Call, after the handshake.
func (n *Network) serveCall(ctx context.Context, from *pendingConn) error {
	body, err := readFrame(from.conn, kindCall, callBytesMax+1)
	if err != nil {
		return err
	}
	answer := n.config.Handle(ctx, from.Server, body[1:])
	if len(answer) > callBytesMax {
		return fmt.Errorf("the answer to %s has %d bytes, %d is the most; it was not sent",
			from.Name, len(answer), callBytesMax)
	}
	if err := writeFrame(from.conn, encodeCall(kindReply, answer)); err != nil {
		return err
	}
	linger(from.conn)
	return nil
}
