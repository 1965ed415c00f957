package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/raft"
)

// dial connects to a node and makes the calling end of the handshake, all of it within ctx. With purposeRaft,
// what is written to the connection next is Raft's; with purposeCall, it has sent the request and read the
// reply.
func (n *Network) dial(ctx context.Context, to Node, use purpose, request []byte) (*stream, Answer, []byte, error) {
	raw, err := n.config.Dial(ctx, to.Address)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, Answer{}, nil, fmt.Errorf("peer: can't connect to %s at %s: %w", to.ID, to.Address, err)
	}
	s, answer, reply := &stream{raw: raw, server: raft.ServerID(to.ID)}, Answer{}, payload{as: kindReply}
	err = runWithContext(ctx, raw, func() (err error) {
		if s.Conn, err = n.secure(ctx, raw, true, NameOf(s.server)); err != nil {
			return err
		}
		if answer, err = n.greet(s.Conn, to, use, request); err == nil && use == purposeCall {
			err = readFrame(s.Conn, &reply)
		}
		return err
	})
	if err == nil {
		s.generation = answer.Generation
		return s, answer, reply.Body, nil
	}
	raw.Close()
	if refusal, ok := errors.AsType[*RefusedError](err); ok {
		n.log.Warn("call "+to.ID+refusal.Code.String(), "peer connection refused",
			"peer", to.ID, "address", to.Address, "code", refusal.Code, "reason", refusal)
	}
	return nil, Answer{}, nil, fmt.Errorf("peer: no connection to %s at %s: %w", to.ID, to.Address, err)
}

// greet sends a hello and checks the answer. Unless it only asks, it then sends the go-ahead, with a request.
func (n *Network) greet(conn net.Conn, to Node, use purpose, request []byte) (theirs Answer, err error) {
	mine := n.Mine()
	var intended Server
	if use != purposeAsk {
		if intended, err = ParseServer(raft.ServerID(to.ID)); err != nil {
			return theirs, err
		}
	}
	if err = writeFrame(conn, &hello{use, intended, mine}); err != nil {
		return theirs, err
	}
	if err = readFrame(conn, &theirs); err != nil || use == purposeAsk {
		return theirs, err
	}
	if refusal := checkIdentities(mine, theirs, intended, theirs.Server); refusal != nil {
		// The receiver would only see a closed connection; its log should have the reason too.
		_ = writeFrame(conn, refusal)
		return theirs, refusal
	}
	n.checkClone(theirs.Server, theirs.Generation, to.Address)
	return theirs, writeFrame(conn, &payload{kindProceed, request})
}

// receive makes the called end of a handshake, and hands a connection for Raft to the transport.
func (n *Network) receive(ctx context.Context, raw net.Conn, release func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.HandshakeTimeout, fmt.Errorf(
		"the handshake was not complete within %v", n.config.HandshakeTimeout))
	defer cancel()
	var from *caller
	err := runWithContext(ctx, raw, func() error {
		conn, err := n.secure(ctx, raw, false, "")
		if err != nil {
			return err
		}
		from, err = n.readHello(conn)
		return err
	})
	release()
	if err == nil && from != nil {
		n.checkClone(from.Server, from.Generation, raw.RemoteAddr().String())
		if from.purpose == purposeRaft {
			from.streams.deliver(&stream{
				Conn: from.conn, raw: raw, inbound: true, server: from.ID(), generation: from.Generation,
			})
			return
		}
		err = runWithContext(ctx, raw, func() error { return n.serveCall(ctx, from) })
	}
	raw.Close()
	n.logRefusal(raw, err)
}

// caller is one whose handshake is done.
type caller struct {
	Answer
	purpose purpose
	conn    net.Conn
	streams *streamLayer // for Raft
	request []byte       // of a call
}

// readHello reads a hello and answers it. No caller and no error: it only asked, and has its answer.
func (n *Network) readHello(conn net.Conn) (*caller, error) {
	var hello hello
	if err := readFrame(conn, &hello); err != nil {
		return nil, n.refuseUnreadable(conn, err)
	}
	theirs := hello.From
	if refusal := n.checkCertificate(conn, theirs.Name); refusal != nil {
		return nil, sendRefusal(conn, refusal)
	}
	mine := n.answer(theirs.Server)
	if hello.Purpose == purposeAsk {
		if err := writeFrame(conn, &mine); err != nil {
			return nil, err
		}
		awaitPeerClose(conn)
		return nil, nil
	}
	if refusal := checkIdentities(mine, theirs, hello.Server, mine.Server); refusal != nil {
		return nil, sendRefusal(conn, refusal)
	}
	streams := n.openStreams()
	if streams == nil && hello.Purpose == purposeRaft {
		return nil, sendRefusal(conn, newRefusal(NotReady, mine.Name, theirs.Name, "%s is not running Raft yet", mine.Name))
	}
	if err := writeFrame(conn, &mine); err != nil {
		return nil, err
	}
	// Until the caller has judged too, nothing that it sends is passed on.
	proceed := payload{as: kindProceed}
	if err := readFrame(conn, &proceed); err != nil {
		return nil, err
	}
	if hello.Purpose == purposeRaft && len(proceed.Body) > 0 {
		return nil, n.refuseUnreadable(conn, fmt.Errorf("%w: %d bytes with proceed", errMalformed, len(proceed.Body)))
	}
	return &caller{theirs, hello.Purpose, conn, streams, proceed.Body}, nil
}

// refuseUnreadable answers a frame that can't be read as a hello, if the reason is worth one.
func (n *Network) refuseUnreadable(conn net.Conn, err error) error {
	for sign, code := range map[error]RefusalCode{
		errTLSRecord: TLSWanted, errOtherVersion: OtherVersion, errMalformed: Malformed,
	} {
		if errors.Is(err, sign) {
			return sendRefusal(conn, newRefusal(code, n.config.ID, "", "the caller sent %v", err))
		}
	}
	return err
}

// logRefusal logs why a connection was refused. One that is opened and closed at once, as by a health check,
// is not logged.
func (n *Network) logRefusal(raw net.Conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || n.ctx.Err() != nil {
		return
	}
	refusal, ok := errors.AsType[*RefusedError](err)
	if !ok {
		n.log.Warn("caller", "a peer did not complete its handshake", "from", raw.RemoteAddr(), "error", err)
		return
	}
	n.log.Warn("caller "+refusal.By+refusal.Peer+refusal.Code.String(), "the handshake with a peer was refused",
		"from", raw.RemoteAddr(), "code", refusal.Code, "reason", refusal)
}

func sendRefusal(conn net.Conn, refusal *RefusedError) error {
	if writeFrame(conn, refusal) == nil {
		awaitPeerClose(conn)
	}
	return refusal
}

// awaitPeerClose lets the other end close first: closing with unread bytes makes TCP send a reset, which
// can overtake the answer that was just written.
func awaitPeerClose(conn net.Conn) {
	_, _ = io.CopyN(io.Discard, conn, lingerBytesMax)
}

// runWithContext runs a conversation that ends with ctx: a connection has no context, so it is closed
// instead.
func runWithContext(ctx context.Context, raw net.Conn, converse func() error) error {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	err := converse()
	if stop() {
		return err
	}
	if _, refused := errors.AsType[*RefusedError](err); refused {
		return err
	}
	return context.Cause(ctx)
}
