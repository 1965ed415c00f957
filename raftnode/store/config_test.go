package store

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigRefusals(t *testing.T) {
	good := Config{NodeID: "n1", Dir: "/nowhere", Fatal: func(error) {}}
	for reason, c := range map[string]struct {
		field string
		spoil func(*Config)
	}{
		"it is empty":              {"NodeID", func(c *Config) { c.NodeID = "" }},
		"it or Memory must be set": {"Dir", func(c *Config) { c.Dir = "" }},
		"not both":                 {"Dir", func(c *Config) { c.Memory = new(Memory) }},
		"it is nil":                {"Fatal", func(c *Config) { c.Fatal = nil }},
		"not below LowSpace": {"ReservedSpace",
			func(c *Config) { c.ReservedSpace, c.LowSpace = 10, 10 }},
		"lower ReservedSpace": {"ReservedSpace",
			func(c *Config) { c.ReservedSpace = 1 << 40 }},
	} {
		cfg := good
		c.spoil(&cfg)
		_, err := Open(cfg)
		wrong, ok := errors.AsType[*ConfigError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, c.field, wrong.Field)
		assert.ErrorContains(t, wrong.Reason, reason)
	}
}

func TestMarksDifferByNode(t *testing.T) {
	marks := map[uint64]string{}
	for _, node := range []string{"n1", "n2", "n3", "n4", "n5"} {
		cfg, err := Config{NodeID: node, Memory: new(Memory), Fatal: func(error) {}}.withDefaults()
		require.NoError(t, err)
		assert.NotContains(t, marks, cfg.LowSpace)
		assert.GreaterOrEqual(t, cfg.LowSpace, uint64(DefaultLowSpace))
		assert.Less(t, cfg.LowSpace, uint64(DefaultLowSpace+DefaultLowSpaceSpread))
		marks[cfg.LowSpace] = node
	}
}
