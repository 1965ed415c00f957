package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"zamok/session/visible"
)

// app is what every verb is given: where it reads and writes, and the flags that all of them have.
// The streams are files where it matters whether a person sits there (see terminal.go).
type app struct {
	name           string // as it was typed, for lines that can be typed again
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	exit           func(code int) // at once: for a node that can't continue

	output    string // text or json
	logFormat string // text or json
	logLevel  string
}

// newRoot registers the verbs, one file each. A verb is a function of *app that returns its
// cobra.Command; its flags are fields of a struct of its own, and it returns errors, which
// app.report turns into words and an exit code. A verb that talks to a cluster adds a connection.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "zamok",
		Short:         "a replicated lock service: fair queues, pushed grants, fencing tokens",
		Example:       "  zamok dev\n  zamok lock stock -- ./count-the-stock",
		SilenceErrors: true, // app.report prints them
		SilenceUsage:  true,
		Version:       version(),
		Args:          checkCommandName,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate(versionLine())
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{cmd.CommandPath(), explainFlagError(err)}
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.validate(cmd) }

	output := a.getenv("ZAMOK_OUTPUT")
	if output == "" {
		output = "text"
	}
	flags := root.PersistentFlags()
	flags.StringVarP(&a.output, "output", "o", output, "output format: text or json (ZAMOK_OUTPUT)")
	flags.StringVar(&a.logFormat, "log-format", "text", "log format: text or json")
	flags.StringVar(&a.logLevel, "log-level", "info", "log level: debug, info, warn or error")

	root.AddGroup(&cobra.Group{ID: groupLocks, Title: "Use locks:"},
		&cobra.Group{ID: groupInspect, Title: "Inspect:"},
		&cobra.Group{ID: groupOperate, Title: "Run a cluster:"})
	root.SetHelpCommandGroupID(groupInspect)
	root.SetCompletionCommandGroupID(groupInspect)
	for _, newCommand := range append(operatorCommands(),
		newLock, newElect, newAcquire, newRenew, newRelease,
		newDev, newServer, newRules, newToken,
		newVersion,
	) {
		cmd := newCommand(a)
		prepare(cmd)
		root.AddCommand(cmd)
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() { // those two are cobra's, in words of its own
		switch cmd.Name() {
		case "help":
			cmd.Short = "explain a verb"
		case "completion":
			cmd.Short = "print a script that completes verbs and flags in a shell"
			prepare(cmd)
		}
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
	return root
}

// helpWidth is how wide the help is, examples excepted: what the narrowest terminal shows without breaking lines.
const helpWidth = 80

// wrapText breaks the lines of paragraphs anew. Lines that begin with a blank stay as they are.
func wrapText(text string) string {
	var b strings.Builder
	column := 0
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" || line[0] == ' ' {
			b.WriteString(strings.Repeat("\n", min(column, 1)) + line)
			column = 0
			continue
		}
		for _, word := range strings.Fields(line) {
			n := utf8.RuneCountInString(word)
			switch {
			case column == 0:
			case column+1+n > helpWidth:
				b.WriteByte('\n')
				column = 0
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += n
		}
	}
	return b.String()
}

// The groups of verbs in the help.
const (
	groupLocks   = "locks"
	groupInspect = "look"
	groupOperate = "run"
)

// prepare gives a verb, and the verbs below it, what all have.
func prepare(cmd *cobra.Command) {
	asUsageError(cmd)
	cmd.Long = wrapText(cmd.Long)
	cmd.SuggestionsMinimumDistance = 2
	for _, below := range cmd.Commands() {
		prepare(below)
	}
}

// asUsageError turns a verb's complaint about its arguments into a usage error.
func asUsageError(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return nil
	}
}

// checkCommandName refuses what is none, and names the one that may be meant.
func checkCommandName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("there is no verb %q", args[0])
	if suggestions := cmd.SuggestionsFor(args[0]); len(suggestions) > 0 {
		text += "; is it " + strings.Join(suggestions, ", or ") + "?"
	}
	return &usageError{cmd.CommandPath(), errors.New(text)}
}

// explainFlagError names the missing unit of a duration.
func explainFlagError(err error) error {
	if flag, _, found := strings.Cut(err.Error(), "time: missing unit in duration"); found {
		return errors.New(flag + "a time needs a unit, as in 500ms, 5s or 5m")
	}
	return err
}

// validate looks at the flags that all verbs have.
func (a *app) validate(cmd *cobra.Command) error {
	if a.output != "text" && a.output != "json" {
		return &usageError{cmd.CommandPath(), fmt.Errorf("--output is %q: it is text or json", a.output)}
	}
	if a.logFormat != "text" && a.logFormat != "json" {
		return &usageError{cmd.CommandPath(), fmt.Errorf("--log-format is %q: it is text or json", a.logFormat)}
	}
	if err := new(slog.Level).UnmarshalText([]byte(a.logLevel)); err != nil {
		return &usageError{cmd.CommandPath(), fmt.Errorf("--log-level is %q: it is debug, info, warn or error", a.logLevel)}
	}
	return nil
}

// logger writes to stderr: stdout is for what was asked for.
func (a *app) logger() *slog.Logger {
	options := &slog.HandlerOptions{Level: a.level()}
	if a.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(visibleWriter{a.stderr, visible.JSON}, options))
	}
	return slog.New(slog.NewTextHandler(visibleWriter{a.stderr, visible.Lines}, options))
}

func (a *app) level() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return slog.LevelInfo // check has refused it before
	}
	return level
}

// signalContext returns a context that INT, TERM or HUP ends, with a signalError as its cause. A
// signal that was ignored when the program started (nohup) stays so.
func signalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return contextUntil(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// contextUntil returns a context that one of these signals ends.
func contextUntil(ctx context.Context, ending ...os.Signal) (context.Context, context.CancelFunc) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, notIgnored(ending...)...)
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{}) // closed when the goroutine below ended
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			signal.Stop(signals) // a second signal ends the process at once
			cancel(&signalError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		signal.Stop(signals)
	}
}

// notIgnored are the signals that this program was not started to ignore.
func notIgnored(all ...os.Signal) []os.Signal {
	var kept []os.Signal
	for _, s := range all {
		if !signal.Ignored(s) {
			kept = append(kept, s)
		}
	}
	return kept
}
