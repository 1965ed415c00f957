package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"zamok/fsm"
)

// releaseVersion is set by the build of a release: go build -ldflags "-X
// main.releaseVersion=v1.2.3".
var releaseVersion string

// version is the release, or the revision that Go has recorded in the binary.
func version() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "dev-" + s.Value[:12]
		}
	}
	if info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}

// commitText is the revision that this binary was built from. It is unknown with `go run`, and
// without the repository.
func commitText() string {
	info, _ := debug.ReadBuildInfo()
	revision, dirty := "unknown", ""
	if info != nil {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && s.Value != "":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = " and changes"
			}
		}
	}
	return revision + dirty
}

func versionLine() string {
	return fmt.Sprintf("zamok %s (commit %s, %s, %s, format %s)\n", version(), commitText(),
		runtime.Version(), platform, fsm.Format())
}

const platform = runtime.GOOS + "/" + runtime.GOARCH

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "print the version of this binary",
		GroupID: groupInspect,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			doc := struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
				Go      string `json:"go"`
				System  string `json:"system"`
				Format  string `json:"format"` // of log and snapshots
			}{version(), commitText(), runtime.Version(), platform, fsm.Format()}
			return a.print(doc, func(w io.Writer) {
				fmt.Fprint(w, versionLine())
			})
		},
	}
}
