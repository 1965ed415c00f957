package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigRefusals(t *testing.T) {
	good := Config{NodeID: "n1", Dir: "/nowhere", Fatal: func(error) {}}
	for name, bad := range map[string]func(*Config){
		"NodeID is empty":     func(c *Config) { c.NodeID = "" },
		"exactly one of":      func(c *Config) { c.Dir = "" },
		"exactly one":         func(c *Config) { c.Memory = new(Memory) },
		"Fatal is nil":        func(c *Config) { c.Fatal = nil },
		"not below LowSpace":  func(c *Config) { c.ReservedSpace, c.LowSpace = 10, 10 },
		"lower ReservedSpace": func(c *Config) { c.ReservedSpace = 1 << 40 },
	} {
		cfg := good
		bad(&cfg)
		_, err := Open(cfg)
		assert.ErrorContains(t, err, name)
	}
}

func TestMarksDifferByNode(t *testing.T) {
	marks := map[uint64]string{}
	for _, node := range []string{"n1", "n2", "n3", "n4", "n5"} {
		cfg, err := Config{NodeID: node, Memory: new(Memory), Fatal: func(error) {}}.settled()
		require.NoError(t, err)
		assert.NotContains(t, marks, cfg.LowSpace)
		assert.GreaterOrEqual(t, cfg.LowSpace, uint64(DefaultLowSpace))
		assert.Less(t, cfg.LowSpace, uint64(DefaultLowSpace+DefaultLowSpaceSpread))
		marks[cfg.LowSpace] = node
	}
}
