// Package client holds locks of a zamok cluster.
//
//	c, err := client.Dial(ctx, "node1:5750", "node2:5750", "node3:5750")
//	…
//	defer c.Close()
//
//	lock, err := c.Lock(ctx, "account/200")
//	if err != nil {
//		return err // nothing is held
//	}
//	defer lock.Unlock(ctx)
//	// Storage that remembers the highest token it saw refuses whoever lost the lock unawares.
//	db.ExecContext(ctx, `UPDATE account SET amount = amount - 150, fence = ? WHERE id = 200 AND fence <= ?`,
//		lock.Token(), lock.Token())
//
// # Which call
//
// [Client.Lock] is for what must be done by everybody, one after the other: it waits in line until it
// is its turn. A wait is one request; nobody polls, nobody overtakes. [Client.TryLock] is for what must
// be done by one: it does not wait, and of several at a free lock exactly one wins. [Client.LockAll]
// takes several locks at once, all or none, and can't deadlock with others of its kind. [Client.Do] runs
// a function under a lock. [AsShared] is for readers, [AsPermits] lets n in at a time.
//
// # What a lock is
//
// A client has one session with the cluster, a lease that it renews with one message for all of its
// locks, every third of [Config.TTL]. The session is opened by the first lock. Each successful call
// gives a handle of its own, [Lock]: two goroutines that ask for the same name exclude each other, and one
// that asks twice waits for itself. Locks are *not reentrant*; with an [Owner] the second call is refused
// as the shortest deadlock.
//
// When the leader changes, or a connection breaks, the client attaches to the session again by itself.
// Waiting calls keep their places, and held locks stay held with their tokens, if the cluster is back
// before the client's own deadline.
//
// # Promises
//
//	L1  A handle is given out only while the session is proven to be alive at that moment.
//	L2  Lost closes before anyone else can be granted the lock, without any word from the network, as
//	    long as this process and its machine run and the clocks of client and leader run at rates less
//	    than 5 % apart. Three ends can't be foreseen and are told when they have happened: an operator's
//	    release, an operator's end of the session, and Config.ReleaseOnDisconnect.
//	L3  Lost is final. A handle that was reported lost is never held again; what the cluster may still
//	    hold for it is released before anything else is done with the session.
//	L4  A context bounds the wait only. When it ends, the call returns at once; what was asked for is
//	    cancelled behind the caller's back until the cluster confirms, so the caller may go on as not
//	    holding it. It is released at the latest when the session ends.
//	L5  Unlock works with a context that has ended. It touches the handle's own grant only: no late or
//	    repeated release can free a lock that was taken again. A second Unlock is ErrNotHeld.
//	L6  Each acquisition acts exactly once, however often it was sent.
//	L7  If the session ends, its locks are lost. Calls that still wait go on in a new session: their
//	    places in the queues are lost, which can't be avoided, and nothing else is.
//	L8  An error of TryLock, and every error of an acquisition, means: not held. Errors of other calls say
//	    by Error.Outcome whether they took effect.
//	L9  A waiting call costs its goroutine and less than 1 KiB, and no messages.
//
// # What a lock is not
//
// A lock can't stop a process that does not look. Between a look at Err and the write that it guards, the
// process may be paused for any time, and a clock of a virtual machine may stand still. That is what
// [Lock.Token] is for: a number that rises with each exclusive grant of a lock, which storage can check
// (package fence, and docs/leases.md). Shared locks and permits may share a token, which orders grants but
// does not name one: for those ask [Client.Check].
//
// Without a majority of its nodes the cluster grants and releases nothing. Holders go on until their own
// deadline, and not longer.
//
// # Loss
//
// Long work looks at Err between its steps, or lives in [Lock.Context], which ends when the lock is lost.
// A callback is context.AfterFunc(lock.Context(), f). Neither Context nor Lost ends by Unlock.
//
// # How it is built
//
//	client.go   Client: construction, its one session, its end
//	nodes.go    connections to every node, and who leads; call.go: calls that need no session
//	session.go  the lease: opening, coming back, the end; keep.go: renewal, trust, what is due
//	stream.go   one stream: what is sent together, what is received
//	welcome.go  what is set right after coming back
//	answer.go   what the cluster said about a ticket
//	ticket.go   one acquisition on its way, and the floor
//	acquire.go  the calls that wait; options.go
//	lock.go     the handle
//	read.go, info.go, watch.go, operate.go   looking, and what operators do
//	election.go, locker.go                   other shapes of a lock
//
// A session has three goroutines, and one more while its nodes are learnt: run attaches and sends, receive
// reads, keep looks at the clocks. All of its state is guarded by one mutex, and no goroutine holds it while
// it waits.
//
// Invariants of a session:
//
//	S1  A ticket's number is given when it is first sent, and numbers are sent in order.
//	S2  Every ticket up to the floor had an answer, or will not be asked for again; no number above
//	    floor + 1024 is sent.
//	S3  What is known of a ticket only moves on: unseen, waiting, granted, gone.
//	S4  A ticket whose caller does not want it is on its way to be dropped until the cluster said that it
//	    is gone.
//	S5  Trust is extended by proofs only: the answer to the very transmission that was applied.
package client
