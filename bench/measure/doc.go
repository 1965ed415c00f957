// Package measure is the arithmetic of the comparison: what one observation is, and how many become
// one number. It knows no system and no clock.
//
//  1. A Record is one workload on one system in one round. Records are only appended, one JSON
//     document per line, so that a run which was broken off is still a result.
//  2. Systems are compared within a round and never across rounds: the machine's speed drifts by a
//     fifth from minute to minute, and what was measured a minute apart shares most of the drift.
//  3. What is printed is a median with the least and the greatest value beside it. There is no mean
//     and no error bar: three to five rounds do not carry them.
package measure
