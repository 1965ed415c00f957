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

	"zamok/api/visible"
)

// app is what all subcommands share: the streams, the environment, and the global flags. A stream
// is an *os.File where it matters whether it is a terminal (see terminal.go).
type app struct {
	name           string // as it was typed, for commands that are printed
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	exit           func(code int) // for a node that can't continue

	output    string // text or json
	logFormat string // text or json
	logLevel  string
}

// newRoot registers the subcommands, one file each. A subcommand is a function of *app that returns
// its cobra.Command. Its flags are fields of a struct, and it returns errors, which app.printError
// prints and turns into an exit code. Subcommands that connect to a cluster embed connectionFlags
// or requestFlags.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "zamok",
		Short:         "a replicated lock service: fair queues, pushed grants, fencing tokens",
		Example:       "  zamok dev\n  zamok lock stock -- ./count-the-stock",
		SilenceErrors: true, // printError prints them
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
	flags.StringVarP(&a.output, "output", "o", output,
		"output `format`: text or json (ZAMOK_OUTPUT)")
	flags.StringVar(&a.logFormat, "log-format", "text", "log `format`: text or json")
	flags.StringVar(&a.logLevel, "log-level", "info", "log `level`: debug, info, warn or error")

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
	for _, cmd := range root.Commands() { // cobra describes these two in its own words
		switch cmd.Name() {
		case "help":
			cmd.Short = "describe a command"
		case "completion":
			cmd.Short = "print a script that completes commands and flags in a shell"
			prepare(cmd)
		}
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages",
		fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
	return root
}

// helpWidth is the width of the help without the examples, in columns.
const helpWidth = 80

// wrapText wraps paragraphs at helpWidth. Lines that begin with a blank stay as they are.
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

// The groups of subcommands in the help.
const (
	groupLocks   = "locks"
	groupInspect = "look"
	groupOperate = "run"
)

// prepare sets what all subcommands, and those below them, have in common.
func prepare(cmd *cobra.Command) {
	asUsageError(cmd)
	cmd.Long = wrapText(cmd.Long)
	cmd.SuggestionsMinimumDistance = 2
	for _, below := range cmd.Commands() {
		prepare(below)
	}
}

// asUsageError makes the error of a subcommand about its arguments a usage error.
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

// checkCommandName refuses an unknown subcommand, and suggests similar ones.
func checkCommandName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("there is no command %q", args[0])
	if suggestions := cmd.SuggestionsFor(args[0]); len(suggestions) > 0 {
		text += "; is it " + strings.Join(suggestions, ", or ") + "?"
	}
	return &usageError{cmd.CommandPath(), errors.New(text)}
}

// explainFlagError explains that a duration lacks its unit.
func explainFlagError(err error) error {
	if flag, _, found := strings.Cut(err.Error(), "time: missing unit in duration"); found {
		return errors.New(flag + "a duration needs a unit, as in 500ms, 5s or 5m")
	}
	return err
}

// validate checks the global flags.
func (a *app) validate(cmd *cobra.Command) error {
	if a.output != "text" && a.output != "json" {
		return &usageError{cmd.CommandPath(),
			fmt.Errorf("--output is %q: it must be text or json", a.output)}
	}
	if a.logFormat != "text" && a.logFormat != "json" {
		return &usageError{cmd.CommandPath(),
			fmt.Errorf("--log-format is %q: it must be text or json", a.logFormat)}
	}
	if err := new(slog.Level).UnmarshalText([]byte(a.logLevel)); err != nil {
		return &usageError{cmd.CommandPath(),
			fmt.Errorf("--log-level is %q: it must be debug, info, warn or error", a.logLevel)}
	}
	return nil
}

// logger writes to stderr: stdout is for the output of the command.
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
		return slog.LevelInfo // validate has refused it before
	}
	return level
}

// signalContext returns a context that INT, TERM or HUP ends, with a signalError as its cause. A
// signal that was ignored when the program started (nohup) stays ignored.
func signalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return contextUntil(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// contextUntil returns a context that ends with one of these signals.
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

// notIgnored returns the signals that were not ignored when this program started.
func notIgnored(all ...os.Signal) []os.Signal {
	var kept []os.Signal
	for _, s := range all {
		if !signal.Ignored(s) {
			kept = append(kept, s)
		}
	}
	return kept
}
