// Demo shows what zamok is for, with real processes: `make demo`.
//
//	demo ZAMOK      runs all acts with that binary
//	demo machine …  is one cash machine, a process that the demo starts
//
// Three nodes run, a bank keeps an account of 200, and two cash machines draw 150 each at the same
// time.
//
//	act 1  without a lock both pay out
//	act 2  with a lock exactly one does, although the leader is killed in the middle
//	act 3  a machine that holds the lock is paused for longer than its lease: the other one gets
//	       the
//	lock and pays
//	       out, and the bank rejects the token of the paused one
//
// The machines count notes for a second; on a busy computer ZAMOK_DEMO_PAUSE=5s gives them more
// time.
//
// Each act is checked, and the exit code is 1 if one does not end as announced. scenarios.go has
// the acts, bank.go the account, machine.go a cash machine, nodes.go the cluster.
package main
