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
//	// Storage that remembers the highest token rejects a process that lost the lock unnoticed.
//	db.ExecContext(ctx, `UPDATE account SET amount = amount - 150, fence = ?
//		WHERE id = 200 AND fence <= ?`, lock.Token(), lock.Token())
//
// [Client.Lock] waits in a FIFO queue. [Client.TryLock] does not wait. [Client.LockAll] takes
// several locks, all or none. [Client.Do] runs a function under a lock. A [Reservation] outlives
// this process. Package client/admin operates the cluster.
//
// # Model
//
// A client has one session with the cluster: a lease, which it renews with one message for all of
// its locks (renewal.go). Each successful call returns a handle of its own, [Lock]: two goroutines
// that request one name exclude each other. Locks are not reentrant; with [WithOwner] the second
// call of an owner fails with ErrDeadlock. After a change of leader, or a broken connection, the
// client attaches to its session again: waits keep their queue positions, and locks their tokens.
// Without a majority the cluster grants nothing, and holders continue until their own deadline.
//
// A lock stops only a process that checks it, and even that may be paused between a look at
// [Lock.Err] and the write that it guards. Storage can stop it: see [Lock.Token] and package fence.
//
// # Promises
//
//	L1  A handle is returned only while the session is confirmed to be alive at that moment.
//	L2  Lost closes before another client can be granted the lock. This needs no message from the
//	    network. It holds while this process and its machine run, and the raw clocks of client and
//	    leader run at rates less than 5 % apart. Three ends cannot be foreseen, so Lost closes
//	    after them: an operator's release or end of the session, and Config.ReleaseOnDisconnect.
//	L3  Lost is final. A handle that was lost is never held again. What the cluster may still hold
//	    for it is released before anything else is done with the session.
//	L4  A context bounds the wait only. When it ends, the call returns at once, and the caller may
//	    continue as if it did not hold the lock. The request is cancelled in the background until
//	    the cluster confirms that. It is released at the latest when the session ends.
//	L5  Unlock works with a context that has ended. It releases the handle's own grant only, never
//	    a lock that was taken again. A second Unlock is ErrNotHeld. Nil means: the cluster
//	    confirmed that it holds nothing for the handle. See UnconfirmedError.
//	L6  Each acquisition acts exactly once, however often it was sent.
//	L7  If the session ends, its locks are lost. Calls that still wait continue in a new session.
//	    They lose their queue positions, and nothing else.
//	L8  An error of TryLock, and every error of an acquisition, means: not held. Errors of other
//	    calls say by Error.Outcome whether they took effect.
//	L9  A waiting call costs its goroutine and less than 1 KiB, and no messages.
//	L10 A client belongs to one cluster, from before its first call to its end (cluster.go).
//
// # Files
//
// acquire.go, reservation.go, election.go, locker.go, lockinfo.go, grant.go and watch.go have the
// calls of Client, lock.go those of a handle. calls.go makes calls without a session, at a node
// that nodes.go chooses. session.go explains the session: stream.go and renewal.go notice that its
// leader is gone, and session.run looks for the next one through nodes.go (tryInTurn, record, next)
// and attempts.go, which tries several nodes at once.
package client
