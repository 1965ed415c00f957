package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
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
	// Unready is why the node can't agree to begin a cluster now, or lead the one that has begun;
	// "": it can.
	Unready string
	// Configuration is the index of the latest configuration that the node knows to be committed;
	// 0: it knows none. Listed: the node that asks is part of it.
	Configuration uint64
	Listed        bool
	// Names are those of the servers of that configuration, or of a later one in its log. NamesAt
	// is its index.
	NamesAt uint64   `json:",omitempty"`
	Names   []string `json:",omitempty"`
}

// Answer is what a node reports about itself: each end of a handshake sends one.
type Answer struct {
	Server
	Cluster ClusterID // zero: the node doesn't know one
	List    List      // zero: the node was given none
	Format  string    // of its binary
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
		Server: n.server(), Cluster: n.cluster, List: n.config.List, Format: n.config.Format,
		Condition: condition, Generation: n.generation,
	}
}

// Ask asks a node about itself. Any node of any cluster answers, whatever its name, and the
// caller checks that; with TLS, only one whose certificate names the node asked.
func (n *Network) Ask(ctx context.Context, node Node) (Answer, error) {
	s := &stream{purpose: purposeAsk}
	err := n.dial(ctx, node, s, nil)
	return s.remote, err
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

// Call sends a request to a node, beside Raft, and returns its reply; both are at most 16 KiB.
// Unlike Ask it goes through the whole handshake. After an error it is not known whether the
// request arrived, unless the error is a RefusedError: then it did not.
func (n *Network) Call(ctx context.Context, to Node, request []byte) ([]byte, error) {
	s := &stream{purpose: purposeCall}
	err := n.dial(ctx, to, s, request)
	return s.body, err
}

// dial connects a stream to a node and makes the calling end of the handshake, within
// HandshakeTimeout. If its purpose lasts, what is written to the connection next is Raft's, or of
// relayed calls; otherwise the answer or the reply has been read, and the connection is closed.
func (n *Network) dial(ctx context.Context, to Node, s *stream, request []byte) (err error) {
	timeout := n.config.HandshakeTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(n.ctx, func() { end(ErrClosed) })()
	if s.raw, err = n.config.Dial(ctx, to.Address); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("peer: can't connect to %s at %s: %w", to.ID, to.Address, err)
	}
	err = n.converse(ctx, s, to.name(), func() error { return n.greet(s, to, request) })
	if err != nil || !s.purpose.lasts() {
		s.raw.Close()
	}
	if err == nil {
		return nil
	}
	if refusal, ok := errors.AsType[*RefusedError](err); ok {
		n.log.warn("call "+to.ID+refusal.Code.String(), "peer connection refused",
			"peer", to.ID, "address", to.Address, "code", refusal.Code, "reason", refusal)
	}
	return fmt.Errorf("peer: no connection to %s at %s: %w", to.ID, to.Address, err)
}

// greet sends a hello and checks the answer. Unless it only asks, it then sends the go-ahead, with
// a request.
func (n *Network) greet(s *stream, to Node, request []byte) (err error) {
	mine := n.Mine()
	var intended Server
	if s.purpose != purposeAsk {
		if intended, err = ParseServer(raft.ServerID(to.ID)); err != nil {
			return err
		}
	}
	sent := time.Now()
	if err := writeFrame(s, &hello{s.purpose, intended, mine}); err != nil {
		return err
	}
	if err := readFrame(s, &s.remote); err != nil || s.purpose == purposeAsk {
		return err
	}
	if refusal := checkIdentities(mine, s.remote, intended, s.remote.Server); refusal != nil {
		// The receiver would only see a closed connection; its log should have the reason too.
		_ = writeFrame(s, refusal)
		return refusal
	}
	n.checkClone(s.remote, sent, to.Address)
	if err := writeFrame(s, &payload{kindProceed, request}); err != nil || s.purpose.lasts() {
		return err
	}
	reply := payload{as: kindReply}
	err = readFrame(s, &reply)
	s.body = reply.Body
	return err
}

// receive makes the called end of a handshake, and hands a connection that lasts to the one that
// uses it. It calls release when the handshake is over.
func (n *Network) receive(ctx context.Context, raw net.Conn, release func()) {
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.HandshakeTimeout, fmt.Errorf(
		"the handshake was not complete within %v", n.config.HandshakeTimeout))
	defer cancel()
	s := &stream{raw: raw, inbound: true}
	err := n.converse(ctx, s, "", func() error {
		if err := n.readHello(s); err != nil || s.purpose == purposeAsk {
			return err
		}
		release()
		n.checkClone(s.remote, s.repliedAt, raw.RemoteAddr().String())
		if s.purpose == purposeCall {
			return writeLast(s, &payload{kindReply, n.config.Handle(ctx, s.remote.Server, s.body)})
		}
		return nil
	})
	switch {
	case err != nil:
	case s.purpose == purposeRaft:
		s.owner.serve(s)
		return
	case s.purpose == purposeRelay:
		n.deliverRelay(ctx, s)
		return
	}
	raw.Close()
	n.logRefusal(raw, err)
}

// readHello reads a hello and answers it; a question has its answer then.
func (n *Network) readHello(s *stream) error {
	var hello hello
	if err := readFrame(s, &hello); err != nil {
		return n.refuseUnreadable(s, err)
	}
	s.purpose, s.remote = hello.Purpose, hello.From
	if refusal := n.checkCertificate(s); refusal != nil {
		return sendRefusal(s, refusal)
	}
	mine, unknown := n.answer(s.remote.Server), n.checkKnown(s.remote.Server)
	// what the caller has to say, or would read here, is of another cluster
	if mine.Format != s.remote.Format {
		return sendRefusal(s, newRefusal(OtherFormat, mine.Name, s.remote.Name,
			"the binary of %s has format %s and that of %s has format %s",
			mine.Name, mine.Format, s.remote.Name, s.remote.Format))
	}
	if s.purpose == purposeAsk && (unknown == nil || len(n.config.AllowedNames) == 0) {
		return writeLast(s, &mine)
	}
	refusal := unknown
	s.owner = n.openTransport()
	if s.purpose != purposeAsk {
		if s.owner == nil && s.purpose.lasts() {
			refusal = newRefusal(NotReady, mine.Name, s.remote.Name, "%s is not running Raft yet",
				mine.Name)
		}
		refusal = cmp.Or(checkIdentities(mine, s.remote, hello.Server, mine.Server), refusal)
	}
	if refusal != nil {
		return sendRefusal(s, refusal)
	}
	s.repliedAt = time.Now()
	if err := writeFrame(s, &mine); err != nil {
		return err
	}
	// Until the caller has judged too, nothing that it sends is passed on.
	proceed := payload{as: kindProceed}
	if err := readFrame(s, &proceed); err != nil {
		return err
	}
	if s.purpose.lasts() && len(proceed.Body) > 0 {
		return n.refuseUnreadable(s,
			fmt.Errorf("%w: %d bytes with proceed", errMalformed, len(proceed.Body)))
	}
	s.body = proceed.Body
	return nil
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

// logRefusal logs why a connection was refused. One that is opened and closed at once, as by a
// health check, is not logged.
func (n *Network) logRefusal(raw net.Conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || n.ctx.Err() != nil {
		return
	}
	refusal, ok := errors.AsType[*RefusedError](err)
	if !ok {
		n.log.warn("caller", "a peer did not complete its handshake", "from", raw.RemoteAddr(),
			"error", err)
		return
	}
	n.log.warn("caller "+refusal.By+refusal.Peer+refusal.Code.String(),
		"the handshake with a peer was refused",
		"from", raw.RemoteAddr(), "code", refusal.Code, "reason", refusal)
}

func sendRefusal(conn net.Conn, refusal *RefusedError) error {
	_ = writeLast(conn, refusal)
	return refusal
}

// writeLast sends a message and lets the other end close first: closing with unread bytes makes TCP
// send a reset, which can overtake what was just written.
func writeLast(conn net.Conn, m message) error {
	err := writeFrame(conn, m)
	if err == nil {
		_, _ = io.CopyN(io.Discard, conn, lingerBytesMax)
	}
	return err
}

// converse makes one end of TLS, if this node has it, and then a conversation, which end with ctx:
// a connection has no context, so it is closed instead.
func (n *Network) converse(ctx context.Context, s *stream, serverName string,
	talk func() error) error {
	stop := context.AfterFunc(ctx, func() { s.raw.Close() })
	err := n.secure(ctx, s, serverName)
	if err == nil {
		err = talk()
	}
	if _, refused := errors.AsType[*RefusedError](err); stop() || refused {
		return err
	}
	return context.Cause(ctx)
}

// checkIdentities is the table of docs/proofs/peers.md: it returns why mine must not speak Raft
// with theirs, or nil. The caller intended one server and reached another or the same. Both ends
// check, each by what it knows itself.
func checkIdentities(mine, theirs Answer, intended, reached Server) *RefusedError {
	refuse := func(code RefusalCode, format string, args ...any) *RefusedError {
		return newRefusal(code, mine.Name, theirs.Name, format, args...)
	}
	bothIDs := mine.Cluster != ClusterID{} && theirs.Cluster != ClusterID{}
	switch {
	case bothIDs && mine.Cluster != theirs.Cluster:
		return refuse(OtherCluster, "%s belongs to cluster %v and %s to cluster %v",
			mine.Name, mine.Cluster, theirs.Name, theirs.Cluster)
	case intended.Name != reached.Name:
		return refuse(OtherNode, "the caller wants %s, and the node at this address is %s",
			intended.Name, reached.Name)
	case intended != reached:
		return refuse(OtherIncarnation,
			"the caller wants %s with incarnation %v, and the node at this address has %v: it is "+
				"another data directory under the same name",
			intended.Name, intended.Incarnation, reached.Incarnation)
	case mine.knowledge() == knowsNoCluster || theirs.knowledge() == knowsNoCluster:
		return refuse(NothingInCommon,
			"%s knows %s and %s knows %s, so nothing shows that they are of one cluster", mine.Name,
			mine.knowledge(), theirs.Name, theirs.knowledge())
	case !bothIDs && mine.Initial.differ(theirs.Initial):
		return refuse(OtherInitialMembers,
			"%s and %s are part of different clusters: their initial members differ (%s and %s)",
			mine.Name, theirs.Name, mine.Initial, theirs.Initial)
	}
	return nil
}

// knowsNoCluster is what a node knows that has neither a cluster id nor initial members.
const knowsNoCluster = "no cluster"

// knowledge names the cell of the table that a node stands in.
func (a *Answer) knowledge() string {
	switch id, initial := a.Cluster != (ClusterID{}), a.Initial != (InitialMembers{}); {
	case id && initial:
		return "a cluster id and the initial members"
	case id:
		return "only a cluster id"
	case initial:
		return "only the initial members of its cluster"
	}
	return knowsNoCluster
}
