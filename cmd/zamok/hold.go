package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"zamok/api/visible"
	"zamok/client"
	"zamok/clock"
)

// holdFlags are the flags of `lock` and `elect`: those of the session, and of how the command is
// ended when its lock is lost.
type holdFlags struct {
	connectionFlags
	ttl                 time.Duration
	killAfter           time.Duration
	maxHold             time.Duration
	lockDelay           time.Duration
	releaseOnDisconnect time.Duration // 0 = not before the ttl
	meta                string
}

const (
	// commandTTL is longer than the ttl of a program: nobody waits at a prompt, and a command can't
	// handle a loss as a program can.
	commandTTL = 15 * time.Second
	// minTTLPerKillAfter: with a shorter ttl a command would get TERM when the first renewal is
	// late.
	minTTLPerKillAfter = 3
	labelBytesMax      = 256
	metaBytesMax       = 4096
)

func (h *holdFlags) register(a *app, cmd *cobra.Command) {
	h.connectionFlags.register(a, cmd)
	f := cmd.Flags()
	f.DurationVar(&h.ttl, "ttl", commandTTL,
		"time after which the session expires and the lock is released if this process vanishes; "+
			"at least 3 × --kill-after")
	f.DurationVar(&h.killAfter, "kill-after", 5*time.Second,
		"time between TERM and KILL when the lock is lost")
	f.DurationVar(&h.maxHold, "max-hold", 0,
		"maximum hold: end the command and release the lock this long after the grant; TERM is "+
			"sent earlier, by --kill-after, 200ms, and a twentieth of it (at least 200ms) for "+
			"clocks that differ (default: no maximum)")
	f.DurationVar(&h.lockDelay, "lock-delay", 0,
		"time during which a lost lock is not granted again, up to 1m; for resources that do not "+
			"check tokens (default: none)")
	f.DurationVar(&h.releaseOnDisconnect, "release-on-disconnect", 0,
		"release the lock this long after the connection breaks, not only after the ttl (1s if "+
			"no time is given; default: off); another client may hold it before the command has "+
			"ended, so use it only with tokens")
	f.Lookup("release-on-disconnect").NoOptDefVal = "1s"
	f.StringVar(&h.meta, "meta", "",
		"`text` shown to people who look at the lock (default: user@host, pid and command)")
}

func (h *holdFlags) validate() error {
	switch {
	case h.killAfter < 0 || h.maxHold < 0 || h.lockDelay < 0 || h.releaseOnDisconnect < 0:
		return errors.New("--kill-after, --max-hold, --lock-delay and --release-on-disconnect " +
			"must not be below 0")
	case h.ttl < minTTLPerKillAfter*h.killAfter:
		return fmt.Errorf(
			"--ttl is %v and --kill-after %v: the ttl must be at least %d times as long, or the "+
				"command would be ended as soon as one renewal is late", h.ttl, h.killAfter,
			minTTLPerKillAfter)
	case h.maxHold > 0 && h.maxHold <= h.maxHoldMin():
		return fmt.Errorf(
			"--max-hold is %v and --kill-after %v: the command would get TERM after half of the "+
				"time or less; make --max-hold longer than %v, or --kill-after shorter", h.maxHold,
			h.killAfter, h.maxHoldMin())
	case len(h.meta) > metaBytesMax:
		return fmt.Errorf("--meta has %d bytes: it must have at most %d", len(h.meta), metaBytesMax)
	}
	return nil
}

// maxHoldMin is the --max-hold of which TERM and the end of the hold in the cluster would be half
// apart.
func (h *holdFlags) maxHoldMin() time.Duration {
	// to the client's deadline, and from there clock.Margin
	termToDeadline := h.killAfter + killMargin
	half := max(termToDeadline+clock.MarginMin.Duration(),
		termToDeadline*clock.DriftDivisor/(clock.DriftDivisor-2))
	return (2 * half).Round(time.Millisecond)
}

// checkNameAndCommand checks that the arguments have the form NAME -- COMMAND…
func checkNameAndCommand(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case len(args) == 0:
		return errors.New("the name of the lock and the command are missing: NAME -- COMMAND")
	case dash == -1 && len(args) > 1:
		return fmt.Errorf("put -- before the command: zamok %s %s -- %s", cmd.Name(), args[0],
			strings.Join(args[1:], " "))
	case dash == 0:
		return errors.New("the name of the lock is missing: give it before --")
	case dash > 1:
		return fmt.Errorf("there are %d names before --: give one, and further locks with --with",
			dash)
	case len(args) < 2:
		return errors.New("the command to run is missing: give it after --")
	}
	return nil
}

// lockRunner runs a command while holding a lock.
type lockRunner struct {
	*holdFlags
	client *client.Client
	// received from the start to the end, so that none is lost between waiting and running
	signals chan os.Signal
	status  *statusLine
	meta    []byte
}

func (h *holdFlags) newRunner(argv []string) (*lockRunner, error) {
	cfg, err := h.config()
	if err != nil {
		return nil, err
	}
	label := processLabel()
	meta := h.meta
	if meta == "" {
		meta = label + ": " + strings.Join(argv, " ")
	}
	cfg.TTL, cfg.LockDelay, cfg.ReleaseOnDisconnect = h.ttl, h.lockDelay, h.releaseOnDisconnect
	cfg.Label = truncateUTF8(label, labelBytesMax)
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	r := &lockRunner{
		holdFlags: h, client: c, signals: make(chan os.Signal, 16),
		status: newStatusLine(h.app.stderr), meta: []byte(truncateUTF8(meta, metaBytesMax)),
	}
	signal.Notify(r.signals, notIgnored(forwardedSignals()...)...)
	return r, nil
}

// close closes the session, which releases what is still held.
func (b *lockRunner) close() {
	if err := b.client.Close(); err != nil {
		b.app.logger().Warn("the session may not be closed yet, since the cluster did not "+
			"confirm it; its locks are released after its ttl at the latest", "error", err)
	}
	signal.Stop(b.signals)
}

// acquire acquires a lock. A signal ends the wait.
func (b *lockRunner) acquire(ctx context.Context,
	lockFunc func(context.Context, ...client.Option) (*client.Lock, error)) (*client.Lock, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{}) // closed when the goroutine below has ended
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-b.signals:
				if isTermination(s) || s == syscall.SIGHUP {
					cancel(&signalError{s.(syscall.Signal)})
					return
				}
			}
		}
	}()
	lock, err := lockFunc(ctx, client.WithMeta(b.meta), client.WithMaxHold(b.maxHold),
		client.OnPosition(b.status.show))
	err = signalOr(ctx, err)
	interrupted := (*signalError)(nil)
	if lock != nil && errors.As(context.Cause(ctx), &interrupted) {
		err = interrupted // the end of the session releases it
	}
	cancel(nil)
	<-done
	b.status.clear()
	return lock, err
}

// run runs a command under a lock, and releases the lock. reason says why the lock was lost, or was
// about to be: the command was ended then, unless it ended by itself just before. err means that
// the command can't be run.
func (b *lockRunner) run(lock *client.Lock,
	argv []string) (result commandResult, reason, err error) {
	began := time.Now()
	l := supervisor{lost: lock.Lost(), timeLeft: func() time.Duration { return b.timeLeft(lock) },
		killAfter: b.killAfter}
	result, err = l.run(argv, b.environment(lock), b.signals)
	if result.terminated {
		reason = lock.Err()
		switch {
		case reason != nil:
		case b.maxHold > 0 && b.maxHold-time.Since(began) <
			b.killAfter+killMargin+clock.Margin(clock.FromDuration(b.maxHold)).Duration()+
				time.Second:
			reason = errors.New("the lock was about to be lost: --max-hold is nearly over")
		default:
			reason = errors.New(
				"the lock was about to be lost: the cluster did not renew the lease in time")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if result.terminated {
		cancel() // the lock is lost, or no node answers: Unlock does not wait for an answer
	}
	if unlock := lock.Unlock(ctx); !result.terminated && err == nil {
		reason = b.lossOnRelease(unlock)
	}
	if reason != nil {
		reason = fmt.Errorf("%w (lock %s, token %d)", reason, visible.Quote(lock.Name()),
			lock.Token())
	}
	return result, reason, err
}

// lossOnRelease returns the loss that the release of a lock has found after its command ended by
// itself. An unconfirmed release is no loss: the lock was held until the command ended.
func (b *lockRunner) lossOnRelease(unlock error) error {
	if errors.Is(unlock, client.ErrLost) {
		return unlock
	}
	if unlock != nil {
		b.app.logger().Warn("the command ended, but the cluster did not confirm the release of "+
			"its lock; it is released after the session's ttl at the latest", "error", unlock)
	}
	return nil
}

// timeLeft is how long a command may continue. If an operator has ended the hold, another client
// may hold the lock already: there is no deadline to meet, and the command gets --kill-after to end
// in order.
func (b *lockRunner) timeLeft(lock *client.Lock) time.Duration {
	if err := lock.Err(); errors.Is(err, client.ErrForceReleased) ||
		errors.Is(err, client.ErrExpiredByOperator) {
		return b.killAfter + killMargin
	}
	return time.Until(lock.Deadline())
}

// environment is the environment of the command: that of this process, and what identifies the
// grant.
func (b *lockRunner) environment(lock *client.Lock) []string {
	return append(os.Environ(),
		"ZAMOK_LOCK_NAME="+lock.Name(),
		"ZAMOK_LOCK_TOKEN="+strconv.FormatUint(uint64(lock.Token()), 10),
		"ZAMOK_LOCK_DEADLINE="+lock.Deadline().UTC().Format(time.RFC3339Nano),
		"ZAMOK_LOCK_SESSION="+strconv.FormatUint(lock.Session(), 10),
		"ZAMOK_LOCK_TICKET="+strconv.FormatUint(lock.Ticket(), 10),
	)
}

// statusLine shows at a terminal what the acquisition waits for.
type statusLine struct {
	w        io.Writer // nil: no terminal
	visible  bool
	blockers string // as last shown
}

func newStatusLine(w io.Writer) *statusLine {
	if !isTerminal(w) {
		return &statusLine{}
	}
	return &statusLine{w: w}
}

const eraseLine = "\r\x1b[K"

func (s *statusLine) show(p client.Position) {
	s.blockers = ""
	line := fmt.Sprintf("waiting for %s: %d ahead", visible.Word(p.Name), p.Ahead)
	if len(p.Blockers) > 0 {
		first, more := p.Blockers[0], ""
		if len(p.Blockers) > 1 {
			more = ", …"
		}
		s.blockers = "; " + first.String() + more
		if first.Name == p.Name {
			line += "; " + first.Cause() + more // an 80th column is soon reached
		} else {
			line += s.blockers
		}
	}
	if s.w != nil {
		s.print(line)
	}
}

func (s *statusLine) print(text string) {
	// a second line would stay
	fmt.Fprint(s.w, eraseLine+visible.Cut(visible.Line(text), terminalColumns(s.w)-1))
	s.visible = true
}

func (s *statusLine) clear() {
	if s.visible {
		fmt.Fprint(s.w, eraseLine)
	}
	s.visible = false
}

// processLabel is "user@host pid 4242".
func processLabel() string { return userLabel() + " pid " + strconv.Itoa(os.Getpid()) }

// userLabel is "user@host".
func userLabel() string {
	name := "uid " + strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return name + "@" + host
}

// truncateUTF8 shortens a text to so many bytes of whole characters.
func truncateUTF8(text string, limit int) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}
