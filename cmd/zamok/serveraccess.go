package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api"
	"zamok/api/access"
	"zamok/api/access/identity"
	"zamok/api/access/limits"
	"zamok/api/access/rules"
	"zamok/api/audit"
)

// accessFlags are the flags of `zamok server` about who clients are and what they may do.
type accessFlags struct {
	rules, tokens                   string
	jwtKeys, jwtIssuer, jwtAudience string
	clientName, audit               string
	limits                          []string
}

func (v *accessFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&v.rules, "rules", "", "access rules, a YAML `file`: what they do not allow is denied (default: everything is allowed)")
	f.StringVar(&v.tokens, "tokens", "", "`file` of the hashes of clients' tokens; see \"zamok token new\"")
	f.StringVar(&v.jwtKeys, "jwt-keys", "", "public keys of the issuer of clients' JWTs, a JWK Set in a `file`")
	f.StringVar(&v.jwtIssuer, "jwt-issuer", "", "issuer that JWTs must name")
	f.StringVar(&v.jwtAudience, "jwt-audience", "zamok", "audience that JWTs must name")
	f.StringVar(&v.clientName, "client-name", string(identity.CommonName), "what in a client's certificate is its identity: cn, dns, uri or email")
	f.StringSliceVar(&v.limits, "limit", nil, "change a limit of what one caller may take of this node: `NAME=N`, for rates NAME=N/s, or NAME=none; "+
		"repeatable (names: "+strings.Join(limits.Names(), ", ")+")")
	f.StringVar(&v.audit, "audit", "", "`file` to which operators' calls and denials are appended, a line of JSON each (default: the log)")
}

// certificateNames are the values of --client-name.
var certificateNames = []identity.CertificateName{identity.CommonName, identity.DNSName, identity.URI, identity.Email}

func (v *accessFlags) validate() error {
	switch {
	case v.jwtKeys != "" && v.jwtIssuer == "":
		return errors.New("--jwt-keys needs --jwt-issuer: whose keys are they?")
	case v.jwtKeys == "" && v.jwtIssuer != "":
		return errors.New("--jwt-issuer needs --jwt-keys, with which its tokens are verified")
	case !slices.Contains(certificateNames, identity.CertificateName(v.clientName)):
		return fmt.Errorf("--client-name: %q is none of cn, dns, uri and email", v.clientName)
	}
	if _, err := limits.Parse(v.limits); err != nil {
		return fmt.Errorf("--limit: %w", err)
	}
	return nil
}

// configure sets what the flags say, and adds what is read anew.
func (v *accessFlags) configure(cfg *api.NodeConfig, log *slog.Logger, all *rereading) (err error) {
	var verifiers struct {
		tokens *reloaded[identity.Tokens]
		keys   *reloaded[*identity.Keys]
	}
	if cfg.Limits, err = limits.Parse(v.limits); err != nil {
		return fmt.Errorf("--limit: %w", err)
	}
	if v.rules != "" {
		parse := func(texts [][]byte) (*rules.Set, error) { return rules.Parse(texts[0]) }
		set, err := reload(log, "access rules", parse, v.rules)
		if err != nil {
			return fmt.Errorf("--rules: %w", err)
		}
		cfg.Rules = set.get
		watch(all, set)
	}
	if v.tokens != "" {
		parse := func(texts [][]byte) (identity.Tokens, error) { return identity.ParseTokens(texts[0]) }
		if verifiers.tokens, err = reload(log, "tokens", parse, v.tokens); err != nil {
			return fmt.Errorf("--tokens: %w", err)
		}
		watch(all, verifiers.tokens)
	}
	if v.jwtKeys != "" {
		parse := func(texts [][]byte) (*identity.Keys, error) {
			return identity.ParseKeys(texts[0], v.jwtIssuer, v.jwtAudience)
		}
		if verifiers.keys, err = reload(log, "keys of JWTs", parse, v.jwtKeys); err != nil {
			return fmt.Errorf("--jwt-keys: %w", err)
		}
		watch(all, verifiers.keys)
	}
	cfg.Identity = access.Identifier{
		Certificate: identity.CertificateName(v.clientName),
	}
	if v.tokens != "" || v.jwtKeys != "" {
		cfg.Identity.Verifier = func() (known identity.Verifier) {
			if verifiers.tokens != nil {
				known.Tokens = verifiers.tokens.get()
			}
			if verifiers.keys != nil {
				known.Keys = verifiers.keys.get()
			}
			return known
		}
	}
	if v.audit != "" {
		file, err := audit.Open(v.audit)
		if err != nil {
			return fmt.Errorf("--audit: %w", err)
		}
		cfg.Audit = file
		all.again = append(all.again, func() {
			if err := file.Reopen(); err != nil {
				log.Error("the audit log continues in the file that was open", "error", err)
			}
		})
	}
	return nil
}
