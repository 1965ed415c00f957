package clock

// Time is cluster time: the nanoseconds during which the cluster has had a
// leader, counted from its first. Zero is the birth of the cluster. It is part
// of the replicated state, the same on every node at the same place of the log.
// Being a plain number it is compared with <, == and >.
type Time int64

// Add stops at the ends of the scale instead of wrapping (C8).
func (t Time) Add(s Span) Time { return Time(addSaturated(int64(t), int64(s))) }

// Sub is how much later t is than u; negative if it is earlier. It stops at the
// ends of the scale.
func (t Time) Sub(u Time) Span { return Span(subSaturated(int64(t), int64(u))) }

// String prints the time since the cluster's birth: "12.5s".
func (t Time) String() string { return Span(t).String() }
