package main

import "slices"

// The architecture is one line and its branches:
//
//	clock ◄ session/tree ◄ session ◄ fsm ◄ raftnode ◄ api ◄ cmd/zamok
//	clock ◄ raftnode/peer, raftnode/store ◄ raftnode ◄ api ◄ cmd/zamok
//	api/zamokpb ◄ api
//	clock, api/zamokpb ◄ client ◄ cmd/zamok
//	client/fence ◄ cmd/zamok
//	client, client/fence ◄ cmd/demo
//
// Each package may import those to its left. jepsen may import every package; no package may import jepsen. Up to fsm
// packages are pure, values in and values out; from raftnode on they own I/O and goroutines.

// row says what one package may import. A package without a row is a violation: a new package is a
// decision about where it stands.
type row struct {
	pkg     string   // the folder, from the root; "x/..." also all below
	ours    []string // may be imported of ours, by its tests too
	tests   []string // may be imported of ours by its tests only
	outside []string // may be imported of others; std is the whole standard library
	bans    []ban    // never imported directly, tests excepted
	links   []ban    // never linked, by whatever way; tests excepted
}

// ban is an import with the reason why it is not made here.
type ban struct {
	what string
	why  string
}

const (
	std = "std" // stands for every package of the standard library

	raftLibrary = "github.com/hashicorp/raft/..."
	raftStore   = "github.com/hashicorp/raft-boltdb/..."
	raftWAL     = "github.com/hashicorp/raft-wal/..."
	bbolt       = "go.etcd.io/bbolt/..."
	hclog       = "github.com/hashicorp/go-hclog"
	unix        = "golang.org/x/sys/unix"
	grpc        = "google.golang.org/grpc/..."
	protobuf    = "google.golang.org/protobuf/..."
	cobra       = "github.com/spf13/cobra"
)

// table is the policy. Read it from top to bottom as the line from left to right.
func table() []row { return slices.Concat(pureRows(), nodeRows(), clientRows(), houseRows()) }

func pureRows() []row {
	return []row{{
		pkg:     "clock",
		outside: []string{"cmp", "errors", "fmt", "math", "runtime", "strconv", "sync", "sync/atomic", "time", unix},
		bans:    []ban{{"os", "the only thing that clock reads of this machine is its clocks"}, {"context", "reading a clock does not wait"}},
	}, {
		pkg:     "session/tree",
		ours:    []string{"clock"},
		outside: pureLibraries(),
		bans:    pureBans(),
	}, {
		pkg:     "session",
		ours:    []string{"clock", "session/tree"},
		outside: pureLibraries(),
		bans:    pureBans(),
	}, {
		pkg:     "fsm",
		ours:    []string{"clock", "session/tree", "session"},
		outside: pureLibraries(),
		bans:    pureBans(),
	}}
}

func nodeRows() []row {
	return []row{{
		pkg:     "raftnode/peer",
		ours:    []string{"clock"},
		outside: []string{std, raftLibrary, hclog},
		bans:    nodeBans(),
	}, {
		pkg:     "raftnode/store",
		ours:    []string{"clock"},
		outside: []string{std, raftLibrary, raftStore, raftWAL, bbolt, hclog, unix},
		bans:    nodeBans(),
	}, {
		pkg:     "raftnode",
		ours:    []string{"clock", "session/tree", "session", "fsm", "raftnode/peer", "raftnode/store"},
		outside: []string{std, raftLibrary, raftStore, bbolt, hclog, unix},
		bans:    nodeBans(),
	}, {
		pkg:     "api/zamokpb",
		outside: []string{std, "unsafe", grpc, protobuf}, // generated, so not ours to rewrite
	}, {
		pkg:     "api",
		ours:    []string{"clock", "session/tree", "session", "fsm", "raftnode", "raftnode/peer", "raftnode/store", "api/zamokpb"},
		tests:   []string{"client"}, // the wire is best tested by what speaks it
		outside: []string{std, grpc, protobuf},
		bans: []ban{
			{raftLibrary, "the wire must not reach around the node: raftnode decides what a caller may see of Raft"},
			{raftStore, "the wire must not reach around the node: its stores have one owner"},
			{bbolt, "the wire must not reach around the node: its stores have one owner"},
		},
	}}
}

func clientRows() []row {
	return []row{{
		pkg:  "client",
		ours: []string{"clock", "api/zamokpb"},
		// A client is tested against a real node, not a mock.
		tests:   []string{"api", "raftnode", "raftnode/store", "client/fence"},
		outside: []string{std, grpc, protobuf},
		links: []ban{
			{"session", "whoever imports the client must not link a server: sessions are the machine's"},
			{"fsm", "whoever imports the client must not link a server: the machine runs on nodes"},
			{"raftnode", "whoever imports the client must not link a server: no consensus in an application"},
			{"api", "whoever imports the client must not link a server: the wire's types are api/zamokpb"},
			{raftLibrary, "whoever imports the client must not link a server: no consensus in an application"},
			{bbolt, "whoever imports the client must not link a server: an application stores nothing for us"},
		},
	}, {
		// What a storage links to guard itself: not even the client.
		pkg:     "client/fence",
		outside: []string{std},
	}, {
		pkg:     "cmd/zamok",
		ours:    []string{"clock", "session/tree", "session", "fsm", "raftnode", "raftnode/peer", "raftnode/store", "api", "api/zamokpb", "client", "client/fence"},
		outside: []string{std, grpc, protobuf, unix, cobra},
		bans: []ban{
			{raftLibrary, "the command builds a node, it does not reach into one"},
			{bbolt, "the command builds a node, it does not reach into one"},
		},
	}, {
		// What `make demo` plays is a user's program: it starts nodes, and links none.
		pkg:     "cmd/demo",
		ours:    []string{"client", "client/fence"},
		outside: []string{std},
	}}
}

// houseRows are what looks after the product without being part of it.
func houseRows() []row {
	return []row{{
		// The repository's own tools judge the code from outside, so a broken package can't
		// keep them from running.
		pkg:     "cmd/policy",
		outside: []string{std},
	}, {
		pkg:     "cmd/mutants",
		outside: []string{std},
	}, {
		pkg:  "jepsen/...",
		ours: []string{"clock", "session/tree", "session", "fsm", "raftnode/...", "api/...", "client/...", "jepsen/..."},
		// It is a library of tests, which nothing links; std alone would not let the testing packages in.
		outside: []string{std, "testing/...", grpc, protobuf, raftLibrary, bbolt, hclog, "github.com/anishathalye/porcupine", "github.com/stretchr/testify/...", "pgregory.net/rapid", unix},
	}}
}
