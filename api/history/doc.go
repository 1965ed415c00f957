// Package history remembers what a node saw applied: the latest events of tickets and sessions, for watches, and the
// cluster times of indexes, for ages that are shown to people. It is bounded in bytes however many clients watch.
package history
