package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"zamok/client"
)

// connectionFlags are the flags for the connection to a cluster. A command calls register when it
// is created, and config when it runs. Commands that send one request use requestFlags
// (request.go).
type connectionFlags struct {
	app       *app
	endpoints []string
	tls       tlsFiles
	tokenFile string
}

// defaultEndpoint is where `zamok dev` and a server with default flags listen.
const defaultEndpoint = "127.0.0.1:5750"

func (c *connectionFlags) register(a *app, cmd *cobra.Command) {
	c.app = a
	endpoints := []string{defaultEndpoint}
	if text := a.getenv("ZAMOK_ENDPOINTS"); text != "" {
		endpoints = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.endpoints, "endpoints", endpoints,
		"`list` of nodes of the cluster, as host:port, dns:///host or srv:///name; one reachable "+
			"node is enough (ZAMOK_ENDPOINTS)")
	f.StringVar(&c.tls.ca, "cacert", a.getenv("ZAMOK_CACERT"),
		"use TLS and trust the authorities in this PEM `file` (ZAMOK_CACERT)")
	f.StringVar(&c.tls.cert, "cert", a.getenv("ZAMOK_CERT"),
		"client certificate, a PEM `file` (ZAMOK_CERT)")
	f.StringVar(&c.tls.key, "key", a.getenv("ZAMOK_KEY"),
		"key of the client certificate, a PEM `file` (ZAMOK_KEY)")
	f.StringVar(&c.tokenFile, "token-file", a.getenv("ZAMOK_TOKEN_FILE"),
		"`file` with a bearer token; needs TLS (ZAMOK_TOKEN_FILE)")
}

// config is the configuration of a client from the flags. A command adds what belongs to its
// session.
func (c *connectionFlags) config() (client.Config, error) {
	cfg := client.Config{Endpoints: c.endpoints, Logger: c.app.logger()}
	if c.tokenFile != "" {
		if c.tls == (tlsFiles{}) {
			return cfg, errors.New("--token-file needs TLS, since the token could be read on the " +
				"network otherwise: give --cacert")
		}
		token := &tokenFileCredentials{path: c.tokenFile}
		if err := token.read(); err != nil {
			return cfg, fmt.Errorf("--token-file: %w", err)
		}
		cfg.Credentials = token
	}
	if c.tls != (tlsFiles{}) {
		current, err := c.tls.reload(cfg.Logger, "TLS", tls.VersionTLS12)
		if err != nil {
			return cfg, err
		}
		cfg.GetTLS = func() *tls.Config { return current.get().config }
	}
	return cfg, nil
}

// tokenFileCredentials sends the token in a file with every call. The file is read each time: to
// renew the token, replace the file. While the file is missing or empty, as while it is being
// written, the previous token is sent.
type tokenFileCredentials struct {
	path string
	last atomic.Pointer[string]
}

func (c *tokenFileCredentials) GetRequestMetadata(context.Context,
	...string) (map[string]string, error) {
	if err := c.read(); err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + *c.last.Load()}, nil
}

// read keeps what is in the file. It fails while no token was ever there.
func (c *tokenFileCredentials) read() error {
	text, err := os.ReadFile(c.path)
	token := strings.TrimSpace(string(text))
	switch {
	case err == nil && token != "":
		c.last.Store(&token)
	case c.last.Load() != nil:
	case err != nil:
		return fmt.Errorf("the bearer token can't be read: %w", err)
	default:
		return fmt.Errorf("%s is empty: it must contain a bearer token", c.path)
	}
	return nil
}

// RequireTransportSecurity is true also for loopback addresses: without TLS the server is not
// authenticated, and the client connects to further addresses that servers announce.
func (*tokenFileCredentials) RequireTransportSecurity() bool { return true }
