//go:build unix

package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// parseServer reads the flags of a server; files that they name need not exist.
func parseServer(t *testing.T, flags ...string) (v *serverCommand, log string, err error) {
	t.Helper()
	v = &serverCommand{app: &app{}}
	cmd := &cobra.Command{}
	v.register(cmd)
	require.NoError(t, cmd.ParseFlags(flags))
	if err := v.validate(); err != nil {
		return nil, "", err
	}
	var lines strings.Builder
	v.logPorts(slog.New(slog.NewTextHandler(&lines, nil)))
	return v, lines.String(), nil
}

// The flags of portTests, what warnings and refusals say, and where a server listens.
const (
	rulesFlag, tokensFlag, jwtFlags = "--rules r", "--tokens t", "--jwt-keys k --jwt-issuer i"
	clientTLSFlags                  = "--tls-cert c --tls-key k"
	clientCAFlags                   = clientTLSFlags + " --tls-client-ca a"
	peerTLSFlags                    = "--peer-cert c --peer-key k --peer-ca a"
	insecureClientsFlag             = "--insecure-clients"
	insecurePeersFlag               = "--insecure-peers"

	everybodyMay  = "every program that can connect may acquire"
	tokensInPlain = "can use the tokens"
	peersOpen     = "change the state of the cluster"
	actAs         = "can act as every identity"

	closedClients, openClients = "127.0.0.1:5750 127.0.0.1:5752", ":5750 :5752"
	closedPeer, openPeer       = " 127.0.0.1:5751", " :5751"
)

// portTests are the cases of TestWhichPortsAreOpen.
var portTests = map[string]struct {
	flags  string
	listen string   // of clients, HTTP and peers; "" = the start is refused
	says   []string // in one warning, or in the refusal
}{
	"nothing": {"", closedClients + closedPeer, nil},

	"all interfaces": {"--listen :5750", "",
		[]string{"--listen: :5750", everybodyMay, "give --rules, or --insecure-clients"}},
	"all of IPv4": {"--listen 0.0.0.0:5750", "",
		[]string{"--listen: 0.0.0.0:5750", everybodyMay}},
	"all of IPv6": {"--listen [::]:5750", "",
		[]string{"--listen: [::]:5750", everybodyMay}},
	"an address": {"--listen 10.0.0.1:5750", "",
		[]string{"--listen: 10.0.0.1:5750", everybodyMay}},
	"a name": {"--listen db1.example:5750", "",
		[]string{"--listen: db1.example:5750", everybodyMay}},
	"HTTP": {"--http :5752", "",
		[]string{"--http: :5752", everybodyMay, "give --rules, or --insecure-clients"}},
	"a zone": {"--http [fe80::1%lo]:5752", "",
		[]string{"--http: [fe80::1%lo]:5752"}},
	"certificates alone": {clientCAFlags + " --listen :5750", "",
		[]string{"every program with a certificate of --tls-client-ca may"}},
	"TLS alone": {clientTLSFlags + " --listen :5750", "", []string{everybodyMay}},
	"neither": {"--listen db1", "",
		[]string{`--listen is "db1": it must be HOST:PORT or a port`}},
	"not a port":      {"--http 123456", "", []string{"--http is \"123456\""}},
	"not a peer port": {"--peer db1", "", []string{"--peer is \"db1\""}},
	"localhost": {"--listen localhost:1 --http localhost:2 --peer localhost:3",
		"localhost:1 localhost:2 localhost:3", nil},
	"IPv6": {"--listen [::1]:1 --http [::1]:2 --peer [::1]:3",
		"[::1]:1 [::1]:2 [::1]:3", nil},
	"another loopback": {"--listen 127.0.3.1:1",
		"127.0.3.1:1 127.0.0.1:5752" + closedPeer, nil},
	"ports alone": {"--listen 1 --http 2 --peer 3",
		"127.0.0.1:1 127.0.0.1:2 127.0.0.1:3", nil},
	"no HTTP": {"--http=", "127.0.0.1:5750 " + closedPeer, nil},
	"insecure": {insecureClientsFlag, openClients + closedPeer,
		[]string{insecureClientsFlag, everybodyMay, "give --rules"}},
	"insecure HTTP only": {insecureClientsFlag + " --listen 127.0.0.1:1 --http :2",
		"127.0.0.1:1 :2" + closedPeer, []string{everybodyMay}},
	"insecure, on a port": {insecureClientsFlag + " --listen 1 --http=", ":1 " + closedPeer,
		[]string{everybodyMay}},
	"insecure on loopback": {insecureClientsFlag + " --listen 127.0.0.1:1 --http=",
		"127.0.0.1:1 " + closedPeer, nil},
	"an open port by rules": {rulesFlag + " " + clientTLSFlags + " " + peerTLSFlags + " --listen 1",
		":1 :5752 :5751", nil},
	"with rules on loopback": {rulesFlag + " " + peerTLSFlags + " --listen 127.0.0.1:1 --http=",
		"127.0.0.1:1  :5751", nil},

	"tokens alone": {tokensFlag, "",
		[]string{"--tokens is given without --rules", everybodyMay,
			"give --rules, or --insecure-clients"}},
	"JWTs alone": {jwtFlags, "",
		[]string{"--jwt-keys is given without --rules", everybodyMay}},
	"tokens over TLS": {tokensFlag + " " + clientCAFlags, "",
		[]string{"every program with a certificate of --tls-client-ca or a token may"}},
	"tokens in plain": {tokensFlag + " " + rulesFlag + " " + peerTLSFlags, "",
		[]string{"--listen: :5750", "--tokens is given without TLS", tokensInPlain,
			"give --tls-cert and --tls-key, or --insecure-clients"}},
	"JWTs in plain": {jwtFlags + " " + rulesFlag + " " + peerTLSFlags + " --listen 127.0.0.1:1",
		"", []string{"--http: :5752", "--jwt-keys is given without TLS", tokensInPlain}},
	"tokens in plain, loopback": {tokensFlag + " " + rulesFlag + " " + peerTLSFlags +
		" --listen 127.0.0.1:1 --http [::1]:2", "127.0.0.1:1 [::1]:2 :5751", nil},
	"tokens behind a proxy": {
		tokensFlag + " " + rulesFlag + " " + peerTLSFlags + " " + insecureClientsFlag,
		openClients + openPeer, []string{insecureClientsFlag, tokensInPlain, "give --tls-cert"}},
	"insecure tokens": {tokensFlag + " " + insecureClientsFlag, openClients + closedPeer,
		[]string{everybodyMay, tokensInPlain, "give --rules, --tls-cert and --tls-key"}},
	"insecure tokens, loopback": {tokensFlag + " " + insecureClientsFlag +
		" --listen 127.0.0.1:1 --http=", "127.0.0.1:1 " + closedPeer, []string{everybodyMay}},
	"rules in plain": {rulesFlag + " " + peerTLSFlags, openClients + openPeer,
		[]string{"clients on other machines have no TLS"}},

	"rules": {rulesFlag, "",
		[]string{"--rules is given without peer TLS", actAs,
			"give --peer-cert, --peer-key and --peer-ca, or --insecure-peers"}},
	"rules on loopback": {rulesFlag +
		" --listen 127.0.0.1:1 --http= --cluster n1=127.0.0.1:5751", "", []string{actAs}},
	"rules, insecure": {rulesFlag + " " + insecurePeersFlag + " --listen 127.0.0.1:1 --http=",
		"127.0.0.1:1 " + openPeer, []string{insecurePeersFlag, peersOpen, actAs}},
	"rules on one machine": {rulesFlag + " " + insecurePeersFlag +
		" --listen 127.0.0.1:1 --http= --cluster n1=127.0.0.1:7001",
		"127.0.0.1:1  127.0.0.1:7001", []string{insecurePeersFlag, actAs}},
	"rules, other insecure": {rulesFlag + " " + insecureClientsFlag, "", []string{actAs}},
	"all": {rulesFlag + " " + tokensFlag + " " + clientCAFlags + " " + peerTLSFlags,
		openClients + openPeer, nil},
	"all, and both flags": {
		rulesFlag + " " + tokensFlag + " " + clientCAFlags + " " + peerTLSFlags + " " +
			insecureClientsFlag + " " + insecurePeersFlag, openClients + openPeer, nil},
	"open clients, no peers": {insecurePeersFlag + " --listen :5750", "", []string{everybodyMay}},

	"a list":         {"--cluster n1=127.0.0.1:7001", closedClients + " 127.0.0.1:7001", nil},
	"a list on IPv6": {"--cluster n1=[::1]:7001", closedClients + " [::1]:7001", nil},
	"another address": {"--cluster n1=127.0.0.1:7001 --peer 127.0.0.2:7002",
		closedClients + " 127.0.0.2:7002", nil},
	"a list with TLS": {"--cluster n1=10.0.0.1:7001 " + peerTLSFlags,
		closedClients + " :7001", nil},
	"a local list with TLS": {"--cluster n1=127.0.0.1:7001 " + peerTLSFlags,
		closedClients + " 127.0.0.1:7001", nil},
	"peers": {"--peer :5751", "",
		[]string{"--peer: :5751", peersOpen,
			"give --peer-cert, --peer-key and --peer-ca, or --insecure-peers"}},
	"a far list": {"--cluster n1=127.0.0.1:1,n2=10.0.0.2:1", "",
		[]string{"--cluster: 10.0.0.2:1", peersOpen}},
	"a far one to join": {"--join n2=db.example:1", "",
		[]string{"--join: db.example:1", peersOpen}},
	"a far list, insecure": {"--cluster n1=10.0.0.1:7001 " + insecurePeersFlag,
		closedClients + " :7001", []string{insecurePeersFlag, peersOpen}},
	"no list, insecure":     {insecurePeersFlag, closedClients + openPeer, []string{peersOpen}},
	"peers, other insecure": {insecureClientsFlag + " --peer :5751", "", []string{peersOpen}},
}

// What is unchecked is out of reach of other machines, and what would be checked in appearance only
// is refused; unless a flag accepts it, and then a warning says so.
func TestWhichPortsAreOpen(t *testing.T) {
	for name, test := range portTests {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			// as of a member
			require.NoError(t, os.WriteFile(filepath.Join(data, "identity.json"), nil, 0o600))
			v, log, err := parseServer(t,
				append(strings.Fields(test.flags), "--id", "n1", "--data", data)...)
			if test.listen == "" {
				require.Error(t, err)
				log = err.Error()
			} else {
				require.NoError(t, err)
				require.Equal(t, test.listen,
					v.clientListenAddress()+" "+v.httpListenAddress()+" "+v.peerListenAddress())
				require.Equal(t, min(len(test.says), 1), strings.Count(log, "level=WARN"), log)
			}
			for _, text := range test.says {
				require.Contains(t, log, text)
			}
		})
	}
}

// With both flags and nothing else there are two warnings, one for each.
func TestEachInsecureFlagIsWarnedOf(t *testing.T) {
	_, log, err := parseServer(t, "--id", "n1", "--data", "d", "--cluster", "n1=10.0.0.1:5751",
		"--insecure-clients", "--insecure-peers")
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(log, "level=WARN"), log)
}

// Without flags, other machines reach no port. On Linux all of 127.0.0.0/8 is this machine, so who
// listens on all interfaces listens on 127.0.0.2, too.
func TestADefaultServerIsClosed(t *testing.T) {
	t.Parallel()
	port := freePorts(t)
	at := func(host string, i int) string { return net.JoinHostPort(host, strconv.Itoa(port+i)) }
	node := startZamok(t, nil, "server", "--id", "n1", "--data", t.TempDir(), "--cluster",
		"n1="+at("127.0.0.1", 1),
		"--listen", strconv.Itoa(port), "--http", strconv.Itoa(port+2))
	node.awaitOutput(t, "serving clients")
	for i := range 3 {
		for host, open := range map[string]bool{"127.0.0.1": true, "127.0.0.2": false} {
			conn, err := net.Dial("tcp", at(host, i))
			require.Equal(t, open, err == nil, "%s: %v", at(host, i), err)
			if err == nil {
				conn.Close()
			}
		}
	}
	require.NotContains(t, node.stderr.String(), "--insecure")
	require.NoError(t, node.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, node.wait(t).code)
}

// The nodes that the documents describe for several machines start, and only callers that are
// checked reach them.
func TestTheDocumentedDeploymentIsClosed(t *testing.T) {
	unit := string(readFile(t, filepath.Join(repositoryRoot, "deploy/zamok.service")))
	operations := string(readFile(t, filepath.Join(repositoryRoot, "docs/operations.md")))
	access := string(readFile(t, filepath.Join(repositoryRoot, "docs/guide/access.md")))
	variables := map[string]string{}
	for _, m := range regexp.MustCompile(
		`(?m)^Environment="(ZAMOK_\w+)=(.*)"$`).FindAllStringSubmatch(unit, -1) {
		variables[m[1]] = m[2]
	}
	exec := regexp.MustCompile(
		`(?m)^ExecStart=/usr/local/bin/(zamok server .*)$`).FindStringSubmatch(unit)[1]
	flags := regexp.MustCompile(`ZAMOK_FLAGS=(.*)`)
	commands := map[string]string{}
	for name, text := range map[string]string{"the unit's comment": unit,
		"operations.md": operations} {
		variables["ZAMOK_FLAGS"] = flags.FindStringSubmatch(text)[1]
		commands[name] = os.Expand(exec, func(name string) string { return variables[name] })
	}
	command := regexp.MustCompile(`(?m)^zamok server ((?:.*\\\n)*.*)$`)
	for name, text := range map[string]string{"operations.md": operations, "access.md": access} {
		for i, m := range command.FindAllStringSubmatch(text, -1) {
			commands[name+" "+strconv.Itoa(i+1)] = strings.ReplaceAll(m[0], "\\\n", " ")
		}
	}
	require.Greater(t, len(commands), 4)
	for name, command := range commands {
		words := strings.Fields(strings.ReplaceAll(command, "…",
			"--id n1 --data d --cluster n1=10.0.0.1:5751"))[2:]
		i := len(words)
		for j, w := range words {
			if w == "--log-format" { // a flag of all verbs
				i = j
			}
		}
		if i < len(words) {
			words = append(words[:i:i], words[i+2:]...)
		}
		v, log, err := parseServer(t, words...)
		require.NoError(t, err, "%s: %s", name, command)
		require.Empty(t, v.clientExposures(), "%s: %s", name, command)
		require.Empty(t, v.peerExposures(), "%s: %s", name, command)
		require.NotContains(t, log, "level=WARN", "%s: %s", name, command)
		require.False(t, strings.Contains(name, "unit") && v.clientsAreLocal(), command)
	}
}
