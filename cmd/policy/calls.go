package main

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// callBan is a use of a function that only some files may make. Tests are excepted, generated code
// is not read.
type callBan struct {
	pkg     string   // import path
	names   string   // of functions, separated by spaces
	allowed []string // packages that may
	reason  string
}

func callBans() []callBan {
	edges := []string{"clock", "raftnode/...", "api/...", "client/...", "cmd/...", "jepsen/..."}
	return []callBan{{
		// Also as a value, such as `now: time.Now`. A package may measure its own work with a clock that stops
		// while the machine is suspended; leases and grants depend on package clock only, and fsm has no other time.
		pkg: "time", names: "Now Since Until", allowed: []string{
			"clock",
			"raftnode",       // how long a command waited, how long the main loop is stuck
			"raftnode/peer",  // since when a server has not answered
			"raftnode/store", // how long a write takes, since when one hangs
			"api",            // how long an acquisition took, for a histogram; the moment at which a cluster begins
			"api/metrics",    // how long a message waited, for a histogram
			"api/push",       // since when a ticket or a message waits, for histograms
			"client",         // Lock.Deadline as a time for people
			"cmd/zamok/...",  // how long it is to a Deadline, which client has from clock; how long a lock takes
			"cmd/mutants",    // how long a test took to catch a bug
			"jepsen/...",     // when a fault was made, by an observer's clock
		},
		reason: "time is read through package clock: a reading taken elsewhere jumps when an operator sets the clock and stands still while the machine is suspended",
	}, {
		pkg: "time", names: "Sleep", allowed: []string{"jepsen/..."},
		reason: "nothing can end a sleep: wait in a select, with a timer and what ends the goroutine",
	}, {
		pkg: "time", names: "After Tick", allowed: nil,
		reason: "it can't be stopped: use time.NewTimer or time.NewTicker, and stop it where the wait ends",
	}, {
		// A timer only wakes a goroutine, which then asks package clock what is due. So timers are for the
		// edges, and no decision depends on which timer fired.
		pkg: "time", names: "NewTimer NewTicker AfterFunc", allowed: edges,
		reason: "a timer only wakes, clock decides; pure packages have no goroutine to wake",
	}, {
		pkg: "os", names: "Exit", allowed: nil,
		reason: "the process ends past every deferred close; return an error, and main (cmd/*/main.go) exits",
	}, {
		pkg: "fmt", names: "Print Printf Println", allowed: []string{"cmd/...", "jepsen/..."},
		reason: "standard output belongs to the command; return it, log it, or take a writer",
	}}
}

// checkCalls holds each use of a named function to callBans, and refuses init functions.
func checkCalls(t *repository, f file, report func(violation)) {
	if !f.written() || f.test || f.nested {
		return
	}
	names := importNames(f.syntax)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		pkg, name := selection(n, names)
		if reason := callBanReason(f, pkg, name); reason != "" {
			report(violation{line: t.line(n), what: "uses " + path.Base(pkg) + "." + name, reason: reason})
		}
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			report(violation{line: t.line(fn), what: "has an init function",
				reason: "it runs because it is linked, in an order that is not written down; call it instead"})
		}
		return true
	})
}

// callBanReason says why a file may not use a function; "" if it may.
func callBanReason(f file, pkg, name string) string {
	if pkg == "os" && name == "Exit" && path.Base(f.path) == "main.go" && coversAny([]string{"cmd/...", "jepsen/..."}, f.folder()) {
		return ""
	}
	for _, b := range callBans() {
		if b.pkg == pkg && slices.Contains(strings.Fields(b.names), name) && !coversAny(b.allowed, f.folder()) {
			return b.reason
		}
	}
	return ""
}

// selection recognises a name of an imported package, such as time.Now; "" and "" if the node is none.
func selection(n ast.Node, names map[string]string) (pkg, name string) {
	if use, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := use.X.(*ast.Ident); ok {
			return names[x.Name], use.Sel.Name
		}
	}
	return "", ""
}

// importNames maps the names by which a file knows its imports to their paths.
func importNames(f *ast.File) map[string]string {
	version := regexp.MustCompile(`/v[0-9]+$`)
	names := map[string]string{}
	for _, spec := range f.Imports {
		p := importPath(spec)
		name := path.Base(version.ReplaceAllString(p, ""))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}
