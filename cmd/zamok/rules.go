package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api/access/identity"
	"zamok/api/access/rules"
	"zamok/session/visible"
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
		Short: "check a file of access rules, or what it allows",
		Long: `Reads a file as "zamok server --rules" does, and says what is wrong with it and where. No server is asked.

With --as it says whether that identity may do something: lock, read, watch or release a lock, or operate the
cluster, which is about no lock. --as anonymous is a client that proves no identity. The exit code is 0 if it is
allowed, and 120 if it is denied.`,
		Example: "  zamok rules check rules.yaml\n  zamok rules check rules.yaml --as ci-billing lock account/200",
		Args:    cobra.RangeArgs(1, 3),
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
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is a file of rules\n", visible.Line(args[0]))
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
	cmd.Flags().StringVar(&as, "as", "", "`identity` that asks; anonymous: none is proved")
	cmd.Flags().StringSliceVar(&groups, "group", nil, "`group` that the token of that identity names; repeatable")
	return cmd
}

func ruleQuestion(as string, args []string) (verb rules.Verb, name string, err error) {
	switch {
	case as == "":
		return "", "", fmt.Errorf("--as is missing: who wants to %s?", strings.Join(args, " "))
	case len(args) == 0:
		return "", "", fmt.Errorf("what does %s want to do? Write a verb, and the name of a lock", as)
	case as != rules.Anonymous && identity.Check(as) != nil:
		return "", "", fmt.Errorf("--as: %w", identity.Check(as))
	}
	verb = rules.Verb(args[0])
	switch hasName := len(args) == 2; {
	case !rules.IsVerb(verb):
		return "", "", fmt.Errorf("%q is no verb: there are lock, read, watch, release and operate", args[0])
	case verb == rules.Operate && hasName:
		return "", "", fmt.Errorf("operate is about the cluster: leave %q out", args[1])
	case verb != rules.Operate && !hasName:
		return "", "", fmt.Errorf("%s what? Write the name of a lock", verb)
	case hasName:
		name = args[1]
	}
	return verb, name, nil
}
