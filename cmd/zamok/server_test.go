//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/store"
)

// serverSet are three processes of `zamok server`.
type serverSet struct {
	devCluster
	dir   string
	extra func(id string) []string // more flags
	ca    *testCA                  // of the nodes' certificates for clients; nil: they have no TLS
	nodes [3]*process
}

func startServers(t *testing.T, extra func(id string) []string) *serverSet {
	t.Helper()
	s := &serverSet{dir: t.TempDir(), extra: extra}
	s.port = freePorts(t)
	for i := range s.nodes {
		s.start(t, i)
	}
	return s
}

func (s *serverSet) address(node, port int) string {
	return "127.0.0.1:" + strconv.Itoa(s.port+10*node+port)
}

func (s *serverSet) start(t *testing.T, i int) {
	t.Helper()
	id := "n" + strconv.Itoa(i+1)
	args := []string{
		"server", "--id", id, "--data", filepath.Join(s.dir, id),
		"--cluster", fmt.Sprintf("n1=%s,n2=%s,n3=%s", s.address(0, 1), s.address(1, 1),
			s.address(2, 1)),
		"--listen", s.address(i, 0), "--http", s.address(i, 2), "--election-timeout", "500ms",
	}
	if s.extra != nil {
		args = append(args, s.extra(id)...)
	}
	s.nodes[i] = startZamok(t, nil, args...)
}

// awaitReady waits until a node answers that it is.
func (s *serverSet) awaitReady(t *testing.T, i int) {
	t.Helper()
	require.Eventually(t, func() bool {
		code, err := s.get(t, i, "/readyz")
		return err == nil && code == http.StatusOK
	}, testTimeout, 20*time.Millisecond, "node %d was never ready", i+1)
}

// get asks a node over HTTP, and shows these certificates.
func (s *serverSet) get(t *testing.T, i int, path string,
	shown ...tls.Certificate) (code int, err error) {
	scheme, transport := "http://", &http.Transport{DisableKeepAlives: true}
	if s.ca != nil {
		scheme, transport.TLSClientConfig = "https://",
			&tls.Config{RootCAs: poolOf(t, s.ca), Certificates: shown}
	}
	answer, err := (&http.Client{Transport: transport}).Get(scheme + s.address(i, 2) + path)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, nil
}

// Each node is restarted in turn, and a lock stays held through all of it.
func TestRestartKeepsHeldLock(t *testing.T) {
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	holder := startZamok(t, &s.devCluster, "lock", "kept", "--", "sh", "-c",
		"echo holding; read -r line; exec sleep 1000")
	holder.Stdin = nil
	holder.awaitOutput(t, "holding")
	for i := range s.nodes {
		require.NoError(t, s.nodes[i].Process.Signal(syscall.SIGTERM))
		end := s.nodes[i].wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		s.start(t, i)
		s.awaitReady(t, i)
		r := runZamok(t, &s.devCluster, "lock", "other", "--wait", "30s", "--", "true")
		require.Equal(t, 0, r.code, r.stderr)
		r = runZamok(t, &s.devCluster, "lock", "kept", "--try", "--", "true")
		require.Equal(t, exitNotAcquired, r.code, r.stderr)
	}
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+15, holder.wait(t).code, holder.stderr.String())

	// A fourth joins, and serves.
	joinNode(t, "n4", filepath.Join(s.dir, "n4"), "n2="+s.address(1, 1), s.address(0, 5),
		s.address(0, 6))
	r := runZamok(t, nil, "lock", "kept", "--endpoints", s.address(0, 5), "--wait", "30s",
		"--", "true")
	require.Equal(t, 0, r.code, r.stderr)
}

// joinNode starts a server that is to join, and waits until it has.
func joinNode(t *testing.T, id, data, members, listen, peer string, more ...string) *process {
	t.Helper()
	node := startZamok(t, nil,
		append([]string{"server", "--id", id, "--data", data, "--join", members,
			"--listen", listen, "--peer", peer, "--http", ""}, more...)...)
	awaitCondition(t, id+" is taken in",
		func() bool { return strings.Contains(node.stderr.String(), "joined the cluster") })
	return node
}

// A node that is removed exits with a code of its own; started again, it asks the others and exits
// again.
func TestRemovedServerExits(t *testing.T) {
	takesTime(t)
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	// a busy machine may change its leader before that is known
	awaitCondition(t, "n3 is removed", func() bool {
		r := runZamok(t, &s.devCluster, "remove", "n3")
		return r.code == 0 || strings.Contains(r.stderr, "is no node")
	})
	for range 2 {
		end := s.nodes[2].wait(t)
		require.Equal(t, exitRemoved, end.code, end.stderr)
		require.Contains(t, end.stderr, "this node was removed from its cluster")
		require.Contains(t, end.stderr, "--join")
		s.start(t, 2)
	}
	require.Equal(t, exitRemoved, s.nodes[2].wait(t).code)
	r := runZamok(t, &s.devCluster, "lock", "x", "--wait", "30s", "--", "true")
	require.Equal(t, 0, r.code, r.stderr)
}

func TestServerFlagErrors(t *testing.T) {
	t.Parallel()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { used.Close() })
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("hello"), 0o600))
	theirs, joining := filepath.Join(dir, "theirs"), filepath.Join(dir, "joining")
	leaveData(t, theirs)
	leaveFailedJoin(t, joining)
	bare := func(data string) []string {
		return []string{"server", "--id", "n1", "--data", data, "--http", "", "--listen",
			"127.0.0.1:0", "--peer", "127.0.0.1:0"}
	}

	// each with a port of its own: they run at the same time
	sound := func(flags ...string) []string {
		return append([]string{
			"server", "--id", "n1", "--data", filepath.Join(dir, "new"), "--cluster",
			"n1=127.0.0.1:" + strconv.Itoa(freePorts(t)),
			"--listen", "127.0.0.1:0", "--http", "",
		}, flags...)
	}
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no id":    {[]string{"server"}, []string{"--id is missing"}},
		"no data":  {[]string{"server", "--id", "n1"}, []string{"--data is missing"}},
		"a bad id": {sound("--id", "N 1"), []string{"--id", "lower-case"}},
		"a used port": {sound("--listen", used.Addr().String()),
			[]string{"--listen", "in use", "choose other ports"}},
		"a used peer port": {sound("--peer", used.Addr().String()),
			[]string{"--peer", "in use", "choose other ports"}},
		"a used HTTP port": {sound("--http", used.Addr().String()),
			[]string{"--http", "in use", "choose other ports"}},
		"a place for no one": {sound("--data", filepath.Join(text, "x")),
			[]string{"data directory", text}},
		"another's data": {sound("--data", theirs), []string{"belongs to", "n2"}},
		"an impatient node": {sound("--election-timeout", "5ms"),
			[]string{"--election-timeout", "50ms"}},
		"a patient node": {sound("--election-timeout", "3s"),
			[]string{"--election-timeout", "2.5s"}},
		"a list without us": {sound("--cluster", "n2=127.0.0.1:1"), []string{"--cluster", "n1"}},
		"a bad list": {sound("--cluster", "n1=5751"),
			[]string{"--cluster", "n1=host:5751"}},
		"an empty directory": {bare(filepath.Join(dir, "none")),
			[]string{"none has no data of a cluster member", "--cluster", "--join"}},
		"a failed --join": {bare(joining),
			[]string{"joining has no data of a cluster member", "nothing was started", "--join"}},
		"a bad certificate": {sound("--tls-cert", text, "--tls-key", text),
			[]string{text, "certificate"}},
		"half a certificate": {sound("--tls-cert", text), []string{"both"}},
		"half of peer TLS":   {sound("--peer-cert", text), []string{"--peer-ca"}},
		"names without TLS": {sound("--peer-allowed-names", "n*"),
			[]string{"--peer-allowed-names", "--peer-cert"}},
		"a bad pattern": {sound("--peer-cert", text, "--peer-key", text, "--peer-ca", text,
			"--peer-allowed-names", "n["), []string{"--peer-allowed-names", `"n["`}},
		"bad authorities": {sound("--tls-cert", text, "--tls-key", text, "--tls-client-ca",
			text), []string{"BEGIN CERTIFICATE"}},
		"no version of TLS": {sound("--tls-min-version", "1.1"),
			[]string{"--tls-min-version", "1.2", "1.3"}},
		"open clients": {sound("--listen", ":5750"),
			[]string{"--listen: :5750", "--rules", "--insecure-clients"}},
		"open HTTP": {sound("--http", ":5752"),
			[]string{"--http: :5752", "--rules", "--insecure-clients"}},
		"tokens, no rules": {sound("--tokens", text),
			[]string{"--tokens", "give --rules, or --insecure-clients"}},
		"rules, open peers": {sound("--rules", text),
			[]string{"--rules", "give --peer-cert", "or --insecure-peers"}},
		"open peers": {sound("--peer", "0.0.0.0:5751"),
			[]string{"--peer: 0.0.0.0:5751", "--peer-cert", "--insecure-peers"}},
		"a far cluster": {sound("--cluster", "n1=127.0.0.1:5751,n2=10.0.0.2:5751"),
			[]string{"--cluster: 10.0.0.2:5751", "--insecure-peers"}},
		"joining far away": {sound("--join", "n2=127.0.0.1:5751,n3=db.example:5751"),
			[]string{"--join: db.example:5751", "--insecure-peers"}},
		"a bad --join": {sound("--join", "127.0.0.1:5751"),
			[]string{"--join: item 1", "n1=host:5751"}},
		"asking for nothing": {sound("--tls-client-ca", text), []string{"--tls-cert"}},
		"a used dev port": {[]string{"dev", "--nodes", "1", "--port", portOf(used)},
			[]string{"in use"}},
		"two nodes of dev": {[]string{"dev", "--nodes", "2"}, []string{"1 or 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runZamok(t, nil, test.args...)
			require.Equal(t, exitGeneral, r.code, r.stderr)
			for _, text := range test.want {
				require.Contains(t, r.stderr, text)
			}
			require.NotContains(t, r.stderr, "NodeConfig", "a person has flags, not fields")
		})
	}
}

// leaveData leaves the data of another node, n2, in a directory.
func leaveData(t *testing.T, dir string) {
	node := startZamok(t, nil, "server", "--id", "n2", "--data", dir, "--cluster",
		"n2=127.0.0.1:"+strconv.Itoa(freePorts(t)),
		"--listen", "127.0.0.1:0", "--http", ":0", "--insecure-clients")
	node.awaitOutput(t,
		"level=WARN msg=\"--insecure-clients is in force: every program that can connect")
	node.awaitOutput(t, "serving clients")
	require.NoError(t, node.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, node.wait(t).code)
}

// leaveFailedJoin leaves what a start with --join leaves if no member answers, or refuses.
func leaveFailedJoin(t *testing.T, dir string) {
	left, err := store.Open(store.Config{Dir: dir, Format: fsm.Format(), NodeID: "n1",
		Fatal: func(error) {}})
	require.NoError(t, err)
	require.NoError(t, left.Join(store.NewID()))
	require.NoError(t, left.Close())
}

func portOf(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestServerTLS(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	s := startServers(t, func(id string) []string {
		cert, key := ca.issue(t, id)
		return []string{
			"--tls-min-version", map[bool]string{true: "1.2", false: "1.3"}[id == "n2"],
			"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca.file,
			"--peer-cert", cert, "--peer-key", key, "--peer-ca", ca.file,
		}
	})
	s.ca = ca
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	cert, key := ca.issue(t, "alice")
	code, err := s.get(t, 0, "/v1/now")
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, code)
	code, err = s.get(t, 0, "/v1/now", pairOf(t, cert, key))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	for i := range s.nodes { // only n2 takes a version below 1.3
		for _, port := range []int{0, 2} {
			conn, err := tls.Dial("tcp", s.address(i, port), &tls.Config{
				RootCAs: poolOf(t, ca), Certificates: []tls.Certificate{pairOf(t, cert, key)},
				MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
			})
			require.Equal(t, i == 1, err == nil, "%v", err)
			if err == nil {
				conn.Close()
			}
		}
	}
	with := []string{"lock", "secret", "--cacert", ca.file, "--cert", cert, "--key", key, "--wait",
		"30s", "--", "echo", "mine"}
	r := runZamok(t, &s.devCluster, with...)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, "mine\n", r.stdout)
	for name, without := range map[string]struct {
		args []string
		want string
	}{
		"without TLS": {[]string{"lock", "secret", "--try", "--", "true"}, "wants TLS"},
		"without a certificate": {
			[]string{"lock", "secret", "--cacert", ca.file, "--try", "--", "true"}, s.endpoint()},
		"of other authorities": {
			[]string{"lock", "secret", "--cacert", newTestCA(t).file, "--try", "--", "true"},
			"of no authority that this client trusts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runZamok(t, &s.devCluster, without.args...)
			require.Equal(t, exitUnavailable, r.code, r.stderr)
			require.Contains(t, r.stderr, without.want)
		})
	}
}

// testCA issues certificates for 127.0.0.1 and a name.
type testCA struct {
	dir, file string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	a := &testCA{dir: t.TempDir()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
	}
	a.file, _ = a.sign(t, "ca", a.cert)
	return a
}

func (a *testCA) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	return a.sign(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames:    []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
}

func (a *testCA) sign(t *testing.T, name string, template *x509.Certificate) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if a.key == nil {
		a.key = private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	require.NoError(t, os.WriteFile(cert,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key,
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

func poolOf(t *testing.T, a *testCA) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(readFile(t, a.file)))
	return pool
}

func pairOf(t *testing.T, cert, key string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	return pair
}

// Ctrl-C ends `zamok dev`, and what it kept is there the next time.
func TestDev(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, port := 0, freePorts(t)
	for range 2 {
		begun := time.Now()
		c := &devCluster{port: port}
		c.start(t, "--data", dir)
		t.Cleanup(c.end)
		t.Logf("ready after %v", time.Since(begun))
		r := runZamok(t, c, "lock", "dev", "--", "sh", "-c", "echo $ZAMOK_LOCK_TOKEN")
		require.Equal(t, 0, r.code, r.stderr)
		next, err := strconv.Atoi(strings.TrimSpace(r.stdout))
		require.NoError(t, err)
		require.Greater(t, next, token)
		if token > 0 {
			require.Less(t, next-token, 1000, "another cluster")
		}
		token = next
		require.NoError(t, c.cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, c.cmd.Wait())
		require.Contains(t, c.out.String(), "zamok lock")
	}
}
