package api

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate/rules"
)

const panicSecret = "5ec4e7a0b1d2936f8844771100ffeedd"

// A panic in a call over HTTP ends the process, as one over gRPC does: net/http would recover from
// it, and the node would continue with what the call had locked.
func TestAPanicOverHTTPEndsTheProcess(t *testing.T) {
	const child = "ZAMOK_TEST_PANIC"
	if os.Getenv(child) == "" {
		run := exec.CommandContext(soon(t), os.Args[0], "-test.run=^"+t.Name()+"$")
		run.Env = append(os.Environ(), child+"=1")
		output, err := run.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", output)
		assert.Equal(t, 2, exit.ExitCode(), "%s", output)
		assert.Contains(t, string(output), "panic: a defect")
		assert.NotContains(t, string(output), panicSecret, "what the request has is in no report")
		assert.NotContains(t, string(output), panicSecret[:16])
		return
	}
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Rules = func() *rules.Set { panic("a defect") }
	})
	done, _ := inBackground(soon(t), t, c.leader(), "/v1/acquire", `{"name":"a"}`,
		"Idempotency-Key", panicSecret)
	<-done
}
