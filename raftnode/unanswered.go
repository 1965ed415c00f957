package raftnode

import (
	"reflect"

	"github.com/hashicorp/raft"
)

// waitAnswered lets a future of raft fail with raft.ErrRaftShutdown once raft is over. What raft has not
// looked at when it ends it never answers (hashicorp/raft#498), and a caller that waits for the answer would
// wait forever. Futures have an exported field against that, ShutdownCh; raft sets it for restores
// only, and its types are not exported. It belongs to who calls Error, and to nobody else, so it is set
// before that call and by the same goroutine. Should raft drop it, waiting is as without it.
func waitAnswered(over chan struct{}, future raft.Future) raft.Future {
	v := reflect.ValueOf(future)
	if v.Kind() != reflect.Pointer { // of those that are answered from the beginning
		return future
	}
	if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
		field.Set(reflect.ValueOf(over))
	}
	return future
}
