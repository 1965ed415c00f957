package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const nodes = 3

func loopback(port string) string { return "127.0.0.1:" + port }

// threeNodes starts nodes n1 to n3 of one program. scheme stands before its peers' addresses, args gives the
// arguments of one node, and the metric leads is 1 on the leader.
func threeNodes(dir, program, scheme, leads, changes string, args func(n node) []string) (*Cluster, error) {
	ports, err := freePorts(3 * nodes)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	var all []node
	var members []string
	for i := range nodes {
		n := node{name: fmt.Sprintf("n%d", i+1), client: loopback(ports[3*i]), peer: scheme + loopback(ports[3*i+1]), http: loopback(ports[3*i+2])}
		n.data = filepath.Join(dir, n.name)
		all = append(all, n)
		members = append(members, n.name+"="+n.peer)
		c.Endpoints = append(c.Endpoints, n.client)
	}
	metric := func(ctx context.Context, i int, name string) (float64, error) {
		// etcd serves its metrics to clients, zamok on a port of its own.
		address := all[i].http
		if scheme != "" {
			address = all[i].client
		}
		return readMetric(ctx, "http://"+address+"/metrics", name)
	}
	c.isLeader = func(ctx context.Context, i int) (bool, error) {
		value, err := metric(ctx, i, leads)
		return value == 1, err
	}
	c.leaderChanges = func(ctx context.Context, i int) (float64, error) { return metric(ctx, i, changes) }
	var commands []command
	for _, n := range all {
		n.cluster = strings.Join(members, ",")
		commands = append(commands, command{name: n.name, path: program, args: args(n)})
	}
	return c.run(dir, commands...)
}

// node is what one node of three is started with.
type node struct{ name, data, client, peer, http, cluster string }

// startZamok starts three processes of `zamok server` with the defaults.
func startZamok(dir, program string, flags ...string) (*Cluster, error) {
	return threeNodes(dir, program, "", "zamok_raft_leader", "zamok_raft_leader_changes_total", func(n node) []string {
		return append([]string{"server", "--id", n.name, "--data", n.data, "--cluster", n.cluster,
			"--listen", n.client, "--peer", n.peer, "--http", n.http}, flags...)
	})
}

func startEtcd(dir, program string) (*Cluster, error) {
	return threeNodes(dir, program, "http://", "etcd_server_is_leader", "etcd_server_leader_changes_seen_total", func(n node) []string {
		client := "http://" + n.client
		return []string{"--name", n.name, "--data-dir", n.data, "--log-level", "error",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", n.peer, "--initial-advertise-peer-urls", n.peer,
			"--initial-cluster", n.cluster, "--initial-cluster-state", "new"}
	})
}

// The default of ZooKeeper's own start script.
const zookeeperHeap = "-Xmx1000m"

func startZooKeeper(dir string) (*Cluster, error) {
	const jar = "/usr/share/java/zookeeper.jar"
	if _, err := os.Stat(jar); err != nil {
		return nil, err
	}
	ports, err := freePorts(3 * nodes)
	if err != nil {
		return nil, err
	}
	members := ""
	for i := range nodes {
		members += fmt.Sprintf("server.%d=127.0.0.1:%s:%s\n", i+1, ports[3*i+1], ports[3*i+2])
	}
	c := &Cluster{}
	var commands []command
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		data := filepath.Join(dir, name)
		if err := os.Mkdir(data, 0o755); err != nil {
			return nil, err
		}
		config := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n"+
			"4lw.commands.whitelist=srvr\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%s\n%s",
			data, ports[3*i], members)
		if err := os.WriteFile(filepath.Join(data, "myid"), fmt.Appendln(nil, i+1), 0o644); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(data, "zoo.cfg"), []byte(config), 0o644); err != nil {
			return nil, err
		}
		c.Endpoints = append(c.Endpoints, loopback(ports[3*i]))
		commands = append(commands, command{name: name, path: "java", args: []string{zookeeperHeap, "-cp", jar,
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(data, "zoo.cfg")}})
	}
	c.isLeader = func(ctx context.Context, node int) (bool, error) { return zookeeperIsLeader(ctx, c.Endpoints[node]) }
	return c.run(dir, commands...)
}

func zookeeperIsLeader(ctx context.Context, address string) (bool, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return false, err
	}
	text, err := io.ReadAll(io.LimitReader(conn, metricsMax))
	return strings.Contains(string(text), "Mode: leader"), err
}

func startRedis(dir string, durable bool) (*Cluster, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	args := []string{"--port", ports[0], "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--maxclients", "12000"}
	if durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	c := &Cluster{Endpoints: []string{loopback(ports[0])}}
	return c.run(dir, command{name: "redis", path: "redis-server", args: args})
}

// postgresConnections is as many as PostgreSQL's users would let it have, and a few more than the
// workloads need: each is a process.
const postgresConnections = "1200"

func startPostgres(dir string) (*Cluster, error) {
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(programs) == 0 {
		return nil, fmt.Errorf("PostgreSQL is not installed (%v)", err)
	}
	bin := programs[len(programs)-1]
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	var asOwner []string // it refuses to run as root
	if os.Getuid() == 0 {
		if out, err := exec.Command("chown", "postgres:postgres", data).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("chown: %w: %s", err, out)
		}
		asOwner = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"}
	}
	create := append(asOwner, filepath.Join(bin, "initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C")
	initdb := exec.Command(create[0], create[1:]...)
	initdb.Dir = data
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	serve := append(asOwner, filepath.Join(bin, "postgres"), "-D", data, "-p", ports[0], "-c", "listen_addresses=127.0.0.1", "-k", data,
		"-c", "max_connections="+postgresConnections)
	c := &Cluster{Endpoints: []string{loopback(ports[0])}}
	return c.run(dir, command{name: "postgres", path: serve[0], args: serve[1:], stopSignal: syscall.SIGINT})
}

// startEcho starts this program as a server that answers every frame and keeps nothing.
func startEcho(dir, program string) (*Cluster, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Endpoints: []string{loopback(ports[0])}}
	return c.run(dir, command{name: "echo", path: program, args: []string{"echo", loopback(ports[0])}})
}
