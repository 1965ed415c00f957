package main

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
		{"math/rand/...", "chance differs on every node; what must be unique comes from the index"},
		{"crypto/rand", "chance differs on every node; what must be unique comes from the index"},
		{"hash/maphash", "its seed differs in every process, and so would the digests"},
		{"reflect", "the format is written out field by field; derived from Go's types it would change with them"},
		{"encoding/json", "the format is written out field by field; derived from Go's types it would change with them"},
		{"encoding/gob", "the format is written out field by field; derived from Go's types it would change with them"},
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
