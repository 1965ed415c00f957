// Package leaderelection runs a program's work while it leads, with the callbacks of
// [k8s.io/client-go/tools/leaderelection] on an election of the cluster:
//
//	c, err := client.Dial(ctx, "node1:5750", "node2:5750", "node3:5750")
//	…
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Client: c, Name: "controller", Identity: hostname,
//		Callbacks: leaderelection.LeaderCallbacks{
//			OnStartedLeading: run, // func(ctx context.Context), which returns when ctx ends
//			OnStoppedLeading: func() { os.Exit(0) },
//			OnNewLeader:      func(identity string) { slog.Info("new leader", "identity",
//	                    identity) },
//		},
//	})
//
// # What is different
//
// There is no resourcelock.Interface: that library decides by a record's age who leads, and cannot
// be notified that a lock was lost (docs/decisions.md). So the fields of the configuration that
// speak of it do not exist: Lock, LeaseDuration, RenewDeadline, RetryPeriod, WatchDog,
// ReleaseOnCancel, Coordinated. What compiles and means something else:
//
//   - The context of OnStartedLeading ends before another candidate can lead
//     ([client.Lock.Context]), not up to a renew deadline after. Work that does not look at it is
//     protected by the token only: [LeaderElector.Held].
//   - A candidate waits in a queue and leads as soon as the leader has gone; it does not look again
//     every two seconds.
//   - How long a leader that is cut off stays leader is the client's ttl.
//   - When the context of Run ends, the leadership is released, but not before OnStartedLeading has
//     returned.
//   - The lease is renewed while the process runs, also if its work hangs. Work that must prove
//     that it goes on ends its context itself.
//   - Run returns an error on a permanent error, instead of trying again.
//
// As in the library, Run ends with the leadership, OnStoppedLeading is called at each end of Run,
// also if it never led, and on a loss it does not wait for OnStartedLeading. Without
// OnStoppedLeading's os.Exit the program calls Run again.
package leaderelection
