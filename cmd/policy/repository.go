package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// repository is the content of a checkout.
type repository struct {
	module string // the module's path, from go.mod
	home   string // the path of the checkout on this machine
	fset   *token.FileSet
	files  []file
}

// file is one text file. Binary files are left out.
type file struct {
	path      string // from the root, with slashes
	text      []byte
	syntax    *ast.File // nil unless this is Go that the go command would build
	test      bool      // a _test.go file
	generated bool
	nested    bool // part of a module of its own below the root
}

// folder is the folder of a file, from the root. It names the package of a Go file.
func (f file) folder() string { return path.Dir(f.path) }

// load reads every file under root.
func load(root fs.FS, home string) (*repository, error) {
	t := &repository{home: home, fset: token.NewFileSet()}
	mod, err := fs.ReadFile(root, "go.mod")
	if err != nil {
		return nil, fmt.Errorf("not the root of a module: %w", err)
	}
	match := regexp.MustCompile(`(?m)^module[ \t]+(\S+)`).FindSubmatch(mod)
	if match == nil {
		return nil, errors.New("go.mod names no module")
	}
	t.module = string(match[1])
	var nested []string // modules below the root: they have dependencies of their own
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist", "node_modules"}, entry.Name()) {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && name != "." {
				nested = append(nested, name+"/...")
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		return t.add(root, name, coversAny(nested, path.Dir(name)))
	})
	return t, err
}

// add reads one file.
func (t *repository) add(root fs.FS, name string, nested bool) error {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	if bytes.IndexByte(text, 0) >= 0 {
		return nil
	}
	f := file{path: name, text: text, test: strings.HasSuffix(name, "_test.go"), nested: nested}
	if path.Ext(name) == ".go" && !slices.Contains(strings.Split(name, "/"), "testdata") {
		f.syntax, err = parser.ParseFile(t.fset, name, text,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		f.generated = ast.IsGenerated(f.syntax)
	}
	t.files = append(t.files, f)
	return nil
}

// written reports whether this is Go code that was not generated.
func (f file) written() bool { return f.syntax != nil && !f.generated }

// line is where a node begins.
func (t *repository) line(n ast.Node) int { return t.fset.Position(n.Pos()).Line }

// covers reports whether a pattern matches a path: the path itself, or, if it ends in "/...", also
// all paths below.
func covers(pattern, p string) bool {
	if stem, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == stem || strings.HasPrefix(p, stem+"/")
	}
	return p == pattern
}

func coversAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return covers(pattern, p) })
}
