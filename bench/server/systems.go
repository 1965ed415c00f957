package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const loopback = "127.0.0.1:"

// Programs are the paths of programs that are built, not installed.
type Programs struct {
	Zamok  string // the built command
	Etcd   string
	Consul string
	Self   string // this program, for the echo
}

// system is how to start one kind of server, and how to find its leader.
type system struct {
	nodes   int // the usual number
	command func(n node, all []node) (command, error)

	read func(ctx context.Context, n node, value string) (float64, error) // a value of a node
	// which is 1 on the leader; "" if nothing leads
	leads string
	// which counts changes of the leader; "" if unknown
	changes string
}

// systems are all kinds of servers.
func systems(p Programs) map[string]system {
	zamok := func(flags ...string) system { // `zamok server` with the defaults
		return system{nodes: 3, leads: "zamok_raft_leader",
			changes: "zamok_raft_leader_changes_total",
			read: func(ctx context.Context, n node, value string) (float64, error) {
				return readMetric(ctx, n.http, value)
			},
			command: func(n node, all []node) (command, error) {
				return command{path: p.Zamok,
					args: append([]string{"server", "--id", n.name, "--data", n.data, "--cluster",
						members(all, ""),
						"--listen", n.client, "--peer", n.peer, "--http", n.http}, flags...)}, nil
			}}
	}
	etcd := func(n node, all []node) (command, error) {
		client, peer := "http://"+n.client, "http://"+n.peer
		return command{path: p.Etcd,
			args: []string{"--name", n.name, "--data-dir", n.data, "--log-level", "error",
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
				"--initial-cluster", members(all, "http://"), "--initial-cluster-state",
				"new"}}, nil
	}
	redis := func(flags ...string) system {
		return system{nodes: 1, command: func(n node, _ []node) (command, error) {
			return command{path: "redis-server",
				args: append([]string{"--port", n.ports[0], "--bind", "127.0.0.1", "--dir", n.data,
					"--save", "", "--maxclients", "12000"}, flags...)}, nil
		}}
	}
	echo := func(n node, _ []node) (command, error) { // replies to every frame and stores nothing
		return command{path: p.Self, args: []string{"echo", n.client}}, nil
	}
	return map[string]system{
		"zamok": zamok(),
		"etcd": {nodes: 3, command: etcd, leads: "etcd_server_is_leader",
			changes: "etcd_server_leader_changes_seen_total",
			read: func(ctx context.Context, n node, value string) (float64, error) {
				return readMetric(ctx, n.client, value)
			}},
		"zookeeper": {nodes: 3, command: zookeeper, leads: "Mode: leader", read: readZooKeeper},
		"redis-aof": redis("--appendonly", "yes", "--appendfsync", "always"),
		"redis-mem": redis(),
		"postgres":  {nodes: 1, command: postgres},
		// not compared: for the tests of package migrate
		"consul": {nodes: 1, command: func(n node, _ []node) (command, error) {
			return command{path: p.Consul,
				args: []string{"agent", "-dev", "-bind", "127.0.0.1", "-log-level", "warn",
					"-http-port", n.ports[0],
					"-server-port", n.ports[1], "-serf-lan-port", n.ports[2],
					"-serf-wan-port", "-1",
					"-dns-port", "-1", "-grpc-port", "-1",
					"-grpc-tls-port", "-1"}}, nil
		}},
		"echo": {nodes: 1, command: echo},
	}
}

// members is the list of nodes in the form of zamok and etcd.
func members(all []node, scheme string) string {
	var list []string
	for _, n := range all {
		list = append(list, n.name+"="+scheme+n.peer)
	}
	return strings.Join(list, ",")
}

const (
	pageBytesMax  = 8 << 20         // of a response of a node
	metricTimeout = 5 * time.Second // an overloaded node responds late
)

// readMetric reads one line of a page of metrics.
func readMetric(ctx context.Context, address, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, metricTimeout)
	defer cancel()
	url := "http://" + address + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, pageBytesMax))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", url, name)
}

// The default of ZooKeeper's own start script.
const zookeeperHeap = "-Xmx1000m"

func zookeeper(n node, all []node) (command, error) {
	const jar = "/usr/share/java/zookeeper.jar"
	if _, err := os.Stat(jar); err != nil {
		return command{}, err
	}
	config := fmt.Sprintf(
		"tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n"+
			"4lw.commands.whitelist=srvr\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%s\n",
		n.data, n.ports[0])
	for _, m := range all {
		config += fmt.Sprintf("server.%d=%s:%s\n", m.number, m.peer, m.ports[2])
	}
	if err := os.WriteFile(filepath.Join(n.data, "myid"), fmt.Appendln(nil, n.number),
		0o644); err != nil {
		return command{}, err
	}
	file := filepath.Join(n.data, "zoo.cfg")
	return command{path: "java",
			args: []string{zookeeperHeap, "-cp", jar,
				"org.apache.zookeeper.server.quorum.QuorumPeerMain", file}},
		os.WriteFile(file, []byte(config), 0o644)
}

// readZooKeeper returns 1 if a node's reply to srvr contains a text, and 0 otherwise.
func readZooKeeper(ctx context.Context, n node, text string) (float64, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", n.client)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return 0, err
	}
	description, err := io.ReadAll(io.LimitReader(conn, pageBytesMax))
	if strings.Contains(string(description), text) {
		return 1, err
	}
	return 0, err
}

// postgresConnections is a few more than the workloads need: each is a process.
const postgresConnections = "1200"

func postgres(n node, _ []node) (command, error) {
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(programs) == 0 {
		return command{}, fmt.Errorf("PostgreSQL is not installed (%v)", err)
	}
	bin := programs[len(programs)-1]
	var asOwner []string // it refuses to run as root
	if os.Getuid() == 0 {
		if out, err := exec.Command("chown", "postgres:postgres", n.data).CombinedOutput(); err !=
			nil {
			return command{}, fmt.Errorf("chown: %w: %s", err, out)
		}
		asOwner = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"}
	}
	create := append(asOwner, filepath.Join(bin, "initdb"), "-D", n.data, "-U", "bench", "-A",
		"trust", "-E", "UTF8", "--locale=C")
	initdb := exec.Command(create[0], create[1:]...)
	initdb.Dir = n.data
	if out, err := initdb.CombinedOutput(); err != nil {
		return command{}, fmt.Errorf("initdb: %w: %s", err, out)
	}
	serve := append(asOwner, filepath.Join(bin, "postgres"), "-D", n.data, "-p", n.ports[0], "-c",
		"listen_addresses=127.0.0.1", "-k", n.data,
		"-c", "max_connections="+postgresConnections)
	return command{path: serve[0], args: serve[1:], stopSignal: syscall.SIGINT}, nil
}
