package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"zamok/api/gate/identity"
)

func newToken(*app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "create client tokens",
		GroupID: groupOperate,
		Args:    checkCommandName,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenNew())
	return cmd
}

func newTokenNew() *cobra.Command {
	var file string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "new IDENTITY --file FILE",
		Short: "create a token for an identity",
		Long: `Generates a random token, prints it, and appends its hash to FILE, for "zamok server
--tokens". The token is not stored and cannot be shown again. Copy FILE to all nodes, which reload
it when it changes. A client sends its token with --token-file, or over HTTP as "Authorization:
Bearer TOKEN".

An identity may have several tokens. To replace a token, create another one, copy the file to the
nodes, give the new token to the client, and remove the line of the old token. That line begins with
the part of the token between its two underscores. Sessions continue, since they belong to the
identity.`,
		Example: "  umask 077\n  zamok token new ci-billing --file tokens > ci-billing.token\n  " +
			"zamok token new alice --file tokens --valid 2160h",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case file == "":
				return &usageError{cmd.CommandPath(),
					errors.New("--file is missing: the file of \"zamok server --tokens\"")}
			case valid < 0:
				return &usageError{cmd.CommandPath(),
					fmt.Errorf("--valid is %v: it must be above 0", valid)}
			}
			var expires time.Time
			if valid > 0 {
				expires = time.Now().Add(valid)
			}
			token, line, err := identity.NewToken(args[0], expires)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			if err := appendToken(file, line); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "tokens `file`; created if missing")
	cmd.Flags().DurationVar(&valid, "valid", 0,
		"lifetime of the token (default: until its line is removed)")
	return cmd
}

// appendToken adds a line to a tokens file, unless the file has an error.
func appendToken(path string, line identity.Token) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := identity.ParseTokens(text); err != nil {
		return fmt.Errorf("%s is not a valid tokens file, so nothing was added: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	entry := line.String() + "\n"
	if len(text) > 0 && text[len(text)-1] != '\n' {
		entry = "\n" + entry
	}
	_, err = f.WriteString(entry)
	return errors.Join(err, f.Close())
}
