package zamokpb

import "google.golang.org/protobuf/proto"

// Message is what begins a stream as a message of its first frame.
func (m *OpenStream) Message() *ClientMessage {
	return &ClientMessage{Message: &ClientMessage_Open{Open: m}}
}

// Message is an acquisition as a message of a frame.
func (m *Acquire) Message() *ClientMessage {
	return &ClientMessage{Message: &ClientMessage_Acquire{Acquire: m}}
}

// Message is a drop as a message of a frame.
func (m *Drop) Message() *ClientMessage {
	return &ClientMessage{Message: &ClientMessage_Drop{Drop: m}}
}

// Message is a downgrade as a message of a frame.
func (m *Downgrade) Message() *ClientMessage {
	return &ClientMessage{Message: &ClientMessage_Downgrade{Downgrade: m}}
}

// Message is a renewal as a message of a frame.
func (m *KeepAlive) Message() *ClientMessage {
	return &ClientMessage{Message: &ClientMessage_KeepAlive{KeepAlive: m}}
}

// Message is the end of a session as a message of a frame.
func (m *CloseSession) Message() *ClientMessage {
	return &ClientMessage{Message: &ClientMessage_Close{Close: m}}
}

// Request is what a message contains; nil: nothing, or a kind that this program does not know.
func (m *ClientMessage) Request() proto.Message {
	switch m := m.GetMessage().(type) {
	case *ClientMessage_Open:
		return m.Open
	case *ClientMessage_Acquire:
		return m.Acquire
	case *ClientMessage_Drop:
		return m.Drop
	case *ClientMessage_Downgrade:
		return m.Downgrade
	case *ClientMessage_KeepAlive:
		return m.KeepAlive
	case *ClientMessage_Close:
		return m.Close
	}
	return nil
}
