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

	"zamok/bench/peer"
)

// holderProcess is another process that holds a lock: this program, called as `hold`.
type holderProcess struct {
	cmd  *exec.Cmd
	kill func() // as a power cut would; may be called again
}

// holderSpec is the argument of a holder.
type holderSpec struct {
	System, Key string
	Session     peer.Session
}

const holderTimeout = 20 * time.Second

func startHolder(ctx context.Context, system, key string, s peer.Session) (*holderProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(holderSpec{system, key, s})
	if err != nil {
		return nil, err
	}
	h := &holderProcess{cmd: exec.CommandContext(ctx, self, "hold", string(text))}
	h.cmd.Stderr = os.Stderr
	if _, err := h.cmd.StdinPipe(); err != nil { // it ends when we do: its standard input is then closed
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	h.kill = sync.OnceFunc(func() {
		_ = h.cmd.Process.Kill() // it may have ended by itself
		_ = h.cmd.Wait()
	})
	scanner, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(scanner) != heldMessage {
		h.kill()
		return nil, fmt.Errorf("the process that was to hold the lock printed %q (%v)", scanner, err)
	}
	return h, nil
}

const heldMessage = "held"

// Hold is the other process: it takes the lock, prints that, and keeps it until its input ends.
func Hold(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var h holderSpec
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return err
	}
	systems := peer.Systems()
	i := slices.IndexFunc(systems, func(s peer.System) bool { return s.Name == h.System })
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
