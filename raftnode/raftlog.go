package raftnode

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger gives raft a logger that writes to log, from Info upwards.
func raftLogger(log *slog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	logger.RegisterSink(slogSink{log})
	return logger
}

// slogSink takes what hclog has to say to slog.
type slogSink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < hclog.Info {
		return
	}
	to := map[hclog.Level]slog.Level{
		hclog.Info: slog.LevelInfo, hclog.Warn: slog.LevelWarn, hclog.Error: slog.LevelError,
	}[level]
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok {
			args[i] = fmt.Sprintf(f[0].(string), f[1:]...)
		}
	}
	s.log.Log(context.Background(), to, name+": "+msg, args...)
}
