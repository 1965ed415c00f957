// Package wire converts between the state machine and the protocol of zamokpb: errors with their
// codes and outcomes, and the messages that describe tickets, locks and sessions. It knows neither
// gRPC handlers nor streams, so every front can use it.
package wire
