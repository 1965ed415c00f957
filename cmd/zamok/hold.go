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

	"zamok/client"
	"zamok/clock"
	"zamok/session/visible"
)

// holdFlags is what `lock` and `elect` have in common: the flags of a session, and of how a command
// under a lock ends.
type holdFlags struct {
	connectionFlags
	ttl                 time.Duration
	killAfter           time.Duration
	maxHold             time.Duration
	lockDelay           time.Duration
	releaseOnDisconnect time.Duration // on disconnect; 0 = not
	metadata            string
}

const (
	// commandTTL is longer than a program's: no person waits at a prompt, and a command can't be asked to
	// cope with a loss as a program can.
	commandTTL = 15 * time.Second
	// minTTLPerKillAfter: with a shorter ttl a command would get TERM when the first renewal is late.
	minTTLPerKillAfter = 3
	labelBytesMax      = 256
	metadataBytesMax   = 4096
)

func (h *holdFlags) register(a *app, cmd *cobra.Command) {
	h.connectionFlags.register(a, cmd)
	f := cmd.Flags()
	f.DurationVar(&h.ttl, "ttl", commandTTL, "time after which the lock expires if this process vanishes; at least 3 × --kill-after")
	f.DurationVar(&h.killAfter, "kill-after", 5*time.Second, "time between TERM and KILL when the lock is lost")
	f.DurationVar(&h.maxHold, "max-hold", 0, "maximum hold: end the command and release the lock this long after the grant; "+
		"TERM is sent earlier, by --kill-after, 200ms, and a twentieth of it (at least 200ms) for clocks that differ (default: never)")
	f.DurationVar(&h.lockDelay, "lock-delay", 0, "time for which a lost lock is granted to no one, for resources that do not check tokens")
	f.DurationVar(&h.releaseOnDisconnect, "release-on-disconnect", 0, "release the lock this long after the connection broke, instead of at the "+
		"ttl; 1s if no time is given. Others may hold it before the command has ended: only with tokens")
	f.Lookup("release-on-disconnect").NoOptDefVal = "1s"
	f.StringVar(&h.metadata, "meta", "", "metadata shown to others (default: user@host, pid and command)")
}

func (h *holdFlags) validate() error {
	switch {
	case h.killAfter < 0 || h.maxHold < 0 || h.lockDelay < 0 || h.releaseOnDisconnect < 0:
		return errors.New("a time can't be below 0")
	case h.ttl < minTTLPerKillAfter*h.killAfter:
		return fmt.Errorf("--ttl is %v and --kill-after %v: the ttl must be %d times as long at least, or the command "+
			"would be ended when the first renewal is late", h.ttl, h.killAfter, minTTLPerKillAfter)
	case h.maxHold > 0 && h.maxHold <= h.maxHoldMin():
		return fmt.Errorf("--max-hold is %v and --kill-after %v: the command would get TERM at half time or before; "+
			"make --max-hold longer than %v, or --kill-after shorter", h.maxHold, h.killAfter, h.maxHoldMin())
	case len(h.metadata) > metadataBytesMax:
		return fmt.Errorf("--meta has %d bytes, and %d is the most", len(h.metadata), metadataBytesMax)
	}
	return nil
}

// maxHoldMin is the --max-hold with which TERM would come at half time: all that lies between TERM and the end of the hold
// in the cluster is then the other half.
func (h *holdFlags) maxHoldMin() time.Duration {
	termToDeadline := h.killAfter + killMargin // to the client's deadline, and from there clock.Margin
	half := max(termToDeadline+clock.MarginMin.Duration(), termToDeadline*clock.DriftDivisor/(clock.DriftDivisor-2))
	return (2 * half).Round(time.Millisecond)
}

// checkNameAndCommand holds arguments to the form NAME -- COMMAND…
func checkNameAndCommand(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case len(args) == 0:
		return errors.New("name a lock, and after -- a command")
	case dash == -1 && len(args) > 1:
		return fmt.Errorf("put -- before the command: zamok %s %s -- %s", cmd.Name(), args[0], strings.Join(args[1:], " "))
	case dash == 0:
		return errors.New("name a lock before the --")
	case dash > 1:
		return fmt.Errorf("one name stands before the --, here are %d; more locks are named by --with", dash)
	case len(args) < 2:
		return errors.New("the command to run is missing: give it after --")
	}
	return nil
}

// lockRunner is a client that runs commands under locks.
type lockRunner struct {
	*holdFlags
	client   *client.Client
	signals  chan os.Signal // from the start to the end: none falls between waiting and running
	status   *statusLine
	metadata []byte
}

func (h *holdFlags) newRunner(argv []string) (*lockRunner, error) {
	cfg, err := h.config()
	if err != nil {
		return nil, err
	}
	label := processLabel()
	metadata := h.metadata
	if metadata == "" {
		metadata = label + ": " + strings.Join(argv, " ")
	}
	cfg.TTL, cfg.LockDelay, cfg.ReleaseOnDisconnect = h.ttl, h.lockDelay, h.releaseOnDisconnect
	cfg.Label = truncateUTF8(label, labelBytesMax)
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	r := &lockRunner{
		holdFlags: h, client: c, signals: make(chan os.Signal, 16),
		status: newStatusLine(h.app.stderr), metadata: []byte(truncateUTF8(metadata, metadataBytesMax)),
	}
	signal.Notify(r.signals, notIgnored(forwardedSignals()...)...)
	return r, nil
}

// close closes the session, and with it whatever is still held.
func (b *lockRunner) close() {
	if err := b.client.Close(); err != nil {
		b.app.logger().Warn("closing the session is not confirmed; its locks are released when its ttl passes, if not before", "error", err)
	}
	signal.Stop(b.signals)
}

// acquire asks for a lock, and lets a signal end the wait.
func (b *lockRunner) acquire(ctx context.Context, lockFunc func(context.Context, ...client.Option) (*client.Lock, error)) (*client.Lock, error) {
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
	lock, err := lockFunc(ctx, client.WithMetadata(b.metadata), client.WithMaxHold(b.maxHold), client.OnPosition(b.status.show))
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

// run runs a command under a lock and releases it. why is the reason for which the lock was lost, or about
// to be; then the command was ended, unless it ended by itself just before. err means that it can't be run.
func (b *lockRunner) run(lock *client.Lock, argv []string) (result commandResult, reason, err error) {
	began := time.Now()
	l := supervisor{lost: lock.Lost(), timeLeft: func() time.Duration { return b.timeLeft(lock) }, killAfter: b.killAfter}
	result, err = l.run(argv, b.environment(lock), b.signals)
	if result.terminated {
		reason = lock.Err()
		switch {
		case reason != nil:
		case b.maxHold > 0 && b.maxHold-time.Since(began) < b.killAfter+killMargin+clock.Margin(clock.FromDuration(b.maxHold)).Duration()+time.Second:
			reason = errors.New("the lock was about to be lost: --max-hold is nearly over")
		default:
			reason = errors.New("the lock was about to be lost: the cluster did not renew the lease in time")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if result.terminated {
		cancel() // it is lost, or no node answers: then Unlock waits for no more than a moment
	}
	if unlock := lock.Unlock(ctx); !result.terminated && err == nil {
		reason = b.lossOnRelease(unlock)
	}
	if reason != nil {
		reason = fmt.Errorf("%w (lock %s, token %d)", reason, visible.Quote(lock.Name()), lock.Token())
	}
	return result, reason, err
}

// lossOnRelease is the loss of a lock whose command has ended by itself, if its release reports one. A release
// that was not confirmed is none: the lock was held to the command's end.
func (b *lockRunner) lossOnRelease(unlock error) error {
	if errors.Is(unlock, client.ErrLost) {
		return unlock
	}
	if unlock != nil {
		b.app.logger().Warn("the command ended, but the release of its lock is not confirmed; the lock is released when the session's ttl passes, if not before", "error", unlock)
	}
	return nil
}

// timeLeft is for how long a command may continue. After an operator has taken the lock there is no
// deadline any more that something would begin at, so the command has its time to end in order.
func (b *lockRunner) timeLeft(lock *client.Lock) time.Duration {
	if errors.Is(lock.Err(), client.ErrRevoked) {
		return b.killAfter + killMargin
	}
	return time.Until(lock.Deadline())
}

// environment is ours, and what the command may want to know about its lock.
func (b *lockRunner) environment(lock *client.Lock) []string {
	return append(os.Environ(),
		"ZAMOK_LOCK_NAME="+lock.Name(),
		"ZAMOK_LOCK_TOKEN="+strconv.FormatUint(uint64(lock.Token()), 10),
		"ZAMOK_LOCK_DEADLINE="+lock.Deadline().UTC().Format(time.RFC3339Nano),
		"ZAMOK_LOCK_SESSION="+strconv.FormatUint(lock.Session(), 10),
		"ZAMOK_LOCK_TICKET="+strconv.FormatUint(lock.Ticket(), 10),
	)
}

// statusLine shows a person at a terminal what the lock waits for.
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
	for i, b := range p.Blockers {
		if i == 1 {
			s.blockers += ", …"
			break
		}
		s.blockers = "; " + b.String()
	}
	if s.w == nil {
		return
	}
	blockers := strings.Replace(s.blockers, visible.Quote(p.Name)+" is ", "", 1) // an 80th column is soon reached
	s.print(fmt.Sprintf("waiting for %s: %d ahead", visible.Word(p.Name), p.Ahead) + blockers)
}

func (s *statusLine) print(text string) {
	fmt.Fprint(s.w, eraseLine+visible.Cut(visible.Line(text), terminalColumns(s.w)-1)) // a second line would stay
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
