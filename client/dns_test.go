package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"zamok/api"
	"zamok/client"
	"zamok/client/admin"
)

// dns is a DNS server on loopback, and a network in which addresses lead to where the test says.
type dns struct {
	testing.TB
	conn net.PacketConn

	mu      sync.Mutex
	silent  bool
	hosts   map[string][]string // addresses of a host; a name that has none does not exist
	targets map[string][]string // of SRV records
	queries map[string]int      // how often for a name's A records, or its SRV records
	leads   map[string]string   // what an address leads to; nothing listens at others
	conns   []net.Conn
}

func startDNS(t testing.TB) *dns {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &dns{TB: t, conn: conn, queries: map[string]int{}}
	var served sync.WaitGroup
	served.Go(d.serve)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		served.Wait()
	})
	return d
}

func (d *dns) serve() {
	packet := make([]byte, 1500)
	for {
		size, from, err := d.conn.ReadFrom(packet)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(packet[:size]); err != nil {
			d.Errorf("the query can't be read: %v", err)
			return
		}
		if answer := d.answer(m); answer != nil {
			if _, err := d.conn.WriteTo(answer, from); err != nil {
				return
			}
		}
	}
}

// answer is nil if there is none.
func (d *dns) answer(m dnsmessage.Message) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silent {
		return nil
	}
	q := m.Questions[0]
	host := strings.TrimSuffix(q.Name.String(), ".")
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true},
		Questions: m.Questions}
	add := func(body dnsmessage.ResourceBody) {
		reply.Answers = append(reply.Answers,
			dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
				Body: body})
	}
	switch q.Type {
	case dnsmessage.TypeA:
		d.queries[host]++
		for _, host := range d.hosts[host] {
			add(&dnsmessage.AResource{A: [4]byte(net.ParseIP(host).To4())})
		}
	case dnsmessage.TypeSRV:
		d.queries[host]++
		for i, target := range d.targets[host] {
			host, port, _ := net.SplitHostPort(target)
			number, _ := net.LookupPort("tcp", port)
			add(&dnsmessage.SRVResource{Priority: uint16(i), Port: uint16(number),
				Target: dnsmessage.MustNewName(host + ".")})
		}
	}
	if len(d.hosts[host])+len(d.targets[host]) == 0 {
		reply.RCode = dnsmessage.RCodeNameError
	}
	packed, err := reply.Pack()
	if err != nil {
		d.Errorf("the answer can't be written: %v", err)
	}
	return packed
}

func (d *dns) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// times is how often a name was looked up.
func (d *dns) times(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queries[name]
}

func (d *dns) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", d.conn.LocalAddr().String())
		}}
}

// dial is a Config.Dialer.
func (d *dns) dial(ctx context.Context, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	to := d.leads[address]
	if to == "" {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err == nil {
		d.conns = append(d.conns, conn)
	}
	return conn, err
}

// cut breaks every connection.
func (d *dns) cut() {
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.conns = nil
}

// client makes a client whose only way to the cluster is what d says.
func (d *dns) client(c *cluster, endpoint string, change func(*client.Config)) *client.Client {
	return c.client(func(cfg *client.Config) {
		cfg.Endpoints, cfg.Resolver, cfg.Dialer = []string{endpoint}, d.resolver(), d.dial
		if change != nil {
			change(cfg)
		}
	})
}

// addresses are those that an error names.
func addresses(t testing.TB, err error) (all []string) {
	t.Helper()
	var e *client.Error
	require.ErrorAs(t, err, &e)
	for _, one := range e.Nodes {
		all = append(all, one.Address)
	}
	slices.Sort(all)
	return all
}

// Each address of a name is an endpoint.
func TestANameIsEachOfItsAddresses(t *testing.T) {
	t.Parallel()
	c, ctx := startCluster(t, 1), soon(t)
	for endpoint, want := range map[string]struct{ down, up []string }{
		"dns:///zamok.test": {[]string{"192.0.2.1:5750", "192.0.2.2:5750"},
			[]string{"192.0.2.3:5750"}},
		"dns:///zamok.test:7001": {[]string{"192.0.2.1:7001", "192.0.2.2:7001"},
			[]string{"192.0.2.3:7001"}},
		"srv:///_zamok._tcp.test": {[]string{"n1.test:7001", "n2.test:7002"},
			[]string{"n3.test:7003"}},
		// as Consul has them
		"srv:///zamok.service.dc1": {[]string{"n1.test:7001"}, []string{"n1.test:7002"}},
	} {
		t.Run(endpoint, func(t *testing.T) {
			d := startDNS(t)
			all := append(slices.Clone(want.down), want.up...)
			var hosts []string
			for _, address := range all {
				host, _, _ := net.SplitHostPort(address)
				hosts = append(hosts, host)
			}
			d.change(func() {
				d.hosts = map[string][]string{"zamok.test": hosts}
				d.targets = map[string][]string{"_zamok._tcp.test": all, "zamok.service.dc1": all}
			})
			_, err := d.client(c, endpoint, nil).TryLock(ctx, "x")
			require.ErrorIs(t, err, client.ErrUnavailable)
			require.ErrorContains(t, err, "no endpoint leads to a node",
				"each refuses, so it fails at once")
			d.change(func() { d.leads = map[string]string{want.up[0]: c.nodes[0].Client()} })
			cl := d.client(c, endpoint, nil)
			l, err := cl.TryLock(ctx, "x")
			require.NoError(t, err)
			require.NoError(t, l.Unlock(ctx))

			d.change(func() { d.leads = nil; d.cut() })
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			_, err = admin.New(cl).Now(short)
			require.Subset(t, addresses(t, err), all)
			d.change(func() { d.leads = map[string]string{want.up[0]: c.nodes[0].Client()} })
			hangUp(t, cl)
		})
	}
}

// When all known addresses fail, a name is looked up again: a client gets over a cluster whose
// nodes all have other addresses, and keeps its locks.
func TestANameIsLookedUpAgainWhenAllAddressesFail(t *testing.T) {
	t.Parallel()
	c, d, ctx := startCluster(t, 1), startDNS(t), soon(t)
	at := c.nodes[0].Client()
	d.change(func() {
		d.hosts = map[string][]string{"zamok.test": {"192.0.2.1", "192.0.2.2"}}
		d.leads = map[string]string{"192.0.2.1:5750": at}
	})
	cl := d.client(c, "dns:///zamok.test", nil)
	held, err := cl.Lock(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, 1, d.times("zamok.test"))
	for range 3 {
		_, err := admin.New(cl).Now(ctx)
		require.NoError(t, err)
	}
	d.change(func() {
		require.Equal(t, 1, d.queries["zamok.test"], "it is looked up although a node answers")
		d.hosts["zamok.test"] = []string{"192.0.2.3", "192.0.2.4"}
		d.leads = map[string]string{"192.0.2.4:5750": at}
		d.cut()
	})
	l, err := cl.Lock(ctx, "y")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, held.Unlock(ctx))

	// The addresses of before are left, and the right ones stay if the name can't be looked up any
	// more.
	d.change(func() {
		d.hosts, d.leads = nil, nil
		d.cut()
	})
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err = admin.New(cl).Now(short)
		return strings.Contains(err.Error(), "no such host")
	}, testTimeout, pollEvery)
	named := addresses(t, err)
	require.Contains(t, named, "dns:///zamok.test")
	require.Contains(t, named, "192.0.2.4:5750")
	require.NotContains(t, named, "192.0.2.1:5750")
	require.NotContains(t, named, "192.0.2.2:5750")
	d.change(func() { d.leads = map[string]string{"192.0.2.4:5750": at} })
	_, err = admin.New(cl).Now(ctx)
	require.NoError(t, err)
}

// A name that can't be looked up is a cause that an error lists. It fails no call that may wait,
// and is looked up again, not too often.
func TestANameMayComeLater(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	for name, test := range map[string]struct {
		silent   bool
		endpoint string
		says     string
	}{
		"no such name":    {false, "dns:///zamok.test", "no such host"},
		"no records":      {false, "srv:///_zamok._tcp.test", "no such host"},
		"a silent server": {true, "dns:///zamok.test", "dns:///zamok.test: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, ctx := startDNS(t), soon(t)
			d.change(func() {
				d.silent = test.silent
				d.leads = map[string]string{"192.0.2.1:5750": c.nodes[0].Client(),
					"n1.test:7001": c.nodes[0].Client()}
			})
			cl := d.client(c, test.endpoint,
				func(cfg *client.Config) { cfg.RequestTimeout = 300 * time.Millisecond })
			_, err := cl.TryLock(ctx, name)
			require.ErrorIs(t, err, client.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "it gives up by itself")
			require.ErrorContains(t, err, test.says)
			require.Equal(t, []string{test.endpoint}, addresses(t, err))
			var e *client.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, client.NotDone, e.Outcome)

			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			_, err = cl.Lock(short, name)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, "Lock waits")

			locked := make(chan error, 1)
			began := time.Now()
			go func() { _, err := cl.Lock(ctx, name); locked <- err }()
			require.Eventually(t, func() bool {
				return test.silent || d.times("zamok.test")+d.times("_zamok._tcp.test") > 1
			}, testTimeout, pollEvery)
			d.change(func() {
				require.LessOrEqual(t, d.queries["zamok.test"]+d.queries["_zamok._tcp.test"],
					3+int(time.Since(began)/time.Second))
				d.silent = false
				d.hosts = map[string][]string{"zamok.test": {"192.0.2.1"}}
				d.targets = map[string][]string{"_zamok._tcp.test": {"n1.test:7001"}}
			})
			require.NoError(t, until(t, locked, "the lock"))
		})
	}
}

// certificate is of its own authority, for one name.
func certificate(t testing.TB, name string) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Certificates are for the name that was given, whatever it leads to: what DNS says is not trusted.
func TestCertificatesAreForTheNameThatWasGiven(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t, "zamok.test")
	c, d, ctx := startNodes(t, 1, func(cfg *api.NodeConfig) {
		cfg.ClientTLS = func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{cert}}
		}
	}), startDNS(t), soon(t)
	d.change(func() {
		d.hosts = map[string][]string{"zamok.test": {"192.0.2.1"}, "other.test": {"192.0.2.1"}}
		d.targets = map[string][]string{"_zamok._tcp.zamok.test": {"n1.test:7001"},
			"_zamok._tcp.other.test": {"zamok.test:5750"}}
		d.leads = map[string]string{"192.0.2.1:5750": c.nodes[0].Client(),
			"n1.test:7001": c.nodes[0].Client(), "zamok.test:5750": c.nodes[0].Client()}
	})
	for endpoint, test := range map[string]struct {
		serverName string
		valid      bool
	}{
		"dns:///zamok.test":              {"", true},
		"dns:///other.test":              {"", false},
		"dns:///other.test:5750":         {"zamok.test", true},
		"192.0.2.1":                      {"", false},
		"zamok.test":                     {"", true},
		"srv:///_zamok._tcp.zamok.test":  {"", true},
		"srv:///_zamok._tcp.other.test":  {"", false},
		"srv:///_zamok._tcp.other.test.": {"zamok.test", true},
	} {
		t.Run(endpoint, func(t *testing.T) {
			cl := d.client(c, endpoint, func(cfg *client.Config) {
				cfg.TLS = &tls.Config{RootCAs: pool, ServerName: test.serverName}
			})
			_, err := admin.New(cl).Now(ctx)
			if test.valid {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, client.ErrUnavailable)
			require.ErrorContains(t, err, "certificate")
		})
	}
}

// Authorities and certificates may be renewed while a client runs: each connection is made with the
// newest.
func TestEachConnectionHasTheNewestTLS(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t, "zamok.test")
	c := startNodes(t, 1, func(cfg *api.NodeConfig) {
		cfg.ClientTLS = func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{cert}}
		}
	})
	var newest atomic.Pointer[tls.Config]
	newest.Store(&tls.Config{RootCAs: x509.NewCertPool(), ServerName: "zamok.test"})
	cl := c.client(func(cfg *client.Config) { cfg.GetTLS = newest.Load })
	_, err := admin.New(cl).Now(soon(t))
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.ErrorContains(t, err, "certificate")
	newest.Store(&tls.Config{RootCAs: pool, ServerName: "zamok.test"})
	require.Eventually(t, func() bool {
		_, err := admin.New(cl).Now(soon(t))
		return err == nil
	}, testTimeout, pollEvery)
}

// A host that is given as an address is looked up for each connection, with the client's resolver,
// and the first of its addresses that takes a connection is the endpoint.
func TestAHostHasSeveralAddresses(t *testing.T) {
	t.Parallel()
	c, d, ctx := startCluster(t, 1), startDNS(t), soon(t)
	_, port, err := net.SplitHostPort(c.nodes[0].Client())
	require.NoError(t, err)
	d.change(func() { d.hosts = map[string][]string{"zamok.test": {"127.0.0.2", "127.0.0.1"}} })
	cl := c.client(func(cfg *client.Config) {
		cfg.Endpoints, cfg.Resolver = []string{net.JoinHostPort("zamok.test", port)}, d.resolver()
	})
	_, err = admin.New(cl).Now(ctx)
	require.NoError(t, err)
	require.Positive(t, d.times("zamok.test"))
}

// A look-up that gets no answer leaves a client free to use another endpoint.
func TestASilentNameIsNotWaitedForBesideAnEndpoint(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c, d := startCluster(t, 1), startDNS(t)
	d.change(func() { d.silent = true })
	cl := c.client(func(cfg *client.Config) {
		cfg.Endpoints, cfg.Resolver = []string{"dns:///zamok.test", c.nodes[0].Client()},
			d.resolver()
		cfg.RequestTimeout = 4 * time.Second // the look-up would take longer
	})
	_, err := cl.TryLock(soon(t), "x")
	require.NoError(t, err)
}

func TestANameThatCanNotBeOneIsRefused(t *testing.T) {
	for endpoint, says := range map[string]string{
		"dns:///": "host:port", "dns:///a/b": "host:port",
		"dns://192.0.2.1/zamok.test": "dns:///host", "http://a/b": "host:port",
		"srv:///": "_zamok._tcp", "srv:///_zamok._tcp": "_zamok._tcp.example.com",
		"srv:///zamok.test:5750": "_zamok._tcp",
	} {
		_, err := client.New(client.Config{Endpoints: []string{endpoint}})
		require.ErrorIs(t, err, client.ErrInvalid, endpoint)
		require.ErrorContains(t, err, says)
	}
}
