package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/raft"
)

// dial connects to a node and introduces this one. It returns the connection once both ends know each
// other: what is written to it next is Raft's.
func (n *Network) dial(ctx context.Context, to Node) (s *stream, err error) {
	s = &stream{server: raft.ServerID(to.ID)}
	s.Conn, s.raw, err = n.handshake(ctx, to, purposeRaft, func(conn net.Conn, mine identity) (err error) {
		s.generation, err = n.agreeOn(conn, mine, to)
		return err
	})
	return s, err
}

// agreeOn is the calling end of the handshake, after the hello. It returns which run of the node answered.
func (n *Network) agreeOn(conn net.Conn, mine identity, to Node) (generation, error) {
	body, err := readFrame(conn, kindWelcome, frameBytesMax)
	if err != nil {
		return generation{}, err
	}
	theirs, err := decodeWelcome(body)
	if err != nil {
		return generation{}, err
	}
	meant, err := ParseServer(raft.ServerID(to.ID))
	if err != nil {
		return generation{}, err
	}
	if refusal := judge(mine, theirs, meant, theirs.Server); refusal != nil {
		// The receiver would see no more than a closed connection; its operator deserves the reason.
		_ = writeFrame(conn, encodeRefusal(refusal))
		return generation{}, refusal
	}
	n.checkClone(theirs, to.Address)
	return theirs.generation, writeFrame(conn, encodeGo())
}

// handshake dials a node, says hello and lets talk do the rest, all of it within ctx.
func (n *Network) handshake(ctx context.Context, to Node, reason purpose,
	talk func(net.Conn, identity) error) (conn, raw net.Conn, err error) {
	raw, err = n.config.Dial(ctx, to.Address)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("peer: can't connect to %s at %s: %w", to.ID, to.Address, err)
	}
	mine := n.self()
	err = within(ctx, raw, func() error {
		var err error
		if conn, err = n.secureCall(ctx, raw, NameOf(raft.ServerID(to.ID))); err != nil {
			return err
		}
		if err := writeFrame(conn, encodeHello(hello{reason, to.ID, mine})); err != nil {
			return err
		}
		return talk(conn, mine)
	})
	if err == nil {
		return conn, raw, nil
	}
	raw.Close()
	if refusal, ok := errors.AsType[*RefusedError](err); ok {
		n.log.Warn("call "+to.ID+refusal.Code.String(), "peer connection refused",
			"peer", to.ID, "address", to.Address, "code", refusal.Code, "reason", refusal)
	}
	return nil, nil, fmt.Errorf("peer: no connection to %s at %s: %w", to.ID, to.Address, err)
}

// receive makes the called end of a handshake, and hands a connection for Raft to the transport.
func (n *Network) receive(ctx context.Context, raw net.Conn, leave func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.HandshakeTimeout, fmt.Errorf(
		"the handshake was not complete within %v", n.config.HandshakeTimeout))
	defer cancel()
	var welcomed *pendingConn
	err := within(ctx, raw, func() error {
		conn, err := n.secureAnswer(ctx, raw)
		if err != nil {
			return err
		}
		welcomed, err = n.readHello(conn)
		return err
	})
	leave()
	if err == nil && welcomed != nil {
		n.checkClone(welcomed.identity, raw.RemoteAddr().String())
		if welcomed.purpose == purposeRaft {
			welcomed.streams.deliver(&stream{
				Conn: welcomed.conn, raw: raw, handled: true, server: welcomed.ID(), generation: welcomed.generation,
			})
			return
		}
		err = within(ctx, raw, func() error { return n.serveCall(ctx, welcomed) })
	}
	raw.Close()
	n.logRefusal(raw, err)
}

// pendingConn is a caller whose handshake is done.
type pendingConn struct {
	identity
	purpose purpose
	conn    net.Conn
	streams *streams // for Raft
}

// readHello reads a hello and answers it. A nil connection without error has got what it came for.
func (n *Network) readHello(conn net.Conn) (*pendingConn, error) {
	body, err := readFrame(conn, kindHello, frameBytesMax)
	if err != nil {
		return nil, n.refuseFrame(conn, err)
	}
	hello, err := decodeHello(body)
	if err != nil {
		return nil, n.refuseFrame(conn, err)
	}
	mine, theirs := n.self(), hello.from
	if refusal := n.checkCertificate(conn, theirs.Name); refusal != nil {
		return nil, refuse(conn, refusal)
	}
	if hello.purpose == purposeAsk {
		if err := writeFrame(conn, encodeAnswer(n.answer(mine, theirs.Server), mine.generation)); err != nil {
			return nil, err
		}
		linger(conn)
		return nil, nil
	}
	meant, err := ParseServer(raft.ServerID(hello.meant))
	if err != nil {
		return nil, n.refuseFrame(conn, fmt.Errorf("%w: %w", errMalformed, err))
	}
	if refusal := judge(mine, theirs, meant, mine.Server); refusal != nil {
		return nil, refuse(conn, refusal)
	}
	streams := n.openStreams()
	if streams == nil && hello.purpose == purposeRaft {
		return nil, refuse(conn, n.refusal(NotReady, theirs.Name, "%s takes no part in Raft yet", mine.Name))
	}
	if err := writeFrame(conn, encodeWelcome(mine)); err != nil {
		return nil, err
	}
	// Until the caller has judged too, nothing it says is passed on.
	if body, err = readFrame(conn, kindGo, frameBytesMax); err != nil {
		return nil, err
	}
	if err := decodeGo(body); err != nil {
		return nil, err
	}
	return &pendingConn{theirs, hello.purpose, conn, streams}, nil
}

// checkClone raises the alarm when a node that was just met has a clone. A run that is new here ends the
// connections of those before it. If the node was restarted they are dead. If not, this is a copy, and
// the original, which might have gone on over its old connections forever, comes back and shows itself.
func (n *Network) checkClone(met identity, address string) {
	fresh, twin := n.clones.observe(met.Server, met.generation)
	if streams := n.openStreams(); fresh && streams != nil {
		streams.dropFormer(met.ID(), met.generation)
	}
	if twin {
		n.log.Error("clone "+met.String(), "clone detected: two processes run as the same node from copies of one data directory: "+
			"they can vote twice and lose what was acknowledged. Stop the one that is not at the node's "+
			"address; to make it a node of its own, start it under a name of its own, with an empty "+
			"directory and --join", "node", met.Name, "incarnation", met.Incarnation, "this_one_at", address)
	}
}

func (n *Network) refusal(code Code, peer, format string, args ...any) *RefusedError {
	return &RefusedError{Code: code, By: n.config.ID, Peer: peer, Fact: fmt.Sprintf(format, args...)}
}

// refuseFrame answers a frame that can't be read as a hello, if there is something to say.
func (n *Network) refuseFrame(conn net.Conn, err error) error {
	switch {
	case errors.Is(err, errTLSRecord):
		return refuse(conn, n.refusal(TLSWanted, "", "the caller sent %v", err))
	case errors.Is(err, errOtherVersion):
		return refuse(conn, n.refusal(OtherVersion, "", "the caller sent %v", err))
	case errors.Is(err, errMalformed):
		return refuse(conn, n.refusal(Malformed, "", "the caller sent %v", err))
	}
	return err
}

// logRefusal logs why a caller was sent away. Who only opens and closes a connection, as a health
// check does, is passed over.
func (n *Network) logRefusal(raw net.Conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || n.ctx.Err() != nil {
		return
	}
	refusal, ok := errors.AsType[*RefusedError](err)
	if !ok {
		n.log.Warn("caller", "a peer did not complete its handshake",
			"from", raw.RemoteAddr(), "error", err)
		return
	}
	n.log.Warn("caller "+refusal.By+refusal.Peer+refusal.Code.String(),
		"a caller and this node did not agree",
		"from", raw.RemoteAddr(), "code", refusal.Code, "reason", refusal)
}

func refuse(conn net.Conn, refusal *RefusedError) error {
	if writeFrame(conn, encodeRefusal(refusal)) == nil {
		linger(conn)
	}
	return refusal
}

// linger lets the other end close first: closing with unread bytes makes TCP send a reset, which
// can overtake the answer that was just written.
func linger(conn net.Conn) {
	_, _ = io.CopyN(io.Discard, conn, lingerBytesMax)
}

// within runs a talk that ends with ctx: a connection has no context, so it is closed instead.
func within(ctx context.Context, raw net.Conn, talk func() error) error {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	err := talk()
	if stop() {
		return err
	}
	if _, refused := errors.AsType[*RefusedError](err); refused {
		return err
	}
	return context.Cause(ctx)
}
