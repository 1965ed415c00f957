package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"zamok/raftnode/peer"
)

// tlsFiles names PEM files.
type tlsFiles struct {
	ca       string // authorities of servers
	clientCA string // authorities of clients, which then need a certificate
	cert     string // our own certificate
	key      string
	// the node that our own certificate has to name, for its peers; "": it may name anything
	node string
}

// certificates is the content of tlsFiles.
type certificates struct {
	config   *tls.Config
	expiries []expiry
}

// expiry is when a file expires: with its first certificate, or with the last one if it has
// authorities.
type expiry struct {
	file      string
	since, at time.Time
}

// reload reads the files, and again when they change. Without authorities those of the system are
// trusted.
func (f tlsFiles) reload(log *slog.Logger, what string,
	minVersion uint16) (*reloaded[certificates], error) {
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("a certificate and its key go together: give both files, or neither")
	}
	var paths []string
	for _, path := range []string{f.ca, f.clientCA, f.cert, f.key} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return reload(log, what, func(texts [][]byte) (certificates, error) {
		of := make(map[string][]byte)
		for i, path := range paths {
			of[path] = texts[i]
		}
		config, err := f.parse(of, minVersion)
		return certificates{config, f.expiries(of)}, err
	}, paths...)
}

// parse makes a configuration from the content of the files. Session tickets are disabled, since a
// resumed session would not be verified against the current authorities.
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
			return nil, fmt.Errorf("certificate %s with key %s: %w", f.cert, f.key, err)
		}
		if f.node != "" {
			if err := peer.CheckCertificate(pair.Leaf, f.node); err != nil {
				return nil, fmt.Errorf("the certificate in %s does not name this node, so no "+
					"other one would connect with it: %w", f.cert, err)
			}
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// expiries returns when each file expires.
func (f tlsFiles) expiries(of map[string][]byte) (all []expiry) {
	for _, path := range []string{f.ca, f.clientCA, f.cert} {
		var ends expiry
		for text := of[path]; len(text) > 0; {
			var block *pem.Block
			if block, text = pem.Decode(text); block == nil {
				break
			}
			c, err := x509.ParseCertificate(block.Bytes)
			if err == nil && (ends.file == "" || path != f.cert && c.NotAfter.After(ends.at)) {
				ends = expiry{path, c.NotBefore, c.NotAfter}
			}
		}
		if ends.file != "" {
			all = append(all, ends)
		}
	}
	return all
}

func certPool(path string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf(
			"%s contains no certificate: it must be a PEM file with BEGIN CERTIFICATE", path)
	}
	return pool, nil
}

// warnOfReadableKey warns of a private key that every user of this machine may read.
func warnOfReadableKey(log *slog.Logger, path string) {
	if info, err := os.Stat(path); path != "" && err == nil && info.Mode().Perm()&0o004 != 0 {
		log.Warn("a private key is readable by every user of this machine: chmod o-r", "file", path,
			"mode", info.Mode().Perm().String())
	}
}
