package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSpaces(t *testing.T) {
	for process, space := range map[string]string{"n1": "n1", "c2-3": "c2", "c12-1": "c12", "audit": ownSpace, "the run": ownSpace} {
		assert.Equal(t, space, spaceOf(process), process)
	}
	for _, name := range fabricKinds {
		known := slices.ContainsFunc(kinds(), func(k kind) bool { return k.name == name })
		assert.True(t, known, "%s is left out, and no kind is called so", name)
	}
}
