package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"zamok/api"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// devCommand is `zamok dev`.
type devCommand struct {
	app   *app
	log   *slog.Logger
	nodes int
	data  string
	port  int
}

const (
	devPortDefault = 5750
	devPortStride  = 10 // between one node's ports and the next one's
	// readyTimeout is how long the nodes may take to elect a leader; it usually takes about a
	// second.
	readyTimeout      = 15 * time.Second
	readyPollInterval = 10 * time.Millisecond
)

func newDev(a *app) *cobra.Command {
	v := &devCommand{app: a}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "run a local cluster for development",
		Long: `Runs a cluster in one process, reachable from this machine only, until interrupted.
Data is kept in memory unless --data is given.`,
		Example: "  zamok dev\n  zamok dev --nodes 1 --data ./data",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&v.nodes, "nodes", 3, "`number` of nodes, 1 or 3")
	f.StringVar(&v.data, "data", "", "data `directory` (default: in memory)")
	f.IntVar(&v.port, "port", devPortDefault,
		"first `port`; a node uses three consecutive ports, those of the next node begin 10 higher")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := v.validate(cmd); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return v.run(cmd.Context())
	}
	return cmd
}

func (v *devCommand) validate(cmd *cobra.Command) error {
	v.log = v.app.logger()
	if v.nodes != 1 && v.nodes != 3 {
		return fmt.Errorf("--nodes is %d: it must be 1 or 3", v.nodes)
	}
	if last := v.port + (v.nodes-1)*devPortStride + 2; v.port < 1 || last > 65535 {
		return fmt.Errorf("--port is %d: the ports up to %d must be from 1 to 65535", v.port, last)
	}
	if !cmd.Flags().Changed("log-level") {
		v.log = slog.New(slog.DiscardHandler) // the logs of three nodes would hide the output below
	}
	return nil
}

// address is 127.0.0.1 with the port of a node: 0 for clients, 1 for peers, 2 for HTTP.
func (v *devCommand) address(node, port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(v.port+node*devPortStride+port))
}

func (v *devCommand) run(ctx context.Context) error {
	ctx, stop := signalContext(ctx)
	defer stop()
	nodes, err := v.start(ctx)
	defer func() { v.closeAll(nodes) }()
	if err == nil {
		err = v.awaitLeader(ctx, nodes)
	}
	if err != nil {
		return signalOr(ctx, err)
	}
	v.printBanner()
	ended := make(chan *api.Node, len(nodes))
	for _, n := range nodes {
		go func() { // ends with its node, in closeAll at the latest
			<-n.Done()
			ended <- n
		}()
	}
	for {
		select {
		case n := <-ended:
			if !errors.Is(n.Err(), raftnode.ErrRemoved) {
				return fmt.Errorf("a node has stopped because of an error, so all were stopped: %w",
					n.Err())
			}
			v.log.Warn("a node was removed from the cluster and stopped; the others continue",
				"error", n.Err())
		case <-ctx.Done():
			return interruptError(ctx)
		}
	}
}

// interruptError returns nil if a program that runs until it is interrupted was interrupted.
func interruptError(ctx context.Context) error {
	if e := (*signalError)(nil); errors.As(context.Cause(ctx), &e) && e.signal != syscall.SIGHUP {
		return nil
	}
	return context.Cause(ctx)
}

// start starts all nodes concurrently, since a node of a new cluster waits for the others.
func (v *devCommand) start(ctx context.Context) ([]*api.Node, error) {
	var members []string
	for i := range v.nodes {
		members = append(members, fmt.Sprintf("n%d=%s", i+1, v.address(i, 1)))
	}
	list, err := peer.ParseList(strings.Join(members, ","))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes := make([]*api.Node, v.nodes)
	errs := make([]error, v.nodes)
	var starting sync.WaitGroup
	for i := range nodes {
		starting.Go(func() {
			id := "n" + strconv.Itoa(i+1)
			cfg := api.NodeConfig{
				Config: raftnode.Config{ID: id, Peers: peer.Config{List: list}, Version: version(),
					Logger: v.log.With("node", id)},
				Listen: v.address(i, 0), ListenPeers: v.address(i, 1), ListenHTTP: v.address(i, 2),
			}
			if v.data != "" {
				cfg.Store.Dir = filepath.Join(v.data, id)
			}
			if nodes[i], errs[i] = api.StartNode(ctx, cfg); errs[i] != nil {
				cancel() // the others would wait for it
			}
		})
	}
	starting.Wait()
	var started []*api.Node
	for _, n := range nodes {
		if n != nil {
			started = append(started, n)
		}
	}
	return started, v.explainError(explainStart(errs...))
}

// explainError gives the advice for the flags of this command.
func (v *devCommand) explainError(err error) error {
	if e := (*net.OpError)(nil); errors.As(err, &e) && errors.Is(e, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; is another zamok running? Stop it, or give another --port", e)
	}
	return err
}

// awaitLeader returns when one of the nodes leads.
func (v *devCommand) awaitLeader(ctx context.Context, nodes []*api.Node) error {
	timeoutErr := fmt.Errorf("no leader was elected within %v: is this machine too busy?",
		readyTimeout)
	if v.data != "" {
		timeoutErr = fmt.Errorf("%w Or was %s created with another --port or --nodes? Then give "+
			"the same again", timeoutErr, v.data)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, timeoutErr)
	defer cancel()
	poll := time.NewTicker(readyPollInterval)
	defer poll.Stop()
	for {
		for _, n := range nodes {
			if n.Raft().Status().Leading {
				return nil
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// closeAll stops all nodes concurrently. No node is left to take over the leadership: one that
// stopped after the others would wait for them in vain.
func (v *devCommand) closeAll(nodes []*api.Node) {
	var closing sync.WaitGroup
	for _, n := range nodes {
		closing.Go(func() {
			if err := n.Close(); err != nil {
				v.log.Warn("a node did not shut down cleanly", "error", err)
			}
		})
	}
	closing.Wait()
}

// printBanner prints the addresses and commands to try.
func (v *devCommand) printBanner() {
	var endpoints, pages []string
	for i := range v.nodes {
		endpoints = append(endpoints, v.address(i, 0))
		pages = append(pages, "http://"+v.address(i, 2))
	}
	flag := ""
	if v.port != devPortDefault {
		flag = " --endpoints " + endpoints[0]
	}
	data := "in memory, until this program ends"
	if v.data != "" {
		data = v.data
	}
	fmt.Fprintf(v.app.stdout, `zamok is ready: %d node(s) on this machine.

  clients   %s
  HTTP      %s
  data      %s

Try this, in two other terminals at once:

  %s lock%s stock -- sh -c 'echo "I hold it, token $ZAMOK_LOCK_TOKEN"; sleep 5'

Or with curl, which holds it until Ctrl-C:

  curl -N '%s/v1/hold?name=stock'

Ctrl-C stops the cluster.
`, v.nodes, strings.Join(endpoints, ", "), strings.Join(pages, ", "), data, v.app.name, flag,
		pages[0])
}
