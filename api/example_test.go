package api_test

import (
	"context"
	"fmt"
	"log"

	"zamok/api"
	"zamok/client"
	"zamok/raftnode"
)

// A program that has a node inside: a cluster of one, in memory. With Store.Dir, Peers.List and the
// ports it becomes one of three.
func ExampleStartNode() {
	ctx := context.Background()
	node, err := api.StartNode(ctx, api.NodeConfig{Config: raftnode.Config{ID: "n1"}})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	c, err := client.Dial(ctx, node.Client())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.Do(ctx, "report/2026", func(ctx context.Context, lock *client.Lock) error {
		fmt.Println("the only one who writes", lock.Name(), "in this cluster")
		return nil
	})
	fmt.Println(err)
	// Output:
	// the only one who writes report/2026 in this cluster
	// <nil>
}
