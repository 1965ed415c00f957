package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api/gate/identity"
	"zamok/api/gate/rules"
	"zamok/api/visible"
)

func newRules(*app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rules",
		Short:   "check access rules",
		GroupID: groupOperate,
		Args:    checkCommandName,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRulesCheck())
	return cmd
}

func newRulesCheck() *cobra.Command {
	var as string
	var groups []string
	cmd := &cobra.Command{
		Use:   "check FILE [--as IDENTITY VERB [NAME]]",
		Short: "check a rules file, or whether it allows a request",
		Long: `Checks a file for "zamok server --rules" without a server, and reports an error with
its line.

With --as it also prints whether the file allows IDENTITY a verb: lock, read, watch or release with
the NAME of a lock, or operate without one. IDENTITY is "anonymous" for a client without
credentials. The exit code is 0 if the request is allowed, and 120 if it is denied.`,
		Example: "  zamok rules check rules.yaml\n  zamok rules check rules.yaml --as ci-billing " +
			"lock account/200",
		Args: cobra.RangeArgs(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			set, err := rules.Parse(text)
			if err != nil {
				return &usageError{cmd.CommandPath(), fmt.Errorf("%s: %w", args[0], err)}
			}
			if as == "" && len(args) == 1 {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", visible.Line(args[0]))
				return err
			}
			verb, name, err := ruleQuestion(as, args[1:])
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			who := rules.Caller{Identity: as, Groups: groups, Anonymous: as == rules.Anonymous}
			fmt.Fprintln(cmd.OutOrStdout(), visible.Line(set.Why(who, verb, name)))
			if !set.May(who, verb, name) {
				return &exitError{code: exitDenied}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "",
		"`identity` of the client; anonymous: a client without credentials")
	cmd.Flags().StringSliceVar(&groups, "group", nil,
		"`group` in the JWT of the client; repeatable")
	return cmd
}

func ruleQuestion(as string, args []string) (verb rules.Verb, name string, err error) {
	switch {
	case as == "":
		return "", "", fmt.Errorf("--as is missing: the identity to check %s for",
			strings.Join(args, " "))
	case len(args) == 0:
		return "", "", fmt.Errorf(
			"the verb is missing: add lock, read, watch or release and the name of a lock, " +
				"or operate")
	case as != rules.Anonymous && identity.Check(as) != nil:
		return "", "", fmt.Errorf("--as: %w", identity.Check(as))
	}
	verb = rules.Verb(args[0])
	switch hasName := len(args) == 2; {
	case !rules.IsVerb(verb):
		return "", "", fmt.Errorf("%q is not a verb: use lock, read, watch, release or operate",
			args[0])
	case verb == rules.Operate && hasName:
		return "", "", fmt.Errorf("operate applies to the cluster and takes no name: remove %q",
			args[1])
	case verb != rules.Operate && !hasName:
		return "", "", fmt.Errorf("the name of the lock is missing: add it after %s", verb)
	case hasName:
		name = args[1]
	}
	return verb, name, nil
}
