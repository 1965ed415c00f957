package zamokpb

// The metadata of a call of gRPC, and with the same names headers of HTTP.
const (
	// AuthorizationKey has the token of the caller.
	AuthorizationKey = "authorization"
	// ClusterKey names the cluster that a request is for, and in a response that of the node.
	ClusterKey = "zamok-cluster"
	// RelayKey is "1" for a call that a node relays to the leader if it does not lead itself.
	RelayKey = "zamok-relay"
	// FirstKey is "1" for a call that opens a session or acquires, and a stream that opens a
	// session, whose sender says that this is the first transmission, or that every earlier one was
	// refused as not done.
	FirstKey = "zamok-first"
	// CallerKey has the caller of a relayed call, as the relaying node has authenticated it. It
	// counts only on connections of other nodes.
	CallerKey = "zamok-caller-bin"
)
