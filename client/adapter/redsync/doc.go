// Package redsync has the types and methods of [github.com/go-redsync/redsync/v4], so that a
// program moves its locks from Redis by another import and another constructor:
//
//	// was: a pool for each Redis
//	c, err := client.Dial(ctx, "node1:5750", "node2:5750", "node3:5750")
//	…
//	rs := redsync.New(c)
//
//	mutex := rs.NewMutex("account/200")
//	if err := mutex.LockContext(ctx); err != nil {
//		return err
//	}
//	defer mutex.UnlockContext(ctx)
//
// # What is different
//
// What a redsync program says and cannot be kept here does not compile: WithExpiry, WithValue,
// WithGenValueFunc, WithRetryDelayFunc, WithDriftFactor, WithTimeoutFactor, WithSetNXOnExtend,
// WithFailFast, WithShufflePools, RedisError, ErrNodeTaken, ErrTaken.Nodes. What compiles and means
// something else:
//
//   - A lock does not expire while the program lives and reaches a majority of the nodes: the
//     client renews its session by itself. A program that lets locks expire instead of unlocking
//     them, such as one that wants to do something at most once in 8 s, gives
//     WithOptions(client.WithMaxHold(8*time.Second)).
//   - The time for which a lock outlives a dead program is the client's ttl, for all of its locks:
//     client.Config.TTL, 10 s.
//   - Extend extends nothing. It checks with the cluster whether the lock is held: heed its error
//     as before. Until moves by itself with each renewal, and is exact to the client's safety
//     margin.
//   - Lock waits in a FIFO queue instead of trying again and again, for as long as the tries would
//     have taken: 31 pauses of 150 ms, or what WithTries and WithRetryDelay make of them.
//     WithTries(1) and TryLock do not wait.
//   - Errors wrap the client's, so that errors.Is and errors.As find both; ErrFailed is compared by
//     errors.Is.
//   - Value is the token of the grant: unique, rising and not secret. Pass it to the storage
//     (package fence).
//
// # What a loss does
//
// Until is then not later than now, and Extend, Valid and Unlock say so. [Mutex.Handle] has what
// redsync lacks: a context that ends with the loss, before another program can hold the lock.
package redsync
