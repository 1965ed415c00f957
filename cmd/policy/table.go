package main

import (
	"slices"
	"strings"
)

// layers is the architecture: each package may import those to its left, and what they may import. jepsen may
// import every package; no package may import jepsen. Up to fsm packages are pure, values in and values out; from
// raftnode on they own I/O and goroutines.
const layers = `
clock ◄ session/tree, session/record ◄ session ◄ fsm ◄ raftnode ◄ api/wire
clock ◄ raftnode/peer, raftnode/store ◄ raftnode
api/zamokpb ◄ api/wire ◄ api/access, api/history, api/metrics ◄ api/push ◄ api ◄ cmd/zamok
clock, api/zamokpb ◄ client ◄ cmd/zamok
client/fence, cmd/zamok/workload ◄ cmd/zamok
`

// lowerLayers are the packages to the left of a package, in all lines.
func lowerLayers(pkg string) (lower []string) {
	for line := range strings.Lines(layers) {
		var left []string
		for column := range strings.SplitSeq(strings.TrimSpace(line), " ◄ ") {
			packages := strings.Split(column, ", ")
			if slices.Contains(packages, pkg) {
				lower = append(lower, left...)
			}
			left = append(left, packages...)
		}
	}
	for _, p := range slices.Clone(lower) {
		lower = append(lower, lowerLayers(p)...)
	}
	return lower
}

// packageRule is what one package may import. A package without a row is a violation: a new package is a
// decision about where it stands.
type packageRule struct {
	pkg           string   // the folder, from the root; "x/..." also all below
	internal      []string // may be imported of ours, by its tests too; nil = lowerLayers
	testInternal  []string // may be imported of ours by its tests only
	external      []string // may be imported of others; std is the whole standard library
	bannedImports []ban    // never imported, tests excepted
}

// ban is imports with the reason why they are not made here.
type ban struct {
	patterns string // separated by spaces
	reason   string
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

// packageTable is the policy. Read it from top to bottom as the lines of layers from left to right.
func packageTable() []packageRule {
	// A client is tested against a real node, not a mock.
	nodePackages := []string{"api", "api/access", "raftnode", "raftnode/peer", "raftnode/store", "client/fence"}
	everything := []string{"clock", "session/tree", "session/record", "session", "fsm", "raftnode/...", "api/...", "client/...", "jepsen/..."}
	// jepsen is a library of tests, which nothing links; std alone would not let the testing packages in.
	forJepsen := []string{std, "testing/...", grpc, protobuf, raftLibrary, bbolt, hclog, "github.com/anishathalye/porcupine",
		"github.com/stretchr/testify/...", "pgregory.net/rapid", unix}
	return []packageRule{
		{pkg: "clock", external: clockStdlib(), bannedImports: clockBans()},
		{pkg: "session/tree", external: pureStdlib(), bannedImports: pureBans()},
		{pkg: "session/record", external: pureStdlib(), bannedImports: pureBans()},
		{pkg: "session", external: pureStdlib(), bannedImports: pureBans()},
		{pkg: "fsm", external: pureStdlib(), bannedImports: pureBans()},

		{pkg: "raftnode/peer", external: []string{std, raftLibrary, hclog}, bannedImports: nodeBans()},
		{pkg: "raftnode/store", external: []string{std, raftLibrary, raftStore, raftWAL, bbolt, hclog, unix}, bannedImports: nodeBans()},
		{pkg: "raftnode", external: []string{std, raftLibrary, raftStore, bbolt, hclog, unix}, bannedImports: nodeBans()},

		{pkg: "api/zamokpb", external: []string{std, "unsafe", grpc, protobuf}}, // generated, so not ours to rewrite
		// What every protocol of a node has in common: errors and messages.
		{pkg: "api/wire", external: []string{std, grpc, protobuf}, bannedImports: apiBans()},
		// Admission of requests: it decides, and neither proposes nor sends.
		{pkg: "api/access", external: []string{std, grpc, protobuf}, bannedImports: apiBans()},
		{pkg: "api/metrics", external: []string{std}, bannedImports: apiBans()},
		// What was applied: it is given events, and knows no connection.
		{pkg: "api/history", external: []string{std, protobuf}, bannedImports: apiBans()},
		// Delivery of events: what sends the frames is the protocol's.
		{pkg: "api/push", external: []string{std, protobuf}, bannedImports: apiBans()},
		// The wire is best tested by what speaks it.
		{pkg: "api", testInternal: []string{"client"}, external: []string{std, grpc, protobuf}, bannedImports: apiBans()},

		{pkg: "client", testInternal: nodePackages, external: []string{std, grpc, protobuf}, bannedImports: clientBans()},
		// What a storage links to guard itself: not even the client.
		{pkg: "client/fence", external: []string{std}},
		// The loops of `zamok bench`, which bench/ runs on other systems too.
		{pkg: "cmd/zamok/workload", external: []string{std}},
		{pkg: "cmd/zamok", external: []string{std, grpc, protobuf, unix, cobra}, bannedImports: commandBans()},
		// What `make demo` plays is a user's program: it starts nodes, and links none.
		{pkg: "cmd/demo", internal: []string{"client", "client/fence"}, external: []string{std}},

		// The repository's own tools judge the code from outside, so a broken package can't keep them from running.
		{pkg: "cmd/policy", external: []string{std}},
		{pkg: "cmd/mutants", external: []string{std}},
		{pkg: "jepsen/...", internal: everything, external: forJepsen},
	}
}

func clockStdlib() []string {
	return []string{"cmp", "errors", "fmt", "math", "runtime", "strconv", "sync", "sync/atomic", "time", unix}
}

func clockBans() []ban {
	return []ban{
		{"os", "the only thing that clock reads of this machine is its clocks"},
		{"context", "reading a clock does not wait"},
	}
}

// pureStdlib compute and format. They reach no clock, no machine and no other goroutine.
func pureStdlib() []string {
	return []string{
		"bufio", "bytes", "cmp", "encoding/binary", "encoding/hex", "errors", "fmt", "hash", "hash/crc32",
		"io", "iter", "maps", "math", "math/bits", "slices", "strconv", "strings", "unicode", "unicode/utf8",
	}
}

// pureBans keep replicas from disagreeing: the same entries must give the same state, results and
// events on every node, on every machine, today and when the log is read again in a year.
func pureBans() []ban {
	return []ban{
		{"time", "cluster time arrives in the entry as a number; a clock read here differs on every node"},
		{"os/...", "a machine that looks at its host gives other answers on another host"},
		{"net/...", "a machine that talks or listens gives other answers on another node"},
		{"sync/...", "the state machine has one owner, which serialises calls; a mutex here would hide a second one"},
		{"context", "nothing here waits, so there is nothing to cancel"},
		{"log/...", "the state machine reports what happened by its events; its owner writes the log"},
		{"math/rand/... crypto/rand", "chance differs on every node; what must be unique comes from the index"},
		{"hash/maphash", "its seed differs in every process, and so would the digests"},
		{"reflect encoding/json encoding/gob", "the format is written out field by field; derived from Go's types it would change with them"},
		{"runtime/...", "schedulers and collectors differ between nodes; results may not depend on them"},
		{"testing/...", "the machine must not know that it is being tested"},
		{"unsafe", "layout differs between architectures, and a cluster may mix them"},
		{protobuf, "what is in the log must not move with the wire, nor with a library's encoding"},
		{raftLibrary, "the rules of locking must not know how they are replicated"},
		{bbolt, "the machine is memory; storing it is raftnode's work"},
		{grpc, "the rules of locking must not depend on the protocol of the callers"},
	}
}

// nodeBans keep consensus apart from those it serves.
func nodeBans() []ban {
	return []ban{
		{grpc, "consensus must not depend on the protocol of the callers"},
		{protobuf, "what is in the log is fsm's format: it must not move with the wire's"},
		{"net/http/...", "consensus must not depend on the protocol of the callers"},
	}
}

func apiBans() []ban {
	return []ban{
		{raftLibrary, "the wire must not reach around the node: raftnode decides what a caller may see of Raft"},
		{raftStore + " " + bbolt, "the wire must not reach around the node: its stores have one owner"},
	}
}

func clientBans() []ban {
	return []ban{
		{"session", "a program that imports the client must not link a server: sessions belong to the state machine"},
		{"fsm", "a program that imports the client must not link a server: the state machine runs on nodes"},
		{"raftnode", "a program that imports the client must not link a server: no consensus in an application"},
		{"api", "a program that imports the client must not link a server: the wire's types are api/zamokpb"},
		{raftLibrary, "a program that imports the client must not link a server: no consensus in an application"},
		{bbolt, "a program that imports the client must not link a server: an application stores nothing for us"},
	}
}

func commandBans() []ban {
	return []ban{
		{raftLibrary + " " + bbolt, "the command builds a node, it does not reach into one"},
	}
}

// bansForAll hold for every package, tests excepted.
func bansForAll() []ban {
	return []ban{
		{"log", "there is one logger, log/slog; and log.Fatal ends the process past every deferred close"},
		{"unsafe", "nothing here is worth giving up what the compiler proves"},
		{"C", "the product, and each program that imports it, is built without a C compiler"},
		{"testing/...", "it belongs in _test.go files: in a package that is linked it brings its flags along"},
	}
}

// testLibraries may be imported by tests everywhere.
func testLibraries() []string {
	return []string{
		"github.com/stretchr/testify/...",
		"github.com/cockroachdb/datadriven",
		"pgregory.net/rapid",
		"go.uber.org/goleak",
	}
}
