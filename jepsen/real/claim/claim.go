package claim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Prefix begins every name.
const Prefix = "zamok-run-"

// Own is the name of this process's run.
func Own() (string, error) { return runNameOf(os.Getpid()) }

func runNameOf(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field is a name in brackets, which may hold anything; the start is the 22nd.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat is not as expected: %s", pid, text)
	}
	return fmt.Sprintf("%s%d-%s", Prefix, pid, fields[19]), nil
}

// Dead reports whether a name is that of a run that has ended. What follows a dot is not part of the name.
func Dead(name string) bool {
	name, _, _ = strings.Cut(name, ".")
	var pid int
	if _, err := fmt.Sscanf(name, Prefix+"%d-", &pid); err != nil {
		return false // not ours
	}
	now, err := runNameOf(pid)
	return errors.Is(err, os.ErrNotExist) || err == nil && now != name
}
