package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsFiles names PEM files.
type tlsFiles struct {
	ca   string // the authorities to trust
	cert string // our own certificate
	key  string
}

// load reads what is named. Without authorities those of the system are trusted.
func (f tlsFiles) load() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pool, err := loadCertPool(f.ca)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = pool
	}
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("a certificate and its key go together: give both files, or neither")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("the certificate in %s with the key in %s can't be used: %w", f.cert, f.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func loadCertPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the authorities' certificates can't be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in it: it must be a PEM file with BEGIN CERTIFICATE", file)
	}
	return pool, nil
}
