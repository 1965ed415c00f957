package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// tlsFiles names PEM files.
type tlsFiles struct {
	ca       string // the authorities of those that this end calls
	clientCA string // the authorities of those that call, which then have to show a certificate
	cert     string // our own certificate
	key      string
}

// reload reads what is named, and again when it changes. Without authorities those of the system are trusted.
func (f tlsFiles) reload(log *slog.Logger, what string, minVersion uint16) (*reloaded[*tls.Config], error) {
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("a certificate and its key go together: give both files, or neither")
	}
	var paths []string
	for _, path := range []string{f.ca, f.clientCA, f.cert, f.key} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return reload(log, what, func(texts [][]byte) (*tls.Config, error) {
		of := make(map[string][]byte)
		for i, path := range paths {
			of[path] = texts[i]
		}
		return f.parse(of, minVersion)
	}, paths...)
}

// parse makes the configuration of what is in the files. A session that is resumed would be one with an authority that may
// not count any more, so there are no tickets for that.
func (f tlsFiles) parse(of map[string][]byte, minVersion uint16) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: minVersion, SessionTicketsDisabled: true}
	var err error
	if f.ca != "" {
		if cfg.RootCAs, err = certPool(f.ca, of[f.ca]); err != nil {
			return nil, err
		}
	}
	if f.clientCA != "" {
		if cfg.ClientCAs, err = certPool(f.clientCA, of[f.clientCA]); err != nil {
			return nil, err
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if f.cert != "" {
		pair, err := tls.X509KeyPair(of[f.cert], of[f.key])
		if err != nil {
			return nil, fmt.Errorf("the certificate in %s with the key in %s can't be used: %w", f.cert, f.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func certPool(path string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in it: it must be a PEM file with BEGIN CERTIFICATE", path)
	}
	return pool, nil
}

// warnOfOpenKey says that everybody on this machine may read a key.
func warnOfOpenKey(log *slog.Logger, path string) {
	if info, err := os.Stat(path); path != "" && err == nil && info.Mode().Perm()&0o004 != 0 {
		log.Warn("every user of this machine may read a private key: chmod o-r", "file", path, "mode", info.Mode().Perm().String())
	}
}
