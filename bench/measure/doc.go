// Package measure is the arithmetic of the comparison: what one observation is, and how many
// observations become one number. It uses no system and no clock.
//
//  1. A Record is one workload on one system in one round. Records are only appended, one JSON
//     document per line, so that an interrupted run is still a result.
//  2. Systems are compared within a round and never across rounds: the machine's speed drifts by a
//     fifth from minute to minute, and what was measured a minute apart shares most of the drift.
//  3. The report prints a median with the least and the greatest value. Three to five rounds are
//     too few for a mean or an error bar.
package measure
