// Package client holds locks of a zamok cluster. The calls that most programs need:
//
//	Dial, New            make a client of a cluster
//	Client.Lock          wait in line for a lock
//	Client.TryLock       take a lock only if it is free now, or within WithWaitTimeout
//	Client.LockAll       take several locks together
//	Client.Do            run a function under a lock
//	Lock.Unlock          release it, and wait for the cluster's confirmation
//	Lock.Err, Lock.Lost  is it still held, and a channel that is closed when it is lost
//	Lock.Context         a context that ends when it is lost
//	Lock.Token           the number of the grant, for storage to compare
//	Client.Close         end the session, which frees its locks
//	Client.Reserve       take a lock for hours that outlives this process: see Reservation
//
// Shared, Permits, WithWaitTimeout, WithMaxHold, WithOwner, WithMetadata and OnPosition are options of the calls that
// acquire.
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
//	// Storage that remembers the highest token it saw rejects a process that lost the lock without noticing.
//	db.ExecContext(ctx, `UPDATE account SET amount = amount - 150, fence = ? WHERE id = 200 AND fence <= ?`,
//		lock.Token(), lock.Token())
//
// # Which call
//
// [Client.Lock] is for work that every caller must do, one after the other: it waits in a FIFO queue. A wait is one
// request; there is no polling and no overtaking. [Client.TryLock] is for work that one caller must do: it does not
// wait, and of several calls on a free lock exactly one wins. [Client.LockAll] acquires several locks at once, all or
// none, and cannot deadlock with other such calls. [Client.Do] runs a function under a lock. [Shared] is for readers,
// [Permits] admits n holders at a time.
//
// # What a lock is
//
// A client has one session with the cluster, a lease that it renews with one message for all of its locks, every third
// of [Config.TTL], or half while it holds nothing. The first acquisition opens the session. Each
// successful call returns a handle of its own, [Lock]: two goroutines that request the same name
// exclude each other, and one that requests it twice waits for itself. Locks are *not reentrant*;
// with an owner ([WithOwner]) the second call is refused as the shortest deadlock.
//
// When the leader changes, or a connection breaks, the client attaches to the session again by itself.
// Waiting calls keep their queue positions, and held locks stay held with their tokens, if the cluster is back
// before the client's own deadline.
//
// A client that does not reach the leader, because of a firewall, a load balancer that is its only endpoint, or an address
// that leads nowhere from there, asks a node that it reaches to relay its calls and its stream. It returns to the leader
// when that answers again, which it tries every 15 s, or when another node leads.
//
// # Promises
//
//	L1  A handle is returned only while the session is confirmed to be alive at that moment.
//	L2  Lost closes before anyone else can be granted the lock, without any word from the network, as
//	    long as this process and its machine run and the raw clocks of client and leader run at rates less
//	    than 5 % apart, whatever time services do to the others. Three ends cannot be foreseen and are reported when they have happened: an operator's
//	    release, an operator's end of the session, and Config.ReleaseOnDisconnect.
//	L3  Lost is final. A handle that was reported lost is never held again; what the cluster may still
//	    hold for it is released before anything else is done with the session.
//	L4  A context bounds the wait only. When it ends, the call returns at once; what was asked for is
//	    cancelled in the background until the cluster confirms, so the caller may continue as if it did
//	    not hold it. It is released at the latest when the session ends.
//	L5  Unlock works with a context that has ended. It releases the handle's own grant only: no late or
//	    repeated release can free a lock that was taken again. A second Unlock is ErrNotHeld. Nil means that
//	    the cluster said that it holds nothing for the handle. See Releases.
//	L6  Each acquisition acts exactly once, however often it was sent.
//	L7  If the session ends, its locks are lost. Calls that still wait continue in a new session: their
//	    queue positions are lost, which cannot be avoided, and nothing else is.
//	L8  An error of TryLock, and every error of an acquisition, means: not held. Errors of other calls say
//	    by Error.Outcome whether they took effect.
//	L9  A waiting call costs its goroutine and less than 1 KiB, and no messages.
//	L10 A client belongs to one cluster, from before its first call to its end. A node of another one does
//	    nothing for it. See One cluster.
//
// # What a lock is not
//
// A lock cannot stop a process that does not check it. Between a look at Err and the write that it guards, the
// process may be paused for any time, and a clock of a virtual machine may stand still. That is what
// [Lock.Token] is for: a number that rises with each exclusive grant of a lock, which storage can check
// (package fence, and docs/guide/fencing.md). Shared locks and permits may share a token, which orders grants but
// does not name one: for those ask [Client.Check].
//
// Without a majority of its nodes the cluster grants and releases nothing. Holders continue until their own
// deadline, and not longer.
//
// # Loss
//
// Long work looks at Err between its steps, or lives in [Lock.Context], which ends when the lock is lost.
// A callback is context.AfterFunc(lock.Context(), f). Neither Context nor Lost ends by Unlock.
//
// # Releases
//
// What ends a lock here does not end it in the cluster. Unlock, Close, and an acquisition that is given up return an
// [UnconfirmedError] when the cluster did not say that it holds nothing for this client any more. It says until when
// others may find the lock taken.
//
//	what happened                                     Unlock returns
//	the release was applied                           nil
//	the session ended in the cluster while it waited  nil: the grant went with it
//	the cluster ended the grant while it waited       nil, as above; Watch has the reason
//	the cluster ended the grant before                ErrLost, outcome Done
//	the local deadline passed before                  ErrLost, unconfirmed: the client was cut off
//	the client was closed before                      ErrLost and ErrClosed, unconfirmed unless Close returned nil
//	no answer in time, or its context ended           ErrUnavailable, unconfirmed: it continues in the background
//	the session ended here only: its return was       ErrUnavailable, or ErrLost if that came before; unconfirmed:
//	refused, it was stolen, its cluster is gone       the lock stands until the lease ends in the cluster
//
// Close returns nil just if the cluster said that the session is over. A wait that is cancelled while the stream stands
// is dropped with the next frame; its error is plain. TryLock whose answer did not come, a wait whose limit passed
// without the cluster's word, and a wait that ends without a stream, are unconfirmed if they had been sent. A Downgrade
// whose lock is lost before its answer has the outcome Unknown. Do joins what Unlock returns, and Locker logs it.
//
// # One cluster
//
// If a list of endpoints had nodes of two clusters, and each client went to whichever answered first, two clients
// could hold one lock: one in each. So before its first call a client asks all endpoints for the id of their cluster.
// If they differ, every call fails with [ErrWrongCluster], which names them. If not, the client belongs to that
// cluster, and names it in every call; a node of another one refuses the call before it looks at anything else. That
// holds for every connection, be it to an endpoint, to the leader that another node named, or to a member's address,
// and the client looks at each answer, too. It has a limit: an endpoint that is silent at the beginning is not known.
// Where the first that answer may be of a wrong cluster, say with Config.Cluster which one is meant.
//
// An address that leads to another cluster is logged, and used no more than one that does not answer. When most
// endpoints do, and no node of the client's own cluster speaks, calls fail with ErrWrongCluster: usually the cluster
// was made anew. A session continues trying for as long as it is believed in; then its locks are lost and its waiting
// calls fail likewise. The client does not go over to the new cluster by itself, since work that was begun under locks
// of the old one may continue: when that is settled, make a new client.
//
// # How it is built
//
//	client.go   Client: construction, its one session, its end
//	nodes.go    connections to every node, who leads, and a round of asking them
//	attempts.go attempts at several nodes at once
//	nodeerrors.go  why a node could not do it, in words
//	resolve.go  endpoints that are names of several addresses
//	cluster.go  which cluster the client belongs to, and what comes from another
//	session.go  the lease: opening, reattaching, the end; renewal.go: renewal, local deadline, what is due
//	connectionstate.go  the states of the session's connection and their transitions
//	stream.go   one stream: its opening, what is reconciled after reattaching, what is sent together, what is received
//	ticketstate.go   the states of an acquisition and their transitions
//	ticket.go   one acquisition, which tickets are acknowledged, and what the cluster said about them
//	acquire.go  the calls that acquire, the wait of every call for its ticket, and the options
//	lock.go     the handle
//	reservation.go   locks in sessions of their own, by calls: nothing here watches or renews them
//	call.go     the calls that need no session: looking, and what operators do; watch.go; info.go: what they return
//	shapes.go   other shapes of a lock: an election, a sync.Locker
//	errors.go   the errors, and how those of calls and of the cluster become them
//
// A session has three goroutines, and one more while its nodes are learnt: run attaches and sends, receive
// reads, renewalLoop looks at the clocks. All of its state is guarded by one mutex, and no goroutine holds it while
// it waits.
//
// Invariants of a session:
//
//	S1  A ticket's number is given when it is first sent, and numbers are sent in order.
//	S2  Every ticket up to the acknowledged-through number was answered, or will not be requested again; no
//	    number more than 1024 above it is sent.
//	S3  The state of a ticket only moves forward, by the table of ticketstate.go.
//	S4  A ticket that its caller gave up is queued to be dropped until the cluster reports that it has
//	    ended.
//	S5  Only confirmations extend the local deadline: answers to the very transmission that was applied.
//	S6  A ticket that was sent has ended, and the end of a session is confirmed, only if the cluster reported it.
package client
