package peer

import (
	"context"
	"fmt"
	"net"
)

// tellBytesMax bounds what a node can be told, and its answer.
const tellBytesMax = 16*1024 - 1

// Tell says something to a node, beside Raft, and returns its answer; both are at most 16 KiB less
// one byte. Unlike Ask it goes through the whole handshake. After an error it is not known whether
// the other end heard, unless the error is a RefusedError: then it did not.
func (n *Network) Tell(ctx context.Context, to Node, what []byte) ([]byte, error) {
	if len(what) > tellBytesMax {
		return nil, fmt.Errorf("peer: %d bytes are too many to tell a node, %d is the most; "+
			"nothing was sent", len(what), tellBytesMax)
	}
	var answer []byte
	err := n.once(ctx, to, purposeTell, func(conn net.Conn, mine identity) error {
		if _, err := n.agree(conn, mine, to); err != nil {
			return err
		}
		if err := writeFrame(conn, encodeTell(kindTell, what)); err != nil {
			return err
		}
		body, err := readFrame(conn, kindTold, tellBytesMax+1)
		if err == nil {
			answer = body[1:]
		}
		return err
	})
	return answer, err
}

// hear is the called end of Tell, after the handshake.
func (n *Network) hear(ctx context.Context, from *guest) error {
	body, err := readFrame(from.conn, kindTell, tellBytesMax+1)
	if err != nil {
		return err
	}
	answer := n.config.Told(ctx, from.Server, body[1:])
	if len(answer) > tellBytesMax {
		return fmt.Errorf("the answer to %s has %d bytes, %d is the most; it was not sent",
			from.Name, len(answer), tellBytesMax)
	}
	if err := writeFrame(from.conn, encodeTell(kindTold, answer)); err != nil {
		return err
	}
	linger(from.conn)
	return nil
}
