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
		Short: "make the first node of a new cluster from a backup",
		Long: `Makes the data directory of a new cluster of one node from a backup. It talks to nobody. Start the node
afterwards with the same three flags; further nodes join it.

THE OLD CLUSTER MUST BE DEAD, all of its nodes, and stay so: this is for the day on which a majority of
its disks is lost. What a backup saves is the scale of tokens, so that storage which remembers the old
ones does not refuse the new: every token of the new cluster is above all that the old one can have
issued. Locks and sessions are not carried over: their clients open new sessions. Since some may still
believe in a lock of the old cluster, nothing is granted until the longest lease and delay have passed,
an hour and a minute, or --quiet if you know of a shorter one; never before those in the backup have.

A backup may be restored again. Each restore begins above all tokens that those before it have issued, as
told by this machine's clock, so set the clock first. If an earlier restore was made on a machine whose
clock was ahead, give the last token of that one as --above. Of several restores only one may be used:
end it before you start another.`,
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
	f.StringVar(&v.id, "id", "", "the node's id: one that the old cluster never had")
	f.StringVar(&v.dir, "data", "", "the node's data `directory`: missing, or empty")
	f.StringVar(&v.log, "log-store", "", logStoreFlag)
	f.StringVar(&v.cluster, "cluster", "", "the node's id and where peers will reach it: `ID=HOST:5751`, and no other")
	f.Uint64Var(&v.above, "above", 0, "a token above which the new ones are to be (they are above seconds since 1970 × 2²⁰, too)")
	f.DurationVar(&v.quiet, "quiet", 0, "for how long nothing is granted (default: 1h1m)")
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
