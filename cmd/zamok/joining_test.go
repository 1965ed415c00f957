package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
