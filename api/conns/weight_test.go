package conns

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math"
	"math/big"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// memory is what the process has in use, its stacks included.
func memory() int64 {
	h := heap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return h + int64(m.StackInuse)
}

// TestWhatAConnectionTakes: an idle connection takes less than ConnBytes, with TLS as well, and
// after a call with the largest headers, which fill its buffers and tables. The other end is part
// of what is measured.
func TestWhatAConnectionTakes(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	config := &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"h2"}, InsecureSkipVerify: true}
	for name, creds := range map[string]credentials.TransportCredentials{
		"": insecure.NewCredentials(), "TLS": credentials.NewTLS(config)} {
		for _, called := range []bool{false, true} {
			t.Run(strings.TrimSpace(name+map[bool]string{true: " after a call"}[called]),
				func(t *testing.T) {
					const conns = 100
					b := NewBudget(math.MaxInt64, func(string, net.Addr) {})
					l, err := net.Listen("tcp", "127.0.0.1:0")
					require.NoError(t, err)
					of := grpc.NewServer(append(b.Options(creds), grpc.MaxHeaderListSize(16<<10),
						grpc.WriteBufferSize(4<<10),
						grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(1<<20))...)
					of.RegisterService(service(nil), nil)
					go func() { _ = of.Serve(b.Listen(l, conns, nil)) }()
					defer of.Stop()
					before := memory()
					for range conns {
						conn, err := net.Dial("tcp", l.Addr().String())
						require.NoError(t, err)
						defer conn.Close()
						if name != "" {
							conn = tls.Client(conn, config)
						}
						idleConn(t, conn, called)
					}
					each := (memory() - before) / conns
					t.Logf("%d KiB each", each>>10)
					assert.Less(t, each, int64(ConnBytes))
				})
		}
	}
}

// idleConn opens a connection, and makes a call if it is to.
func idleConn(t *testing.T, conn net.Conn, called bool) {
	_, err := io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	c := &rawClient{TB: t, Conn: conn, Framer: http2.NewFramer(conn, conn)}
	require.NoError(t, c.WriteSettings())
	if called {
		require.NoError(t, c.open("big",
			hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 3000)},
			hpack.HeaderField{Name: "y", Value: strings.Repeat("~", 8000), Sensitive: true}))
		require.NoError(t, c.WriteData(c.last, true, encoded(1)))
	}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	for {
		f, err := c.ReadFrame()
		require.NoError(t, err)
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !called && f.IsAck() {
				return
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				return
			}
		}
	}
}
