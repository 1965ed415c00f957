package sim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A bubble has no wall clock that could be made to jump. So this is shown from the source: what a Time of
// package time keeps of the wall is neither taken out of it nor put into one, but where a new history takes
// a number from it that is above all older ones'. Differences of what time.Now returned are monotonic.
func TestNoWallClockReads(t *testing.T) {
	t.Parallel()
	mayRead := map[string]int{"raftnode/restore.go": 1}
	found := map[string]int{}
	files := 0
	for _, root := range []string{"clock", "session", "fsm", "raftnode", "api", "client"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", "..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") ||
				strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return err
			}
			files++
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(filepath.Join("..", ".."), path)
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(call.Sel.Name, "Unix") && isTime(call.X) {
					found[filepath.ToSlash(name)]++
				}
				return true
			})
			return err
		}))
	}
	assert.Greater(t, files, 80)
	assert.Equal(t, mayRead, found, "in %v", slices.Sorted(maps.Keys(found)))
}

// isTime reports whether an expression is package time, or a call of its Now, or a variable: anything but
// another package.
func isTime(x ast.Expr) bool {
	name, ok := x.(*ast.Ident)
	return !ok || name.Name != "unix" && name.Name != "net"
}
