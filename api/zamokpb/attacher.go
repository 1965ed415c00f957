package zamokpb

// Attacher makes the frames with which a client attaches a session to one stream after the other,
// and keeps it. It is the whole protocol of a stream but for the tickets.
type Attacher struct {
	Secret   []byte
	Settings *SessionSettings
	// Session is the session's id; 0: no stream has opened it yet.
	Session uint64
	// AckedThrough: no ticket up to this one is requested again.
	AckedThrough uint64

	attempt uint64
}

// Open makes the first frame of a stream. The server attaches the latest attempt, whatever arrives
// last.
func (a *Attacher) Open(sent []byte) *ClientFrame {
	a.attempt++
	open := &OpenStream{Secret: a.Secret, Session: a.Session, Attempt: a.attempt}
	if a.Session == 0 {
		open.Settings = a.Settings
	}
	return a.Frame(sent, open.Message())
}

// Frame makes a frame. Sent is the client's clock, which a confirmation returns.
func (a *Attacher) Frame(sent []byte, messages ...*ClientMessage) *ClientFrame {
	return &ClientFrame{Messages: messages, Sent: sent, AckedThrough: a.AckedThrough}
}

// Attached takes the first message of a stream from the server; nil: it is another one.
func (a *Attacher) Attached(first *ServerMessage) *SessionState {
	state := first.GetSession()
	if state != nil {
		a.Session = state.Session
	}
	return state
}
