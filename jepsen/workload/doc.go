// Package workload is what programs do with package client while faults happen: everything that it offers, at
// random, each call recorded for package check. The simulation and the real processes run the same workers; what
// differs is a [Setting].
//
//	recorder.go  how calls and holds are recorded
//	worker.go    an owner of locks, and an operator
package workload
