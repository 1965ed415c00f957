//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// repositoryRoot is the checkout, seen from this package.
const repositoryRoot = "../.."

// buildTimeout bounds what compiles, beside others that do.
const buildTimeout = 5 * time.Minute

// docBlocks are the fenced blocks of a document in one language, in order.
func docBlocks(t *testing.T, path, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repositoryRoot, path))
	require.NoError(t, err)
	var blocks []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(
		string(text), -1) {
		blocks = append(blocks, m[1])
	}
	require.NotEmpty(t, blocks)
	return blocks
}

// What README says in its blocks for a shell is typed, block by block, as a newcomer would. Only
// the ports are others, the clone is a link, and "make" is asked whether it could: `make demo` has
// a test of its own beside its program.
func TestREADME(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles twice: run it without -short")
	}
	t.Parallel()
	expected := map[string]string{ // what is to be seen after a block that has such a line
		"git clone":             "",
		"make demo":             "bin/demo",
		"make test":             "go test",
		"go build":              "zamok is ready",
		"./zamok lock":          "held by 1",
		"./zamok server":        "held by a majority",
		"go mod edit":           "",
		"until ./zamok members": "voter",
	}
	shell := newReadmeShell(t)
	for _, block := range docBlocks(t, "README.md", "sh") {
		out := shell.runBlock(t, block)
		for line, text := range expected {
			if strings.Contains("\n"+block, "\n"+line) {
				require.Contains(t, out, text, "after\n%s", block)
				delete(expected, line)
			}
		}
	}
	require.Empty(t, expected,
		"README has no such line any more: then say here what it has instead")
}

// readmeShell is where a newcomer sits.
type readmeShell struct {
	dir      string // where the binary is
	checkout string // the checkout, as a full path
	module   string // another module, with README's lines of Go
	port     int
	dev      *process // what runs in the first terminal
}

func newReadmeShell(t *testing.T) *readmeShell {
	t.Helper()
	checked, err := filepath.Abs(repositoryRoot)
	require.NoError(t, err)
	return &readmeShell{dir: t.TempDir(), checkout: checked, module: foreignModule(t),
		port: freePorts(t)}
}

var readmePort = regexp.MustCompile(`127\.0\.0\.1:57(\d\d)\b`)

// movePorts replaces the ports of `zamok dev` by those of `zamok dev --port`.
func movePorts(block string, port int) string {
	return readmePort.ReplaceAllStringFunc(block, func(address string) string {
		offset, _ := strconv.Atoi(address[len(address)-2:])
		return "127.0.0.1:" + strconv.Itoa(port+offset-50)
	})
}

// runBlock runs a block of README in a shell and returns what is to be seen then.
func (d *readmeShell) runBlock(t *testing.T, block string) string {
	t.Helper()
	script := movePorts(block, d.port)
	script = strings.ReplaceAll(script, "./zamok dev", "./zamok dev --port "+strconv.Itoa(d.port))
	script = strings.ReplaceAll(script, "make ", "make -n ")
	// Who sits at a busy machine asks again, if the servers have not found each other in five
	// seconds.
	script = strings.ReplaceAll(script, "./zamok members\n",
		"./zamok members --timeout "+testTimeout.String()+"\n")
	dir := d.dir
	switch {
	case strings.Contains(script, "git clone URL zamok"):
		// this checkout, whatever is not committed included
		script = strings.Replace(script, "git clone URL zamok", "ln -s "+d.checkout+" zamok", 1)
		dir = t.TempDir()
	case strings.Contains(script, "go build "):
		// The binary goes to the desk: another one may be in the checkout.
		script = strings.Replace(script, "go build ", "cd "+d.checkout+" && go build ", 1)
		script = strings.Replace(script, "\n", "\ncd "+d.dir+"\n", 1)
	case strings.Contains(script, "go mod "):
		dir = d.module
		script = strings.Replace(script, "=../zamok", "="+d.checkout, 1) + "go build ./...\n"
	case strings.Contains(script, "server"):
		d.stopDev(t) // as README does: the ports are the same
	}
	r := d.shell(t, dir, script)
	if strings.Contains(block, "./zamok dev") {
		d.dev = r
		output := func() string { return r.stdout.String() + r.stderr.String() }
		// it is built first
		for end := time.Now().Add(buildTimeout); !strings.Contains(output(), "zamok is ready"); {
			select {
			case <-r.done:
				t.Fatalf("%s\n%s", script, output())
			case <-time.After(10 * time.Millisecond):
			}
			require.True(t, time.Now().Before(end), "%s\n%s", script, output())
		}
		return output()
	}
	end := r.waitFor(t, buildTimeout)
	require.Equal(t, 0, end.code, "%s\n%s%s", block, end.stdout, end.stderr)
	return end.stdout + end.stderr
}

// shell runs a script. What it leaves running in the background ends with the test.
func (d *readmeShell) shell(t *testing.T, dir, script string) *process {
	t.Helper()
	r := &process{Cmd: exec.Command("sh", "-eu", "-c", script), done: make(chan struct{})}
	r.Dir = dir
	r.Env = append(os.Environ(), "ZAMOK_OUTPUT=", "ZAMOK_ENDPOINTS=127.0.0.1:"+strconv.Itoa(d.port),
		"GOFLAGS=", "MAKEFLAGS=", "CURL_HOME="+d.dir)
	switch dir {
	case d.dir:
		r.Env = append(r.Env, "GOFLAGS=-o="+filepath.Join(d.dir, "zamok"))
	case d.module:
		r.Env = append(r.Env, "GOFLAGS=-mod=mod", "GOWORK=off")
	}
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// what runs in the background keeps the pipes open; the output until then is read
	r.WaitDelay = 5 * time.Second
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	r.start(t)
	t.Cleanup(func() {
		// the whole session; it was the first process in it
		_ = syscall.Kill(-r.Process.Pid, syscall.SIGKILL)
	})
	return r
}

// stopDev is Ctrl-C in the first terminal, and a look at what it leaves.
func (d *readmeShell) stopDev(t *testing.T) {
	t.Helper()
	require.NotNil(t, d.dev, "README starts servers before zamok dev")
	require.NoError(t, syscall.Kill(-d.dev.Process.Pid, syscall.SIGINT))
	d.dev.wait(t)
	require.Eventually(t, func() bool { return allFree(d.port) }, testTimeout, 10*time.Millisecond,
		"zamok dev left ports in use")
}

// foreignModule makes a module that has README's lines of Go in it, and does not know this one yet.
func foreignModule(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	dir := t.TempDir()
	// it may have been renamed
	ours := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.GoVersion}}")
	ours.Dir = repositoryRoot
	out, err := ours.Output()
	require.NoError(t, err)
	path, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	blocks := docBlocks(t, "README.md", "go")
	require.Len(t, blocks, 1)
	source := "package shop\n\nimport (\n\t\"context\"\n\t\"database/sql\"\n\n\t\"" + path +
		"/client\"\n)\n\n" +
		"func Draw(ctx context.Context, db *sql.DB) error {\n" + blocks[0] + "\treturn err\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.go"), []byte(source), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"),
		[]byte("module shop\n\ngo "+version+"\n"), 0o600))
	return dir
}
