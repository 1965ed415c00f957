// Package fence is the storage's side of a lock: it rejects a process that lost an exclusive lock
// without noticing.
//
// A process that holds a lock can be paused for any time, lose the lock, and continue as if nothing
// had happened. Nothing that it does itself can prevent that. But every exclusive grant of a lock
// has a token greater than all before it, so a storage that remembers the highest token it saw can
// reject a lower one.
//
// # In a database
//
// The mark belongs beside what it guards, and is checked in the same transaction as the write:
//
//	ALTER TABLE account ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
//
//	UPDATE account SET amount = amount - 150, fence = $token
//	 WHERE id = 200 AND fence <= $token AND amount >= 150;
//	-- 0 rows: not enough money, or a token that is too old: look at fence to know which
//
// A shared lock only reads. Its token is compared, so that a reader who lost the lock is rejected,
// and must not be stored: it would be above the token of an exclusive lock that is still held
// elsewhere in a chain of downgrades, or equal to it.
//
//	SELECT amount FROM account WHERE id = 200 AND fence <= $token;
//
// Where what is guarded is not one row, keep one row per lock:
//
//	CREATE TABLE fence (name VARCHAR(512) PRIMARY KEY, token BIGINT NOT NULL);
//
//	INSERT INTO fence (name, token) VALUES ($name, $token)
//	    ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fence.token <=
//	    excluded.token;
//	-- 0 rows: too old; roll back
//
// # In memory
//
// [Guard] does the same for a service that keeps its marks itself. It forgets them when the process
// ends, which is safe only if what it guards ends too; otherwise restore them with [Guard.Set].
//
// # Promises
//
//	F1  Of two exclusive tokens for one resource, the lower is rejected after the higher was let
//	    through.
//	F2  Only an exclusive token raises a mark.
//	F3  Permits are rejected: several holders at once are what they are for, so no order can tell
//	    who is right. Ask the cluster (client.Check).
//	F4  A token above what the cluster has issued is rejected, if the guard has Issued: it would
//	    close the resource to everybody else forever. It comes from another cluster, or a mistake.
package fence
