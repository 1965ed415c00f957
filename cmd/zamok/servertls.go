package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"zamok/api"
)

// tlsVersions are the values of --tls-min-version.
var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// secure configures TLS, and returns what reads its files anew.
func (v *serverCommand) secure(cfg *api.NodeConfig, log *slog.Logger) (again []func(), err error) {
	use := func(files tlsFiles, flag, what string, minVersion uint16) (func() *tls.Config, error) {
		if files == (tlsFiles{}) {
			return nil, nil
		}
		warnOfOpenKey(log, files.key)
		current, err := files.reload(log, what, minVersion)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		again = append(again, current.now)
		return current.get, nil
	}
	if cfg.ClientTLS, err = use(v.clientTLS, "--tls-cert", "TLS of clients", tlsVersions[v.tlsMinVersion]); err != nil {
		return nil, err
	}
	cfg.Peers.TLS, err = use(v.peerTLS, "--peer-cert", "TLS of peers", tls.VersionTLS13)
	return again, err
}
