package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

const (
	reservationHost = "v1" // runs a program that makes reservations
	reservationTTL  = 6 * time.Second

	manyHost = "b1" // runs a program whose session has many tickets when it dies
	manyTTL  = 5 * time.Second
	// manyEvery is the longest time between two of its lives.
	manyEvery = 5 * time.Minute
)

// startFurther starts the programs beside those of package workload: over HTTP, with reservations,
// one that dies with many tickets, and one that takes backups.
func (l *Load) startFurther() {
	l.runWebPrograms()
	l.background = append(l.background,
		l.runReservations(), background(l.dieWithManyTickets), l.takeBackups())
}

// randomMutex is a mutex of the other programs, or one of two that only these programs use.
func randomMutex(random *rand.Rand) string {
	if random.IntN(2) == 0 {
		return fmt.Sprint("w", random.IntN(2))
	}
	return fmt.Sprint("m", random.IntN(mutexes))
}

// reserver makes reservations.
type reserver struct {
	*Load
	*rand.Rand
	*program
}

// runReservations runs a program that makes reservations until the load ends.
func (l *Load) runReservations() (end func()) {
	p := l.newProgram(reservationHost, reservationHost, client.Config{})
	r := &reserver{l, l.Random("reservations"), p}
	return background(func(context.Context) {
		for l.ending.Err() == nil {
			r.reserve()
			time.Sleep(workload.UpTo(r.Rand, l.pace))
		}
		_ = r.Close()
		r.stack.CloseAll()
	})
}

func (r *reserver) think() { time.Sleep(workload.UpTo(r.Rand, r.pace)) }

// certainUntil is until when a lease is certain whose end the client estimates.
func certainUntil(estimate time.Time) time.Time {
	return estimate.Add(-check.ClockMargin(reservationTTL))
}

// reserve makes one reservation, renews it for a while, and releases it. Calls without an answer
// are repeated.
func (r *reserver) reserve() {
	reservation := client.NewReservation(reservationTTL, client.ExclusiveItem(randomMutex(r.Rand)))
	reservation.Label = reservationHost
	items := check.ItemsOf(reservation.Items)
	op := check.Op{Client: reservationHost, Kind: check.OpLock, Items: items}
	acquire := r.Client.Reserve
	if r.IntN(2) == 0 {
		op.Kind, acquire = check.OpTryLock, r.TryReserve
	}
	var h *workload.Hold
	var until time.Time
	_ = r.record.Call(op, func(op *check.Op) error {
		estimate, err := r.repeat(func(ctx context.Context) (time.Time, error) {
			return acquire(ctx, reservation, func() error { return nil })
		})
		if until = certainUntil(estimate); err == nil && !time.Now().Before(until) {
			return fmt.Errorf("answered too late: %w", client.ErrUnavailable)
		}
		if errors.Is(err, client.ErrLost) { // it was granted, and nothing is known of it
			return fmt.Errorf("%w: %w", client.ErrUnavailable, err)
		}
		if err == nil {
			op.Ref = check.Ref{Session: reservation.Session, Ticket: reservation.Ticket}
			op.Token = uint64(reservation.Token)
			h = r.record.StartHold(check.Hold{
				Client: reservationHost, Ref: op.Ref, Token: op.Token, Items: op.Items,
			})
		}
		return err
	})
	if h == nil {
		_ = r.release(reservation)
		return
	}
	if !r.keep(reservation, h, until) {
		_ = r.release(reservation)
		return
	}
	h.Finish(check.Unlocked, "")
	op.Kind, op.Ref = check.OpUnlock, h.Ref
	_ = r.record.Call(op, func(*check.Op) error { return r.release(reservation) })
}

// keep writes under a reservation and renews it. It returns false if the reservation was lost.
func (r *reserver) keep(reservation *client.Reservation, h *workload.Hold, until time.Time) bool {
	from := r.Elapsed()
	confirmed := from
	defer func() { r.rare.add(&r.rare.reservations, spanOf{h.Ref, from, confirmed}) }()
	renew := time.Now().Add(reservationTTL / 3)
	for n := r.IntN(60); n > 0 && time.Now().Before(until) && r.ending.Err() == nil; n-- {
		_ = r.record.resource.Write(check.Write{
			Resource: h.Items[0].Name, Client: reservationHost, Token: h.Token,
		}, nil)
		time.Sleep(min(time.Until(until), 100*time.Millisecond))
		if time.Now().Before(renew) {
			continue
		}
		ctx, cancel := context.WithDeadline(context.Background(), until)
		sent := r.historyTime()
		estimate, err := r.RenewReservation(ctx, reservation)
		cancel()
		switch {
		case errors.Is(err, client.ErrLost):
			h.Finish(check.Lost, check.LossReason(err))
			return false
		case err == nil && time.Now().Before(until):
			until, renew, confirmed = certainUntil(estimate), time.Now().Add(reservationTTL/3),
				r.Elapsed()
			r.record.put(check.Record{Renewal: &check.Renewal{
				Session: h.Session, Sent: sent, Confirmed: r.historyTime(),
			}})
		}
	}
	if !time.Now().Before(until) {
		h.Finish(check.Lost, "")
		return false
	}
	return true
}

// release releases a reservation, whether it was granted or not.
func (r *reserver) release(reservation *client.Reservation) error {
	_, err := r.repeat(func(ctx context.Context) (time.Time, error) {
		return time.Time{}, r.ReleaseReservation(ctx, reservation)
	})
	return err
}

// repeat makes a call until its outcome is known.
func (r *reserver) repeat(
	call func(context.Context) (time.Time, error),
) (until time.Time, err error) {
	for end := time.Now().Add(drainMax / 2); time.Now().Before(end); r.think() {
		ctx, cancel := context.WithTimeout(context.Background(), waitMax+callTimeout)
		until, err = call(ctx)
		cancel()
		if check.OutcomeOf(err) != check.Unknown {
			return until, err
		}
	}
	return until, err
}

// dieWithManyTickets runs a program, again and again, that dies when its session has many tickets.
func (l *Load) dieWithManyTickets(context.Context) {
	random := l.Random("many tickets")
	h := &programHost{sim: l.Sim, host: manyHost, config: client.Config{TTL: manyTTL}}
	for workload.Sleep(l.ending, workload.UpTo(random, manyEvery/2)) {
		h.start(func(p *program, _ *rand.Rand) { l.lockMany(p) })
		p := h.running()
		p.work.Wait() // it gives up after manyTTL
		h.kill()
		workload.Sleep(l.ending, workload.UpTo(random, manyEvery/2))
	}
}

// lockMany acquires many locks of its own at once.
func (l *Load) lockMany(p *program) {
	ctx, cancel := context.WithTimeout(p.ctx, manyTTL)
	defer cancel()
	var calls sync.WaitGroup
	for i := range manyTickets + manyTickets/4 {
		calls.Go(func() {
			item := client.ExclusiveItem(fmt.Sprintf("many/%s/%d", p.label, i))
			op := check.Op{Client: p.label, Kind: check.OpLock,
				Items: check.ItemsOf([]client.Item{item})}
			_ = l.record.Call(op, func(op *check.Op) error {
				lock, err := p.LockAll(ctx, []client.Item{item})
				if err != nil {
					return err
				}
				op.Ref = check.Ref{Session: lock.Session(), Ticket: lock.Ticket()}
				op.Token = uint64(lock.Token())
				l.record.StartHold(check.Hold{Client: p.label, Ref: op.Ref, Token: op.Token,
					Items: op.Items})
				return nil
			})
		})
	}
	calls.Wait()
}
