package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// authority is a CA for peers.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "peers"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{cert, key}
}

// config is the TLS of a node whose certificate names it: the node, and not its data directory.
func (a authority) config(t *testing.T, id string) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{id},
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool,
	}
}

// always is a node's TLS that does not change; nil: it has none.
func always(c *tls.Config) func() *tls.Config {
	if c == nil {
		return nil
	}
	return func() *tls.Config { return c }
}

func TestTLS(t *testing.T) {
	for name, c := range map[string]struct {
		caller, called func(t *testing.T, home, away authority) *tls.Config
		want           RefusalCode // what the caller learns; 0: nothing wrong
		callerLog      string      // what a log says where no code can be sent
		calledLog      string
	}{
		"both": {
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n1") },
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n2") },
			0, "", "",
		},
		"the called node's certificate names another": {
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n1") },
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n3") },
			WrongCertificate, "valid for n3, not n2", "bad certificate",
		},
		"the caller's certificate names another": {
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n3") },
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n2") },
			WrongCertificate, "valid for n3, not n1", "valid for n3, not n1",
		},
		"the called node's certificate is of another CA": {
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n1") },
			func(t *testing.T, home, away authority) *tls.Config {
				c := away.config(t, "n2")
				c.ClientCAs = home.config(t, "n2").RootCAs
				return c
			},
			WrongCertificate, "unknown authority", "bad certificate",
		},
		"the called node speaks without": {
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n1") },
			func(*testing.T, authority, authority) *tls.Config { return nil },
			TLSWanted, "speaks without TLS", "without TLS",
		},
		"the caller speaks without": {
			func(*testing.T, authority, authority) *tls.Config { return nil },
			func(t *testing.T, home, _ authority) *tls.Config { return home.config(t, "n2") },
			TLSWanted, "speaks without TLS", "speaks without TLS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Over sockets: TLS alerts cross what is being written, which a pipe has no room for.
			home, away := newAuthority(t), newAuthority(t)
			n1 := openTCP(t, Config{ID: "n1", TLS: always(c.caller(t, home, away))})
			n2 := openTCP(t, Config{ID: "n2", TLS: always(c.called(t, home, away))})
			err := connect(t, n1, n2)
			_, askErr := n1.Ask(t.Context(), Node{"n2", n2.Addr().String()})
			if c.want == 0 {
				require.NoError(t, err)
				require.NoError(t, askErr)
				assert.Empty(t, n1.logs.String()+n2.logs.String())
				return
			}
			requireCode(t, c.want, err)
			requireCode(t, c.want, askErr)
			eventuallyLogs(t, n1, c.callerLog)
			eventuallyLogs(t, n2, c.calledLog)
		})
	}
}

// A node whose authority is replaced shows the new certificate, and asks for the new ones, on the
// next connection in both directions. What is open stays open.
func TestARenewedCertificateIsUsed(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	open := func(id string) (testNode, *atomic.Pointer[tls.Config]) {
		current := new(atomic.Pointer[tls.Config])
		current.Store(before.config(t, id))
		return openTCP(t, Config{ID: id, TLS: current.Load}), current
	}
	n1, ofN1 := open("n1")
	n2, ofN2 := open("n2")
	dial := func(from, to testNode) (RelayConn, error) {
		return from.DialRelay(t.Context(), to.server().ID(), raft.ServerAddress(to.Addr().String()))
	}
	defer openTransport(t, n1).Close()
	defer openTransport(t, n2).Close()
	relays := n2.Relays()
	old, err := dial(n1, n2)
	require.NoError(t, err)
	defer old.Close()
	oldAtN2, err := relays.Accept()
	require.NoError(t, err)
	defer oldAtN2.Close()

	ofN1.Store(after.config(t, "n1"))
	_, err = dial(n1, n2)
	requireCode(t, WrongCertificate, err)
	_, err = dial(n2, n1)
	requireCode(t, WrongCertificate, err)
	ofN2.Store(after.config(t, "n2"))
	for _, ends := range [][2]testNode{{n1, n2}, {n2, n1}} {
		renewed, err := dial(ends[0], ends[1])
		require.NoError(t, err)
		defer renewed.Close()
	}
	// A certificate in another name is none of this node's, although it can be read and verified.
	ofN1.Store(after.config(t, "n3"))
	_, err = dial(n1, n2)
	requireCode(t, WrongCertificate, err)
	_, err = dial(n2, n1)
	requireCode(t, WrongCertificate, err)
	_, err = old.Write([]byte("still"))
	require.NoError(t, err)
	text := make([]byte, 5)
	_, err = io.ReadFull(oldAtN2, text)
	require.NoError(t, err)
	require.Equal(t, "still", string(text))
}

// A caller whose certificate is of another CA learns it from TLS itself.
func TestTLSCallerOfAnotherCA(t *testing.T) {
	home, away := newAuthority(t), newAuthority(t)
	caller := away.config(t, "n1")
	caller.RootCAs = home.config(t, "n1").RootCAs
	n1 := openTCP(t, Config{ID: "n1", TLS: always(caller)})
	n2 := openTCP(t, Config{ID: "n2", TLS: always(home.config(t, "n2"))})
	require.ErrorContains(t, connect(t, n1, n2), "unknown certificate authority")
	eventuallyLogs(t, n2, "wrong certificate")
}

func eventuallyLogs(t *testing.T, m testNode, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(m.logs.String(), text) },
		testTimeout, 5*time.Millisecond, "%s logged %s and not %q", m.config.ID, m.logs, text)
}

// A TLS handshake that never ends costs the called node as little as any other.
func TestTLSSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, home := newTestNetwork(), newAuthority(t)
		list := mustList(t, threeNodes)
		n1 := openNode(t, f, Config{ID: "n1", List: list, TLS: always(home.config(t, "n1"))})
		n2 := openNode(t, f, Config{ID: "n2", List: list, TLS: always(home.config(t, "n2"))})
		defer n1.Close()
		defer n2.Close()
		dialRaw(t, f, "h2:5751")
		require.NoError(t, connect(t, n1, n2))
		time.Sleep(n2.config.HandshakeTimeout)
		synctest.Wait()
		assert.Contains(t, n2.logs.String(), "not complete within 2s")
	})
}

func TestTLSThatVerifiesNothingIsRefused(t *testing.T) {
	good := newAuthority(t).config(t, "n1")
	require.NoError(t, checkTLS(good))
	for want, spoil := range map[string]func(*tls.Config){
		"neither RootCAs nor ClientCAs": func(c *tls.Config) { c.RootCAs = nil },
		"no certificate of this node":   func(c *tls.Config) { c.Certificates = nil },
	} {
		c := good.Clone()
		spoil(c)
		assert.ErrorContains(t, checkTLS(c), want)
	}
	loose := good.Clone()
	loose.InsecureSkipVerify = true
	loose.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }
	assert.False(t, mutualTLS(loose, "").InsecureSkipVerify)
	assert.Nil(t, mutualTLS(loose, "").GetConfigForClient)
	assert.Equal(t, tls.RequireAndVerifyClientCert, mutualTLS(good, "").ClientAuth)
	assert.Equal(t, uint16(tls.VersionTLS13), mutualTLS(good, "").MinVersion)
	assert.Equal(t, good.RootCAs, mutualTLS(good, "").ClientCAs, "one CA for both directions")
}

// A certificate of the peers' CA is accepted only for the name of a member, or one that the
// operator allows. The name is checked again with each message: a node may have been removed since
// it connected.
func TestOnlyKnownNamesMayCall(t *testing.T) {
	home, known := newAuthority(t), true
	open := func(id string, allowed ...string) testNode {
		c := home.config(t, id)
		return openTCP(t, Config{
			ID: id, TLS: func() *tls.Config { return c }, AllowedNames: allowed,
			Knows: func(s Server) bool { return s.Name != "n1" || known },
		})
	}
	n1, n2, n3 := open("n1"), open("n2"), open("n3", "x*", "n[01]")
	caller := openTransport(t, n1)
	openTransport(t, n2)
	openTransport(t, n3)
	call := func(to testNode) error {
		_, err := n1.Call(t.Context(), Node{to.server().String(), to.Addr().String()}, nil)
		return err
	}
	require.NoError(t, vote(caller, "n2", n2.Addr().String()))
	require.NoError(t, call(n2))
	known = false
	require.ErrorContains(t, vote(caller, "n2", n2.Addr().String()),
		"n2 knows no node of the name n1 in its cluster", "over the old connection")
	caller.CloseStreams()
	requireCode(t, NotKnown, vote(caller, "n2", n2.Addr().String()))
	requireCode(t, NotKnown, call(n2))
	_, err := n1.DialRelay(t.Context(), n2.server().ID(), raft.ServerAddress(n2.Addr().String()))
	requireCode(t, NotKnown, err)
	require.NoError(t, vote(caller, "n3", n3.Addr().String()))
	require.NoError(t, call(n3))

	// Whoever has a certificate may ask, unless the operator has named those that may.
	_, err = n1.Ask(t.Context(), Node{"n2", n2.Addr().String()})
	require.NoError(t, err)
	_, err = n1.Ask(t.Context(), Node{"n3", n3.Addr().String()})
	require.NoError(t, err)
	client := open("n2", "n3") // any other name
	n4 := open("n1", "other")
	_, err = client.Ask(t.Context(), Node{"n1", n4.Addr().String()})
	require.NoError(t, err, "n1 knows n2")
	_, err = n1.Ask(t.Context(), Node{"n2", client.Addr().String()})
	requireCode(t, NotKnown, err)

	_, err = New(Config{AllowedNames: []string{"n["}, Listener: n1.config.Listener})
	require.ErrorContains(t, err, `"n[" is not a valid pattern`)
}

// A certificate for all names of a domain is none of a node of such a name, in either direction.
func TestAWildcardIsNoName(t *testing.T) {
	home := newAuthority(t)
	exact := func(id string) func() *tls.Config {
		c := home.config(t, id)
		return func() *tls.Config { return c }
	}
	for name, c := range map[string][2]string{"the caller has it": {"*.zamok", "n2.zamok"},
		"the called node has it": {"n1.zamok", "*.zamok"}} {
		t.Run(name, func(t *testing.T) {
			n1 := openTCP(t, Config{ID: "n1.zamok", TLS: exact(c[0])})
			n2 := openTCP(t, Config{ID: "n2.zamok", TLS: exact(c[1])})
			_, err := n1.Ask(t.Context(), Node{"n2.zamok", n2.Addr().String()})
			requireCode(t, WrongCertificate, err)
		})
	}
}
