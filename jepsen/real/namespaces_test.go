package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNamespaces(t *testing.T) {
	for process, space := range map[string]string{"n1": "n1", "c2-3": "c2", "c12-1": "c12", "audit": ownNamespace, "the run": ownNamespace} {
		assert.Equal(t, space, namespaceOf(process), process)
	}
	for _, name := range proxyOnlyKinds {
		known := slices.ContainsFunc(faultKinds(), func(k faultKind) bool { return k.name == name })
		assert.True(t, known, "%s is left out, and no kind is called so", name)
	}
}
