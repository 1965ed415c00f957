package raftnode

import (
	"reflect"

	"github.com/hashicorp/raft"
)

// waitAnswered makes a future of raft fail with raft.ErrRaftShutdown once over is closed. Raft never answers the futures
// that it has not looked at when it ends (hashicorp/raft#498), so a caller would wait for them forever. Futures have
// an exported field against that, ShutdownCh, of types that are not exported; raft sets it for restores only. It is
// read by Error, so it is set before Error is called. Without the field, waiting is as without waitAnswered.
func waitAnswered[F raft.Future](over chan struct{}, future F) F {
	v := reflect.ValueOf(future)
	if v.Kind() != reflect.Pointer { // of those that are answered from the beginning
		return future
	}
	if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
		field.Set(reflect.ValueOf(over))
	}
	return future
}
