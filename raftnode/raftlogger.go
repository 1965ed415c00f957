package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
)

// raftLogger is a logger for raft that writes to log. Raft logs each call that fails, dozens of
// times a second. So each of its messages, about one peer, is rate-limited (peer.RateLimitedLog).
func raftLogger(log *slog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(
		&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	logger.RegisterSink(slogSink{log, peer.NewRateLimitedLog(log)})
	return logger
}

// slogSink passes the records of hclog to slog.
type slogSink struct {
	log   *slog.Logger // for debugging only
	quiet *peer.RateLimitedLog
}

// raftLevels are the levels of messages that raft logs at another one. What another node or the
// network causes is no error of this node.
var raftLevels = map[string]slog.Level{
	// The transport logs once that a follower does not answer, or accepts nothing.
	"failed to heartbeat to":     slog.LevelDebug,
	"failed to appendEntries to": slog.LevelDebug,
	"failed to contact":          slog.LevelDebug,

	"failed to make requestVote RPC":                            slog.LevelWarn,
	"failed to install snapshot":                                slog.LevelWarn,
	"failed to send snapshot to":                                slog.LevelWarn,
	"failed to decode incoming command":                         slog.LevelWarn,
	"failed to flush response":                                  slog.LevelWarn,
	"failed to accept connection":                               slog.LevelWarn,
	"target does not support pre-vote RPC, treating as granted": slog.LevelWarn,
	"peer has newer term, stopping replication":                 slog.LevelInfo,
	"failed to pipeline appendEntries":                          slog.LevelWarn,
	"failed to start pipeline replication to":                   slog.LevelWarn,
}

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < hclog.Info {
		return
	}
	to, other := raftLevels[msg]
	if !other {
		// both count info, warning, error
		to = slog.Level(level-hclog.Info) * (slog.LevelWarn - slog.LevelInfo)
	}
	key := msg
	for i, a := range args {
		switch a := a.(type) {
		case hclog.Format:
			args[i] = fmt.Sprintf(a[0].(string), a[1:]...)
		case raft.Server:
			args[i] = fmt.Sprintf("%s at %s", a.ID, a.Address)
		case error:
			if isEnd(a) {
				to = slog.LevelDebug
			}
		}
		if i > 0 && slices.Contains([]any{"peer", "target", "server-id", "from"}, args[i-1]) {
			key = fmt.Sprint(msg, " ", args[i])
		}
	}
	if to == slog.LevelDebug {
		s.log.Log(context.Background(), to, name+": "+msg, args...)
		return
	}
	if to == slog.LevelInfo { // changes are logged, repetitions are not
		key = fmt.Sprint(msg, args)
	}
	s.quiet.Log(to, key, name+": "+msg, args...)
}

// isEnd reports whether an error means that this node closed the connection itself, mostly because
// it ends.
func isEnd(err error) bool {
	return slices.ContainsFunc([]error{net.ErrClosed, peer.ErrClosed, raft.ErrTransportShutdown},
		func(end error) bool {
			// raft's decoder does not wrap
			return errors.Is(err, end) || strings.HasSuffix(err.Error(), end.Error())
		})
}
