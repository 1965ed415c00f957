// Package claim names what a run makes outside of its own processes (mounts, network namespaces), so that the
// next run can tell what a dead one has left.
//
// A name holds the pid of the run and the moment at which that process was started: no other process ever has
// both. So what is dead can be removed, and what belongs to a run that continues beside is left alone.
package claim
