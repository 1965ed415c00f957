package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// checkTLS refuses settings under which the peers would not verify each other.
func checkTLS(c *tls.Config) error {
	switch {
	case c.RootCAs == nil && c.ClientCAs == nil:
		return errors.New("it has neither RootCAs nor ClientCAs: name the CA of the peers, " +
			"since every public CA would do otherwise")
	case len(c.Certificates) == 0 && (c.GetCertificate == nil || c.GetClientCertificate == nil):
		return errors.New("it has no certificate of this node, which presents it both when it " +
			"calls and when it is called")
	}
	return nil
}

// mutualTLS is the configuration for a call to a node; at the called end, serverName is "". One CA
// list, whichever is set, serves both directions.
func mutualTLS(c *tls.Config, serverName string) *tls.Config {
	c = c.Clone()
	c.ServerName = serverName
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.MinVersion = max(c.MinVersion, tls.VersionTLS13)
	// either would switch the verification off
	c.InsecureSkipVerify, c.GetConfigForClient = false, nil
	c.RootCAs, c.ClientCAs = cmp.Or(c.RootCAs, c.ClientCAs), cmp.Or(c.ClientCAs, c.RootCAs)
	if serverName != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			return verifyName(state, serverName)
		}
	}
	return c
}

// secure makes one end of TLS, if this node has it. At the calling end, the receiver's certificate
// must name the intended node, serverName: an address is where a node is, and what has to be proved
// is which node it is. Which node the caller's certificate must name is known only from its hello:
// see checkCertificate.
func (n *Network) secure(ctx context.Context, s *stream, serverName string) error {
	if s.Conn = s.raw; n.config.TLS == nil {
		return nil
	}
	config := n.config.TLS()
	if err := checkTLS(config); err != nil {
		return fmt.Errorf("peer: TLS: %w", err)
	}
	config = mutualTLS(config, serverName)
	other, secured := serverName, tls.Client(s.raw, config)
	if s.inbound {
		other, secured = "the caller", tls.Server(s.raw, config)
	}
	err := secured.HandshakeContext(ctx)
	if err == nil {
		s.Conn = secured
		return nil
	}
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		refusal := newRefusal(TLSWanted, n.config.ID, serverName,
			"%s speaks without TLS, and %s with it", other, n.config.ID)
		if s.inbound && plain.Conn != nil {
			return sendRefusal(s, refusal) // without TLS, so that the caller can read it
		}
		return refusal
	}
	wrong, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	misnamed, ok := errors.AsType[x509.HostnameError](err)
	if unverified || ok {
		reason := error(misnamed)
		if unverified {
			reason = wrong.Err
		}
		return newRefusal(WrongCertificate, n.config.ID, serverName,
			"the certificate of %s doesn't verify: %v", other, reason)
	}
	return fmt.Errorf("TLS: %w", err)
}

// checkCertificate returns a refusal unless the caller's certificate names the node that it claims
// to be.
func (n *Network) checkCertificate(s *stream) *RefusedError {
	if secured, ok := s.Conn.(*tls.Conn); ok {
		claimed := s.remote.Name
		if err := verifyName(secured.ConnectionState(), claimed); err != nil {
			return newRefusal(WrongCertificate, n.config.ID, claimed,
				"the caller claims to be %s: %v", claimed, err)
		}
	}
	return nil
}

// verifyName returns an error unless the other end's certificate names a node.
func verifyName(state tls.ConnectionState, name string) error {
	return CheckCertificate(state.PeerCertificates[0], name)
}

// CheckCertificate returns an error unless a certificate names a node. One for *.example.org names
// none: who has it would be every node of these names.
func CheckCertificate(certificate *x509.Certificate, name string) error {
	leaf := *certificate
	leaf.DNSNames = slices.DeleteFunc(slices.Clone(leaf.DNSNames),
		func(name string) bool { return strings.Contains(name, "*") })
	return leaf.VerifyHostname(name)
}

// CheckAllowedNames returns what is wrong with the patterns of Config.AllowedNames, or nil.
func CheckAllowedNames(patterns []string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%q is not a valid pattern: use a name, or a pattern such as n*",
				pattern)
		}
	}
	return nil
}

// checkKnown returns a refusal unless a server may call this one (P14). Without TLS its name is
// only a claim, so the check would be useless.
func (n *Network) checkKnown(s Server) *RefusedError {
	if n.config.TLS == nil || n.config.Knows(s) ||
		slices.ContainsFunc(n.config.AllowedNames, func(pattern string) bool {
			matches, _ := path.Match(pattern, s.Name) // New has tried the pattern
			return matches
		}) {
		return nil
	}
	return newRefusal(NotKnown, n.config.ID, s.Name,
		"%s knows no node of the name %s in its cluster", n.config.ID, s.Name)
}
