package api

import (
	"log/slog"
	"strings"

	"zamok/api/metrics"
	raftpeer "zamok/raftnode/peer"
)

// unaudited returns the handler of lines that could not be written, as on a full disk. The calls
// proceed: a cluster whose locks cannot be released because a log is full would do more harm than
// the gap, which is counted.
func unaudited(m *metrics.Metrics, log *slog.Logger) func(error) {
	rateLimited := raftpeer.NewRateLimitedLog(log)
	return func(err error) {
		m.Unaudited()
		rateLimited.Log(slog.LevelError, "audit",
			"the audit log can't be written, and its lines are lost: free disk space, or fix "+
				"the file", "error", err)
	}
}

// auditToLog is the audit log of a node that has no file for it.
type auditToLog struct{ log *slog.Logger }

func (l auditToLog) Write(line []byte) (int, error) {
	l.log.Info("audit", "event", strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}
