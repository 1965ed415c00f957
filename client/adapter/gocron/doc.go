// Package gocron lets several schedulers of [github.com/go-co-op/gocron/v2] share their jobs: each
// run of a job happens in one of them.
//
//	import adapter "zamok/client/adapter/gocron"
//
//	c, err := client.Dial(ctx, "node1:5750", "node2:5750", "node3:5750")
//	…
//	locker := &adapter.Locker{Client: c, Prefix: "cron/"}
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	…
//	each := gocron.CronJob("*/5 * * * *", false)
//	s.NewJob(each, gocron.NewTask(report), gocron.WithName("report"))
//
// or, with one scheduler that runs all jobs for as long as it leads,
//
//	elector := adapter.NewElector(c, "cron", hostname)
//	defer elector.Close() // after the scheduler's Shutdown, which waits for running jobs
//	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//
// # Names
//
// The lock's name is Prefix and the job's name. Without gocron.WithName that is the name of its
// function, which changes when the code moves and may be the same in two programs: give jobs names.
//
// # Locker
//
// A job runs in the scheduler that gets its lock at once; the others skip this run, which gocron
// reports to AfterLockError. Their clocks differ, so the lock stays held for [Locker.Hold] after
// its grant, even if the job is done sooner. A scheduler whose request was not granted in half that
// time skips the run, too. So each run happens
//
//   - at most once, while the clocks of the schedulers differ by less than Hold/2, the lock is not
//     lost, and the program that ran it does not close its client within Hold: that releases its
//     locks at once;
//   - not at all if no scheduler reaches a majority of the nodes within Hold/2. The next run is the
//     remedy;
//   - only if the last one has ended, anywhere, and began at least Hold ago. Choose Hold shorter
//     than the shortest interval.
//
// # Elector
//
// The leader stays leader until it loses its lock, or is closed. IsLeader looks at the lock, and
// calls no node. A leader that is cut off has a successor after the client's ttl, or later by the
// time for which the cluster itself has no leader. Two leaders never exist at the same time
// ([client.Lock.Err]). But two clocks do: a run that an old leader began just before its end may
// happen again in the new one, and one that was due in between may not happen at all.
//
// # What a loss does
//
// gocron calls Lock or IsLeader before a job and passes the job nothing that they return. So
// neither can stop a job that runs, and the next holder of the lock may begin the same job while it
// does. What can be done, from the best to the weakest:
//
//   - The job takes a lock itself: it has its token for the storage, and a context that ends with
//     the loss. Use gocron.WithDisabledDistributedJobLocker(true) for it, TryLock instead of Lock,
//     since a wait would run it late, and Unlock no sooner than a Locker would.
//   - With an Elector, the job takes [Elector.Held] when it begins, for the same two.
//   - [Locker.OnLost] calls the scheduler's StopJobs or RemoveJob, which end the contexts of jobs
//     that take one.
package gocron
