//go:build unix

package main

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
)

// A pair of which one file is renewed does not fit together: the one before counts until the other
// file is there, too.
func TestHalfARenewedPairIsNotUsed(t *testing.T) {
	ca := newTestCA(t)
	cert, key := ca.issue(t, "n1")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		current, err := tlsFiles{cert: cert, key: key, ca: ca.file}.reload(
			slog.New(slog.NewTextHandler(&log, nil)), "a test", tls.VersionTLS13)
		require.NoError(t, err)
		serial := func() string {
			time.Sleep(reloadEvery)
			return current.get().config.Certificates[0].Leaf.SerialNumber.String()
		}
		first, firstKey := serial(), readFile(t, key)
		require.Equal(t, first, serial())
		time.Sleep(time.Second) // a serial number is the time
		ca.issue(t, "n1")
		secondKey := readFile(t, key)
		require.NoError(t, os.WriteFile(key, firstKey, 0o600))
		require.Equal(t, first, serial())
		require.Contains(t, log.String(), "changed files are invalid")
		require.NoError(t, os.WriteFile(key, secondKey, 0o600))
		second := serial()
		require.NotEqual(t, first, second)

		require.NoError(t, os.Remove(cert))
		require.Equal(t, second, serial())
		require.Equal(t, uint16(tls.VersionTLS13), current.get().config.MinVersion)
		require.NotNil(t, current.get().config.RootCAs)
	})
}

// A certificate for peers that names another node is not used, neither at the start nor when it is
// renewed: other nodes would refuse the next connection, days later perhaps.
func TestAPeerCertificateNamesThisNode(t *testing.T) {
	ca := newTestCA(t)
	cert, key := ca.issue(t, "n1")
	otherCert, otherKey := ca.issue(t, "n2")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		_, err :=
			(&serverCommand{id: "n1",
				peerTLS: tlsFiles{cert: otherCert, key: otherKey, ca: ca.file}}).secure(
				&api.NodeConfig{}, logger)
		require.ErrorContains(t, err, "does not name this node")
		var cfg api.NodeConfig
		_, err =
			(&serverCommand{id: "n1", peerTLS: tlsFiles{cert: cert, key: key, ca: ca.file}}).secure(
				&cfg, logger)
		require.NoError(t, err)
		name := func() string {
			time.Sleep(reloadEvery)
			return cfg.Peers.TLS().Certificates[0].Leaf.DNSNames[0]
		}
		require.Equal(t, "n1", name())
		good, goodKey := readFile(t, cert), readFile(t, key)
		time.Sleep(time.Second) // the time of a file shows that it changed
		require.NoError(t, os.WriteFile(cert, readFile(t, otherCert), 0o600))
		require.NoError(t, os.WriteFile(key, readFile(t, otherKey), 0o600))
		require.Equal(t, "n1", name())
		require.Contains(t, log.String(), "does not name this node")
		require.NoError(t, os.WriteFile(cert, good, 0o600))
		require.NoError(t, os.WriteFile(key, goodKey, 0o600))
		require.Equal(t, "n1", name())
	})
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

func TestAKeyThatAllMayReadIsReported(t *testing.T) {
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: false,
		0o644: true} {
		key := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(key, nil, mode))
		require.NoError(t, os.Chmod(key, mode))
		var log strings.Builder
		warnOfReadableKey(slog.New(slog.NewTextHandler(&log, nil)), key)
		require.Equal(t, warns, strings.Contains(log.String(), key), "%v", mode)
	}
	warnOfReadableKey(slog.New(slog.NewTextHandler(io.Discard, nil)), "")
}

// HUP has a node read its files, and never ends it: not while it waits for the other nodes, and not
// when the files are broken. New connections are made with what was read last.
func TestHangupReadsCertificates(t *testing.T) {
	t.Parallel()
	takesTime(t)
	ca := newTestCA(t)
	cert, key := ca.issue(t, "n1")
	s := &serverSet{dir: t.TempDir(), ca: ca}
	s.port = freePorts(t)
	s.extra = func(id string) []string {
		cert, key := cert, key
		if id != "n1" {
			cert, key = ca.issue(t, id)
		}
		return []string{"--tls-cert", cert, "--tls-key", key, "--peer-cert", cert, "--peer-key",
			key, "--peer-ca", ca.file}
	}
	s.start(t, 0)
	n1 := s.nodes[0]
	n1.awaitOutput(t, "starting node")
	serial := func(address string) string {
		conn, err := tls.Dial("tcp", address, &tls.Config{
			RootCAs: poolOf(t, ca), Certificates: []tls.Certificate{pairOf(t, cert, key)},
			ServerName: "n1"})
		require.NoError(t, err)
		defer conn.Close()
		require.Equal(t, uint16(tls.VersionTLS13), conn.ConnectionState().Version)
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	hangUp := func(says string) {
		before := strings.Count(n1.stderr.String(), says)
		require.NoError(t, n1.Process.Signal(syscall.SIGHUP))
		// clients and peers
		awaitCondition(t, says, func() bool {
			return strings.Count(n1.stderr.String(), says) >= before+2
		})
	}
	awaitCondition(t, "n1 waits for the others", func() bool {
		conn, err := net.Dial("tcp", s.address(0, 1))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	first, goodKey := serial(s.address(0, 1)), readFile(t, key)
	hangUp("files reloaded")
	require.NoError(t, os.WriteFile(key, []byte("broken"), 0o600))
	hangUp("changed files are invalid")
	require.NoError(t, os.WriteFile(key, goodKey, 0o600))
	require.Equal(t, first, serial(s.address(0, 1)))
	ca.issue(t, "n1")
	hangUp("files reloaded")
	second := serial(s.address(0, 1))
	require.NotEqual(t, first, second)

	ca.issue(t, "n1") // and without HUP
	s.start(t, 1)
	s.start(t, 2)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	for _, port := range []int{0, 1} {
		awaitCondition(t, "the third certificate", func() bool {
			return serial(s.address(0, port)) == pairOf(t, cert, key).Leaf.SerialNumber.String()
		})
	}
}

// A HUP that comes while a node reads its files for the first time does not end it, and has it read
// them again.
func TestHangupBeforeANodeIsConfigured(t *testing.T) {
	t.Parallel()
	cert, key := newTestCA(t).issue(t, "n1")
	text, pipe := readFile(t, key), key+".pipe"
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	s := &serverSet{dir: t.TempDir()}
	s.port = freePorts(t)
	s.extra = func(string) []string { return []string{"--tls-cert", cert, "--tls-key", pipe} }
	s.start(t, 0)
	var toNode *os.File
	awaitCondition(t, "the node reads its key", func() (opened bool) {
		var err error
		toNode, err = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err == nil
	})
	require.NoError(t, os.Rename(key, pipe)) // which is what is read the second time
	require.NoError(t, s.nodes[0].Process.Signal(syscall.SIGHUP))
	_, err := toNode.Write(text)
	require.NoError(t, err)
	require.NoError(t, toNode.Close())
	s.nodes[0].awaitOutput(t, "starting node")
	s.nodes[0].awaitOutput(t, "files reloaded")
}

// A holder whose certificate is renewed, and the authority with it, keeps its lock when it has to
// connect again.
func TestAHolderRenewsItsCertificate(t *testing.T) {
	t.Parallel()
	takesTime(t)
	before, after := newTestCA(t), newTestCA(t)
	accepted := before
	s := &serverSet{dir: t.TempDir(), ca: before}
	s.port = freePorts(t)
	serverCert, serverKey := before.issue(t, "n1")
	s.extra = func(string) []string {
		return []string{"--tls-cert", serverCert, "--tls-key", serverKey, "--tls-client-ca",
			accepted.file,
			"--cluster", "n1=" + s.address(0, 1)}
	}
	s.start(t, 0)
	s.awaitReady(t, 0)
	cert, key := before.issue(t, "alice")
	files := []string{"--cacert", before.file, "--cert", cert, "--key", key}
	holder := startZamok(t, &s.devCluster,
		append(append([]string{"lock", "kept", "--ttl", "60s"}, files...), "--", "sh", "-c",
			"echo holding; exec sleep 1000")...)
	holder.awaitOutput(t, "holding")

	require.NoError(t, s.nodes[0].Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, s.nodes[0].wait(t).code)
	renewed, renewedKey := after.issue(t, "alice")
	require.NoError(t, os.Rename(renewed, cert))
	require.NoError(t, os.Rename(renewedKey, key))
	accepted = after
	s.start(t, 0)
	s.awaitReady(t, 0)
	awaitCondition(t, "the session of the holder is attached", func() bool {
		r := runZamok(t, &s.devCluster, append([]string{"show", "kept", "-o", "json"}, files...)...)
		return r.code == 0 && strings.Contains(r.stdout, "alice") &&
			strings.Contains(holder.stderr.String(), "files reloaded")
	})
	r := runZamok(t, &s.devCluster,
		append(append([]string{"lock", "kept", "--try"}, files...), "--", "true")...)
	require.Equal(t, exitNotAcquired, r.code, r.stderr)
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+15, holder.wait(t).code, holder.stderr.String())
	r = runZamok(t, &s.devCluster,
		append(append([]string{"lock", "kept", "--try"}, files...), "--", "true")...)
	require.Equal(t, 0, r.code, "the holder has released it: %s", r.stderr)
}

// A certificate is warned of when 30 days, 7 days and a day are left, and every day from then on.
func TestCertificatesThatExpireAreWarnedOf(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		lives time.Duration
		want  []time.Duration // how much is left at each line
	}{
		"a year": {365 * day, []time.Duration{30 * day, 7 * day, day, 0, -day, -2 * day}},
		"a week": {7 * day, []time.Duration{day, 0, -day, -2 * day}},
		"a day":  {day, []time.Duration{0, -day, -2 * day}},
	} {
		t.Run(name, func(t *testing.T) {
			var lines strings.Builder
			l := &expiryLog{log: slog.New(slog.NewTextHandler(&lines, nil)),
				warned: make(map[expiry]warned)}
			ends := expiry{"a.pem", began, began.Add(test.lives)}
			var at []time.Duration
			for now := began; now.Before(ends.at.Add(3 * day)); now = now.Add(expiryEvery) {
				lines.Reset()
				if l.warn(ends, now); lines.Len() > 0 {
					left := ends.at.Sub(now)
					at = append(at, left)
					require.Equal(t, left <= 0, strings.Contains(lines.String(), "level=ERROR"),
						lines.String())
					require.Contains(t, lines.String(), "a.pem")
				}
			}
			require.Equal(t, test.want, at)
		})
	}
}

// Of a chain the first certificate counts, which is the node's own; of authorities the one that
// lasts.
func TestWhatExpiresInAFile(t *testing.T) {
	ca, later := newTestCA(t), newTestCA(t)
	cert, key := ca.issue(t, "n1")
	require.NoError(t, os.WriteFile(cert,
		append(readFile(t, cert), readFile(t, ca.file)...), 0o600))
	require.NoError(t, os.WriteFile(ca.file,
		append(readFile(t, ca.file), readFile(t, later.file)...), 0o600))
	current, err := tlsFiles{cert: cert, key: key, clientCA: ca.file}.reload(
		slog.New(slog.DiscardHandler), "a test", tls.VersionTLS13)
	require.NoError(t, err)
	expiries := current.get().expiries
	require.Len(t, expiries, 2)
	require.Equal(t, expiry{ca.file, later.cert.NotBefore.Truncate(time.Second).UTC(),
		later.cert.NotAfter.Truncate(time.Second).UTC()}, expiries[0])
	leaf := current.get().config.Certificates[0].Leaf
	require.Equal(t, expiry{cert, leaf.NotBefore, leaf.NotAfter}, expiries[1])
}
