package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// restoreVerb is `zamok restore`.
type restoreVerb struct {
	app     *app
	id, dir string
	cluster string
	log     string
	above   uint64
	quiet   time.Duration
}

func newRestore(a *app) *cobra.Command {
	v := &restoreVerb{app: a}
	cmd := &cobra.Command{
		Use:   "restore FILE --id ID --data DIR --cluster ID=HOST:5751",
		Short: "create the first node of a new cluster from a backup",
		Long: `Creates the data directory of a new single-node cluster from a backup. It contacts no other node. Then
start the node with the same three flags; further nodes join it.

ALL NODES OF THE OLD CLUSTER MUST BE STOPPED AND STAY STOPPED: restore is for the loss of a majority of the
disks. A backup preserves the tokens, so that storage which remembers old tokens accepts the new ones: every
token of the new cluster is above all that the old cluster can have issued. Locks and sessions are not
restored; clients open new sessions. Because clients of the old cluster may still hold valid leases, nothing
is granted during the restore hold-off, which lasts as long as the longest lease and delay, an hour and a
minute, or --quiet if you know of a shorter one; never less than the longest in the backup.

A backup may be restored again. Each restore issues tokens above those of earlier restores, as measured by
this machine's clock, so set the clock first. If an earlier restore was made on a machine whose clock was
ahead, pass its last token as --above. Only one restored cluster may be in use: stop it before you start
another.`,
		Example: "  zamok restore locks.zamok --id r1 --data /var/lib/zamok --cluster r1=db1.example:5751",
		GroupID: groupRun,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := v.node()
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return v.restore(args[0], node)
		},
	}
	f := cmd.Flags()
	f.StringVar(&v.id, "id", "", "node name, one that the old cluster never had")
	f.StringVar(&v.dir, "data", "", "data `directory`, missing or empty")
	f.StringVar(&v.log, "log-store", "", logStoreFlag)
	f.StringVar(&v.cluster, "cluster", "", "node name and peer address: `ID=HOST:5751`, exactly one")
	f.Uint64Var(&v.above, "above", 0, "issue only tokens above this one (they are always above seconds since 1970 × 2²⁰)")
	f.DurationVar(&v.quiet, "quiet", 0, "restore hold-off: time during which nothing is granted (default 1h1m)")
	return cmd
}

func (v *restoreVerb) node() (peer.Node, error) {
	list, err := peer.ParseList(v.cluster)
	_, logErr := store.ParseLogKind(v.log)
	switch {
	case v.id == "" || v.dir == "" || v.cluster == "":
		return peer.Node{}, errors.New("give --id, --data and --cluster, as for the server that will be started")
	case err != nil:
		return peer.Node{}, fmt.Errorf("--cluster: %w", err)
	case logErr != nil:
		return peer.Node{}, fmt.Errorf("--log-store: %w", logErr)
	case len(list.Nodes()) != 1 || list.Nodes()[0].ID != v.id:
		return peer.Node{}, fmt.Errorf("--cluster is %v: name %s alone; the others join when it runs", list, v.id)
	case v.quiet < 0 || v.quiet > fsm.HoldOffMax.Duration():
		return peer.Node{}, fmt.Errorf("--quiet is %v: it is at most %v", v.quiet, fsm.HoldOffMax)
	}
	return list.Nodes()[0], nil
}

func (v *restoreVerb) restore(path string, node peer.Node) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // it was only read
	made, err := raftnode.Restore(bufio.NewReader(file), raftnode.Restoration{
		Node: node, Dir: v.dir, Log: store.LogKind(v.log), Above: v.above, HoldOff: clock.Of(v.quiet),
	})
	if err != nil {
		return err
	}
	doc := struct {
		Cluster string `json:"cluster"`
		Node    string `json:"node"`
		Data    string `json:"data"`
		Above   uint64 `json:"above,string"` // every token of the new cluster is above it
	}{made.Cluster.String(), node.ID, v.dir, made.Index}
	return v.app.print(doc, func(w io.Writer) {
		fmt.Fprintf(w, `%s holds a new cluster of one node, %s. Its tokens are above %d.

Start it, when all nodes of the old cluster have ended for good:

  zamok server --id %s --data %s --cluster %v
`, oneLine(v.dir), node.ID, made.Index, node.ID, shellWord(v.dir), v.cluster)
	})
}
