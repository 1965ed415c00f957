package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api"
	"zamok/api/audit"
	"zamok/api/gate"
	"zamok/api/gate/identity"
	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
)

// accessFlags are the flags of `zamok server` for authentication, access rules, limits and the
// audit log.
type accessFlags struct {
	rules, tokens                   string
	jwtKeys, jwtIssuer, jwtAudience string
	clientName, audit               string
	auditGrants                     bool
	limits                          []string
}

func (v *accessFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&v.rules, "rules", "",
		"access rules, a YAML `file`; what no rule allows is denied (default: clients on this "+
			"machine may do everything)")
	f.StringVar(&v.tokens, "tokens", "",
		"`file` with the hashes of client tokens; see \"zamok token new\"")
	f.StringVar(&v.jwtKeys, "jwt-keys", "",
		"`file` with the public keys that verify JWTs, a JWK Set; requires --jwt-issuer")
	f.StringVar(&v.jwtIssuer, "jwt-issuer", "", "required `issuer` (iss) of JWTs")
	f.StringVar(&v.jwtAudience, "jwt-audience", "zamok", "required `audience` (aud) of JWTs")
	f.StringVar(&v.clientName, "client-name", string(identity.CommonName),
		"`part` of a client certificate that is the identity: cn, dns, uri or email")
	f.StringSliceVar(&v.limits, "limit", nil,
		"limit of this node: `NAME=N`, NAME=N/s for a rate, or NAME=none; repeatable (names: "+
			strings.Join(limits.Names(), ", ")+")")
	f.StringVar(&v.audit, "audit", "",
		"audit log `file`: one JSON line for each operator call and each denial (default: the "+
			"server's log)")
	f.BoolVar(&v.auditGrants, "audit-grants", false,
		"add a line for each grant and for the end of each hold to the audit log")
}

// certificateNames are the values of --client-name.
var certificateNames = []identity.CertificateName{identity.CommonName, identity.DNSName,
	identity.URI, identity.Email}

func (v *accessFlags) validate() error {
	switch {
	case v.jwtKeys != "" && v.jwtIssuer == "":
		return errors.New("--jwt-keys requires --jwt-issuer, the issuer of the JWTs")
	case v.jwtKeys == "" && v.jwtIssuer != "":
		return errors.New("--jwt-issuer requires --jwt-keys, the keys that verify its JWTs")
	case !slices.Contains(certificateNames, identity.CertificateName(v.clientName)):
		return fmt.Errorf("--client-name is %q: it must be cn, dns, uri or email", v.clientName)
	}
	if _, err := limits.Parse(v.limits); err != nil {
		return fmt.Errorf("--limit: %w", err)
	}
	return nil
}

// tokenFlags is the flag that lets clients authenticate with tokens; "" if there is none.
func (v *accessFlags) tokenFlags() string {
	switch {
	case v.tokens != "":
		return "--tokens"
	case v.jwtKeys != "":
		return "--jwt-keys"
	}
	return ""
}

// configure applies the flags to cfg, and adds the files that are reloaded to all.
func (v *accessFlags) configure(cfg *api.NodeConfig, log *slog.Logger, all *reloadSet) (err error) {
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
		parse := func(texts [][]byte) (identity.Tokens, error) {
			return identity.ParseTokens(texts[0])
		}
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
	cfg.Identity = gate.Identifier{
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
	cfg.AuditGrants = v.auditGrants
	if v.audit != "" {
		file, err := audit.Open(v.audit)
		if err != nil {
			return fmt.Errorf("--audit: %w", err)
		}
		cfg.Audit = file
		all.reread = append(all.reread, func() {
			if err := file.Reopen(); err != nil {
				log.Error("the audit log file can't be reopened; lines still go to the "+
					"previous file", "error", err)
			}
		})
	}
	return nil
}
