// Package workload is the load of client programs while faults happen. Its workers make every kind
// of call of package client, at random, and record each for package check. The simulation and the
// real processes run the same workers; a [Setting] holds what differs.
//
//	recorder.go  how calls and holds are recorded
//	worker.go    a worker: random calls and holds, and what an operator does
package workload
