// Demo shows what zamok is for, with real processes: `make demo`.
//
//	demo ZAMOK      plays the story with that binary
//	demo machine …  is one cash machine of it, a process that the story starts
//
// Three nodes run, a bank keeps an account of 200, and two cash machines draw 150 each at the same time.
//
//	act 1  without a lock both get the money
//	act 2  with a lock exactly one does, though the leading node is killed in the middle
//	act 3  a machine falls asleep holding the lock, longer than its lease: the other one gets the lock and the
//	       money, and the bank refuses the sleeper by its token
//
// The machines count notes for a second; on a busy computer ZAMOK_DEMO_PAUSE=5s gives the story more time.
//
// Each act is checked, and the exit code is 1 if one did not end as announced. scenarios.go is the plot, bank.go the
// account, machine.go a cash machine, nodes.go the cluster.
package main
