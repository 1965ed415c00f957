package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"zamok/api"
)

// tlsVersions are the values of --tls-min-version.
var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// secure configures TLS, and returns the files of certificates.
func (v *serverCommand) secure(cfg *api.NodeConfig,
	log *slog.Logger) (all []*reloaded[certificates], err error) {
	use := func(files tlsFiles, flag, what string, minVersion uint16) (func() *tls.Config, error) {
		if files == (tlsFiles{}) {
			return nil, nil
		}
		warnOfReadableKey(log, files.key)
		current, err := files.reload(log, what, minVersion)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		all = append(all, current)
		return func() *tls.Config { return current.get().config }, nil
	}
	if cfg.ClientTLS, err = use(v.clientTLS, "--tls-cert", "TLS of clients",
		tlsVersions[v.tlsMinVersion]); err != nil {
		return nil, err
	}
	peers := v.peerTLS
	if peers != (tlsFiles{}) {
		peers.node = v.id
	}
	cfg.Peers.TLS, err = use(peers, "--peer-cert", "TLS of peers", tls.VersionTLS13)
	return all, err
}
