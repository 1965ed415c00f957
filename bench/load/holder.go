package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"zamok/bench/driver"
)

// holderSpec is the argument of a holder.
type holderSpec struct {
	System, Key string
	Session     driver.Session
}

const holderTimeout = 20 * time.Second

// startHolder starts another process that holds a lock: this program, called as `hold`. kill ends
// it by kill -9, and may be called again.
func startHolder(ctx context.Context, system, key string,
	s driver.Session) (kill func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(holderSpec{system, key, s})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "hold", string(text))
	cmd.Stderr = os.Stderr
	// closed when this process ends: then the holder ends, too
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != heldMessage {
		kill()
		return nil, fmt.Errorf("instead of holding the lock, the process printed %q (%v)",
			line, err)
	}
	return kill, nil
}

const heldMessage = "held"

// Hold is the other process: it acquires the lock, prints that, and holds it until its input ends.
func Hold(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var h holderSpec
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return err
	}
	systems := driver.Systems()
	i := slices.IndexFunc(systems, func(s driver.System) bool { return s.Name == h.System })
	if i < 0 {
		return errors.New("no system is called " + h.System)
	}
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	c, err := systems[i].Open(ctx, h.Session)
	if err != nil {
		return err
	}
	if _, err := c.Lock(ctx, h.Key); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, heldMessage); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, c.Close())
}
