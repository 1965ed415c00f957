// Package loadgen measures locks with closed loops: each worker locks and unlocks again and again.
// `zamok bench` runs them on a cluster, and bench/ on each of the systems that it compares.
//
//	loop := loadgen.Loop{Workers: 16, Window: 10 * time.Second, Key: key, Lock: lock}
//	result := loop.Run(ctx)
//	fmt.Println(result.Rate(), result.Lock.Quantile(0.99))
//
// # What is measured
//
//  1. Only grants inside the window count, and only cycles that end inside it; Warmup before it
//     does not.
//  2. A failed call is always counted in Errors. Its worker waits a moment and continues.
//  3. If all workers have the same key, Overlaps counts grants beside another holder: anything but
//     0 is a broken lock. Handoff is the time from one holder's release to the next grant, if that
//     waiter waited already.
//
// loop.go is the loop, histogram.go the distribution of times.
package loadgen
