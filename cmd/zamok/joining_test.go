package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
)

// A node that joined is often started again with the same command line. If the cluster has no majority
// without it, nobody answers --join, and the node must not wait long for that: they would wait for each other.
func TestANodeWithDataDoesNotWaitForTheClusterThatWaitsForIt(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes calls, and never answers
	require.NoError(t, err)
	defer silent.Close()
	var said bytes.Buffer
	v := &serverVerb{app: &app{stderr: &said}, id: "n4", data: t.TempDir(), join: silent.Addr().String()}
	require.NoError(t, os.WriteFile(filepath.Join(v.data, "identity.json"), nil, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), joinPatience/2)
	defer cancel()
	joins, err := v.target(ctx)
	require.NoError(t, err)
	require.NoError(t, ctx.Err(), "it came back by itself, after %v or so", againPatience.Round(time.Second))
	assert.Equal(t, joining{}, joins)
	assert.Contains(t, said.String(), "starting with the data that is here")
}

// A leader that is lost between the two steps of a joining leaves a member without a vote. When it is started
// again it asks for the rest.
func TestAJoiningThatBrokeOffIsFinished(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	one, err := api.StartNode(ctx, api.NodeConfig{ID: "n1"})
	require.NoError(t, err)
	defer func() { require.NoError(t, one.Kill()) }()
	c, err := client.Dial(ctx, one.Client())
	require.NoError(t, err)
	defer c.Close()

	// It is a member before it is there, so it has not caught up and gets no vote.
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePorts(t)))
	member := func() *client.Member {
		all, _, err := c.Members(ctx)
		require.NoError(t, err)
		i := slices.IndexFunc(all, func(m client.Member) bool { return m.ID == "n2" })
		if i < 0 {
			return nil
		}
		return &all[i]
	}
	for member() == nil {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		require.Error(t, c.Join(short, "n2", address))
		cancel()
	}
	require.False(t, member().Voter)

	begin(t, nil, "server", "--id", "n2", "--data", t.TempDir(), "--join", one.Client(),
		"--listen", "127.0.0.1:0", "--peer", address, "--http", "")
	comes(t, "n2 has a vote", func() bool { return member().Voter })
}
