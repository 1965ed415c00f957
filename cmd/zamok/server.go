package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"zamok/api"
	"zamok/api/visible"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// serverCommand is `zamok server`.
type serverCommand struct {
	app *app

	id, data, cluster             string
	join                          string
	list, joinList                peer.List // --cluster and --join, once validated
	electionTimeout               time.Duration
	listen, peer, http, advertise string
	httpHosts                     []string
	tokenBase                     uint64
	maxConnections                int
	pprof                         bool

	clientTLS, peerTLS tlsFiles
	tlsMinVersion      string
	insecureClients    bool
	insecurePeers      bool
	peerAllowedNames   []string
	access             accessFlags
}

const (
	defaultListen = "5750"
	defaultHTTP   = "5752"
	// defaultPeerPort is the port for peers of a node that is not in --cluster.
	defaultPeerPort = "5751"
)

func newServer(a *app) *cobra.Command {
	v := &serverCommand{app: a}
	cmd := &cobra.Command{
		Use:   "server --id ID --data DIR [--cluster LIST] [--join LIST]",
		Short: "run a node of a cluster",
		Long: `Runs one node. A new cluster bootstraps when all nodes of the --cluster list have
been started with the same list; afterwards the list is ignored. A node that is added to a running
cluster is started with --join. A node that lost its data directory is started with --join and its
old --id: when the lost directory has not replied for 30 seconds, the new one replaces it. With both
flags a node without data bootstraps the cluster if no node of the list has data, and joins it
otherwise, so the same flags can be used at every start.

TERM and INT shut the node down cleanly: a leader transfers its leadership first, and held locks
stay held. A node that cannot continue (its disk fails or stalls, its state differs from that of the
others) logs the reason and exits with 125 at once; a supervisor should restart it after about a
second. A node that was removed from its cluster exits with 118 and must not be restarted with the
same data: with systemd, RestartPreventExitStatus=118. HUP reads the files of rules, tokens, keys
and certificates again, and continues the audit log in a new file.

Nodes on several machines need TLS between them: --peer-cert, --peer-key and --peer-ca, or
--insecure-peers on a network that only the nodes can reach. With peer TLS, a node joins by itself
if the cluster has a member of its name already, or if its name is among --peer-allowed-names of the
members. If the members have that flag without its name, they do not reply to it, and it exits. If
they do not have the flag, it waits until an operator adds it with "zamok join".

Free space for --data below 256 to 384 MiB (the threshold depends on --id) counts as low and is
shown by "zamok members". Unless a majority of the nodes replies and has enough space, new sessions
and acquisitions are refused; a leader with low space transfers its leadership to a node with
enough. Below 32 MiB the node accepts no log entries and /readyz fails until space is freed;
renewals and releases continue while a majority accepts them.

The election timeout adapts to round trips between the nodes and to pauses of their processes, from
250 ms to 2 s. It is raised at once and lowered after five calm minutes. "zamok members" shows it.
Most failovers end a session whose ttl is less than four times as long. --election-timeout fixes it,
also while the node that was started with the flag is down.

Without --rules every client may do everything, so --listen and --http have to be loopback
addresses, unless --insecure-clients is given. Tokens without --rules, tokens beyond loopback
without --tls-cert, and --rules without peer TLS are refused as well, unless --insecure-clients or,
for the last, --insecure-peers is given. If one of these flags allows what would be refused, each
start logs a warning.

The HTTP address serves locks under the same rules, and with the same TLS, as the one for clients;
metrics and health are for everyone. Requests that a browser sends for a page of another site are
refused, and so are those for a host name other than that of --advertise, that of the machine, and
those of --http-host.`,
		Example: `  zamok server --id n1 --data /var/lib/zamok --cluster n1=10.0.0.1:5751,n2=10.0.0.2:5751,n3=10.0.0.3:5751 \
      --peer-cert peer.pem --peer-key peer-key.pem --peer-ca peer-ca.pem
  zamok server --id n4 --data /var/lib/zamok --advertise 10.0.0.4 --join n1=10.0.0.1:5751,n2=10.0.0.2:5751 \
      --peer-cert peer.pem --peer-key peer-key.pem --peer-ca peer-ca.pem
  zamok server --id n1 --data data --cluster n1=127.0.0.1:5751`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
	}
	v.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := v.validate(); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return v.run(cmd.Context())
	}
	return cmd
}

// electionTimeoutMax is a quarter of the default ttl.
const electionTimeoutMin, electionTimeoutMax = 50 * time.Millisecond, 2500 * time.Millisecond

const electionTimeoutHelp = "fixed election timeout of the cluster, 50ms to 2.5s; if nodes give " +
	"different ones, the longest is used (default: adapted, 250ms to 2s)"

func (v *serverCommand) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&v.id, "id", "",
		"stable `name` of this node; a node that lost its data directory rejoins under the same "+
			"name with --join; required")
	f.StringVar(&v.data, "data", "", "data `directory`, created if missing; required")
	f.DurationVar(&v.electionTimeout, "election-timeout", 0, electionTimeoutHelp)
	f.StringVar(&v.cluster, "cluster", "",
		"`list` of the initial members of a new cluster with their peer addresses: "+
			"n1=host:5751,n2=host:5751,…")
	f.StringVar(&v.join, "join", "",
		"`list` of members of a running cluster to join, with their peer addresses: n1=host:5751,…")
	f.StringVar(&v.listen, "listen", defaultListen,
		"listen `address` for clients; a port alone is on loopback, or on all interfaces with "+
			"--rules or --insecure-clients")
	f.StringVar(&v.peer, "peer", "",
		"listen `address` for the other nodes (default: the port that --cluster has for this "+
			"node, or "+defaultPeerPort+
			"; on all interfaces with peer TLS or --insecure-peers, otherwise on loopback)")
	f.StringVar(&v.http, "http", defaultHTTP,
		"listen `address` for HTTP, as --listen and with the TLS of --tls-cert: locks as JSON, "+
			"/metrics, /healthz and /readyz; \"\" disables it")
	f.BoolVar(&v.insecureClients, "insecure-clients", false,
		"allow clients on other machines without --rules, and tokens without --rules or TLS: "+
			"every program that can connect may acquire and release every lock")
	f.StringSliceVar(&v.httpHosts, "http-host", nil,
		"additional host `name` accepted in HTTP requests, such as that of a proxy; repeatable")
	f.BoolVar(&v.pprof, "profile", false,
		"serve /debug/pprof on the HTTP address; with --rules it needs the verb operate")
	f.StringVar(&v.advertise, "advertise", "",
		"`host` under which clients and other nodes reach this node (default: the one in "+
			"--cluster, or the host name)")
	f.Uint64Var(&v.tokenBase, "token-base", 0,
		"issue only tokens above this `number` in a new cluster (default: seconds since 1970 "+
			"× 2²⁰)")
	f.IntVar(&v.maxConnections, "max-connections", 0,
		"maximum `number` of client connections on each port; beyond it, a connection without an "+
			"admitted call is closed for a new one (default 16384, lower with a low memory limit)")
	f.StringVar(&v.clientTLS.cert, "tls-cert", "",
		"certificate for clients, a PEM `file`; enables TLS")
	f.StringVar(&v.clientTLS.key, "tls-key", "", "key of --tls-cert, a PEM `file`")
	f.StringVar(&v.clientTLS.clientCA, "tls-client-ca", "",
		"require a client certificate issued by an authority in this PEM `file`; with --tokens "+
			"or --jwt-keys, a token is enough")
	f.StringVar(&v.tlsMinVersion, "tls-min-version", "1.3",
		"minimum TLS `version` for clients: 1.2 or 1.3; connections between nodes always use 1.3")
	v.access.register(cmd)
	f.StringVar(&v.peerTLS.cert, "peer-cert", "",
		"certificate of this node for the other nodes, with --id as a DNS name, a PEM `file`; "+
			"enables peer TLS")
	f.StringVar(&v.peerTLS.key, "peer-key", "", "key of --peer-cert, a PEM `file`")
	f.StringVar(&v.peerTLS.ca, "peer-ca", "",
		"authorities that issue the certificates of the nodes, a PEM `file`")
	f.StringSliceVar(&v.peerAllowedNames, "peer-allowed-names", nil,
		"accept peers whose certificate has one of these `names`, or patterns such as n*, even "+
			"if they are not members as far as this node knows, and let them join (default: "+
			"members only)")
	f.BoolVar(&v.insecurePeers, "insecure-peers", false,
		"allow peers on other machines, and --rules, without peer TLS: every program that can "+
			"connect to the peer port is trusted")
}

// validate checks the flags.
func (v *serverCommand) validate() (err error) {
	switch {
	case v.id == "":
		return errors.New("--id is missing: give this node a name, such as n1")
	case v.data == "":
		return errors.New("--data is missing: give a directory for the data of this node")
	case v.clientTLS.cert == "" && v.clientTLS.clientCA != "":
		return errors.New("--tls-client-ca requires TLS: give --tls-cert and --tls-key")
	case tlsVersions[v.tlsMinVersion] == 0:
		return fmt.Errorf("--tls-min-version is %q: it must be 1.2 or 1.3", v.tlsMinVersion)
	case (v.peerTLS.cert == "" || v.peerTLS.key == "" || v.peerTLS.ca == "") &&
		v.peerTLS != (tlsFiles{}):
		return errors.New("--peer-cert, --peer-key and --peer-ca go together: a node presents a " +
			"certificate and verifies the others'")
	case v.peerTLS == (tlsFiles{}) && len(v.peerAllowedNames) > 0:
		return errors.New(
			"--peer-allowed-names requires peer TLS: give --peer-cert, --peer-key and --peer-ca")
	}
	if err := peer.CheckID(v.id); err != nil {
		return fmt.Errorf("--id: %w", err)
	}
	if err := peer.CheckAllowedNames(v.peerAllowedNames); err != nil {
		return fmt.Errorf("--peer-allowed-names: %w", err)
	}
	if err := v.access.validate(); err != nil {
		return err
	}
	if e := v.electionTimeout; e != 0 && (e < electionTimeoutMin || e > electionTimeoutMax) {
		return fmt.Errorf(
			"--election-timeout is %v: it must be from %v to %v; with a shorter one every short "+
				"pause causes an election, and with a longer one most failovers end sessions "+
				"with the default ttl", e, electionTimeoutMin, electionTimeoutMax)
	}
	if v.cluster != "" {
		v.list, err = peer.ParseList(v.cluster)
		if err == nil && !v.list.Has(v.id) {
			err = fmt.Errorf("%v must contain every node of the cluster under its --id, also "+
				"this one, %s", v.list, v.id)
		}
		if err != nil {
			return fmt.Errorf("--cluster: %w", err)
		}
	}
	if v.join != "" {
		if v.joinList, err = peer.ParseList(v.join); err != nil {
			return fmt.Errorf("--join: %w", err)
		}
	}
	if err := v.checkPorts(); err != nil || v.cluster != "" {
		return err
	}
	// a failed start leaves files there; without a flag the node would wait forever to be added
	if v.join == "" && !store.IsMember(v.data) {
		return fmt.Errorf(
			"%s has no data of a cluster member, so nothing was started: give --cluster with all "+
				"nodes of a new cluster, or --join with nodes of a running one, also to replace "+
				"a lost disk; if a start with one of them has failed, give the same flag again",
			v.data)
	}
	return nil
}

func (v *serverCommand) run(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	// first, and never undone: an unhandled HUP would end the process
	signal.Notify(hangups, syscall.SIGHUP)
	log := v.app.logger()
	cfg := v.config()
	memory := limitMemory(log, os.DirFS("/"))
	ctx, stop := contextUntil(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	tlsFiles, err := v.secure(&cfg, log)
	if err != nil {
		return err
	}
	defer (&expiryLog{log: log, files: tlsFiles, warned: make(map[expiry]warned)}).watch()()
	all := &reloadSet{}
	if err := v.access.configure(&cfg, log, all); err != nil {
		return err
	}
	memory.apply(&cfg)
	for _, files := range tlsFiles {
		watch(all, files)
	}
	cfg.Files = all.files
	defer all.keepCurrent(hangups)()
	v.logPorts(log)
	log.Info("starting node", "id", v.id, "version", version(), "data", v.data)
	node, err := api.StartNode(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return interruptError(ctx) // while the node waited for the others
		}
		return explainStart(err)
	}
	if err := v.checkMembersAreLocal(node.Raft().Servers()); err != nil {
		return errors.Join(err, node.Close())
	}
	joinRefused := make(chan error, 1)
	if v.join != "" {
		var joining sync.WaitGroup
		defer joining.Wait()
		defer stop()
		joining.Go(func() {
			if err := v.joinUntilVoter(ctx, node); err != nil {
				joinRefused <- err
			}
		})
	}
	select {
	case err := <-joinRefused:
		return errors.Join(err, node.Close())
	case <-node.Done():
		return node.Err()
	case <-ctx.Done():
		log.Info("shutting down", "reason", context.Cause(ctx))
		return node.Close()
	}
}

func (v *serverCommand) config() api.NodeConfig {
	return api.NodeConfig{
		Config: raftnode.Config{
			ID: v.id, Store: store.Config{Dir: v.data},
			Peers: peer.Config{List: v.list, AllowedNames: v.peerAllowedNames},
			Join:  v.joinList, ElectionTimeout: v.electionTimeout, TokenBase: v.tokenBase,
			Version: version(), Logger: v.app.logger(),
			Fatal: func(err error) {
				fmt.Fprintf(v.app.stderr, "zamok: this node exits at once: %s\n",
					visible.Line(err.Error()))
				v.app.exit(fatalExitCode(err))
				runtime.Goexit() // exit returns in a test
			},
		},
		Listen: v.clientListenAddress(), ListenPeers: v.peerListenAddress(),
		ListenHTTP: v.httpListenAddress(), HTTPHosts: v.httpHosts, Profile: v.pprof,
		Advertise: v.advertise, ConnsMax: v.maxConnections,
	}
}

// configFlags are the flags that set fields of a node's configuration.
var configFlags = map[string]string{
	"ID": "--id", "Store.Dir": "--data", "TokenBase": "--token-base",
	"ElectionTimeout": "--election-timeout",
	"Peers.List":      "--cluster", "Join": "--join", "Peers.AllowedNames": "--peer-allowed-names",
	"Peers.TLS": "--peer-cert",
	"Listen":    "--listen", "ListenPeers": "--peer", "ListenHTTP": "--http",
	"ConnsMax": "--max-connections",
}

// startError is why a node did not start, in terms of the command line.
type startError struct{ err error }

func (e *startError) Unwrap() error { return e.err }

func (e *startError) Error() string {
	text := e.err.Error()
	if wrong, ok := errors.AsType[*raftnode.ConfigError](e.err); ok &&
		configFlags[wrong.Field] != "" {
		text = fmt.Sprintf("%s: %v; nothing was started", configFlags[wrong.Field], wrong.Reason)
	}
	switch {
	case errors.Is(e.err, syscall.EADDRINUSE):
		text += "; does another zamok run already? End it, or choose other ports"
	case errors.Is(e.err, fs.ErrPermission):
		text += "; run it as a user with that right, or choose another directory"
	}
	return text
}

// explainStart returns the first error other than context.Canceled, with which the starts of other
// nodes ended because of it.
func explainStart(errs ...error) error {
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, context.Canceled)) {
			first = err
		}
	}
	if first == nil {
		return nil
	}
	return &startError{first}
}
