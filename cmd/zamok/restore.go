package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// restoreCommand is `zamok restore`.
type restoreCommand struct {
	app       *app
	id, data  string
	cluster   string
	tokenBase uint64
	holdOff   time.Duration
}

func newRestore(a *app) *cobra.Command {
	v := &restoreCommand{app: a}
	cmd := &cobra.Command{
		Use:   "restore FILE --id ID --data DIR --cluster ID=HOST:5751",
		Short: "create the first node of a new cluster from a backup",
		Long: `Creates the data directory of a new single-node cluster from a backup. It contacts no
other node. Then start the node with the same three flags; further nodes join it.

ALL NODES OF THE OLD CLUSTER MUST BE STOPPED AND STAY STOPPED: restore is for the loss of a majority
of the disks. A backup preserves the tokens, so that storage which remembers old tokens accepts the
new ones: every token of the new cluster is above all that the old cluster can have issued. Locks
and sessions are not restored; clients open new sessions. Because clients of the old cluster may
still hold valid leases, nothing is granted during the restore hold-off. It lasts for the longest
ttl that the old cluster ever allowed before the backup was taken ("zamok settings"), and a minute:
1h1m unless that was raised. --hold-off sets another time: a shorter one if you know that no lease
is longer, or a longer one if the longest ttl was raised after the backup. It is never less than the
longest lease and delay in the backup.

A backup may be restored again. Each restore issues tokens above those of earlier restores, as
measured by this machine's clock, so set the clock first. If an earlier restore was made on a
machine whose clock was ahead, pass its last token as --token-base. Only one restored cluster may be
in use: stop it before you start another.`,
		Example: "  zamok restore locks.zamok --id r1 --data /var/lib/zamok --cluster " +
			"r1=db1.example:5751",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := v.parseNode()
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return v.restore(args[0], node)
		},
	}
	f := cmd.Flags()
	f.StringVar(&v.id, "id", "",
		"`name` of the node, which no node of the old cluster has had; required")
	f.StringVar(&v.data, "data", "", "data `directory`, which must be missing or empty; required")
	f.StringVar(&v.cluster, "cluster", "",
		"name and peer address of the node: `ID=HOST:5751`, exactly one; required")
	f.Uint64Var(&v.tokenBase, "token-base", 0,
		"issue only tokens above this `number` (they are always above seconds since 1970 × 2²⁰)")
	f.DurationVar(&v.holdOff, "hold-off", 0,
		"restore hold-off: time during which nothing is granted (default: the longest ttl that "+
			"the backup contains, and 1m)")
	return cmd
}

func (v *restoreCommand) parseNode() (peer.Node, error) {
	list, err := peer.ParseList(v.cluster)
	switch {
	case v.id == "" || v.data == "" || v.cluster == "":
		return peer.Node{}, errors.New(
			"give --id, --data and --cluster, as for the server that will be started")
	case err != nil:
		return peer.Node{}, fmt.Errorf("--cluster: %w", err)
	case len(list.Nodes()) != 1 || list.Nodes()[0].ID != v.id:
		return peer.Node{}, fmt.Errorf(
			"--cluster is %v: name %s alone; the others join when it runs", list, v.id)
	case v.holdOff < 0 || v.holdOff > fsm.HoldOffMax.Duration():
		return peer.Node{}, fmt.Errorf("--hold-off is %v: it must be from 0 to %v", v.holdOff,
			fsm.HoldOffMax)
	}
	return list.Nodes()[0], nil
}

func (v *restoreCommand) restore(path string, node peer.Node) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // it was only read
	restored, err := raftnode.Restore(bufio.NewReader(file), raftnode.RestoreConfig{
		Node: node, Dir: v.data, Above: v.tokenBase, HoldOff: clock.FromDuration(v.holdOff),
	})
	if err != nil {
		return err
	}
	doc := struct {
		Cluster string `json:"cluster"`
		Node    string `json:"node"`
		Data    string `json:"data"`
		// every token of the new cluster is above it
		TokenBase uint64 `json:"token_base,string"`
		// how long no lock is granted, from the first start on
		HoldOff view.Duration `json:"hold_off"`
	}{restored.Cluster.String(), node.ID, v.data, restored.Index,
		view.Duration(restored.HoldOff.Duration())}
	return v.app.print(doc, func(w io.Writer) {
		fmt.Fprintf(w, `%s holds a new cluster of one node, %s. Its tokens are above %d.
It grants no lock for its first %s, until the leases of the old cluster have
expired. If the longest ttl was raised after this backup was taken (zamok settings),
that is too short: empty the directory, and restore again with --hold-off.

Start it, when all nodes of the old cluster have ended for good:

  zamok server --id %s --data %s --cluster %v
`, visible.Line(v.data), node.ID, restored.Index, time.Duration(doc.HoldOff), node.ID,
			shellQuote(v.data), v.cluster)
		if !isLoopbackAddress(node.Address) {
			fmt.Fprint(w, `
Add --peer-cert, --peer-key and --peer-ca, or --insecure-peers.
`)
		}
	})
}
