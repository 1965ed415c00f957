package fsm

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// The stories under testdata/story are the rules of locking, each shown by an example: a script,
// and under each of its steps what the machine makes of it. They are meant to be read by people who
// do not read Go; story_script_test.go lists the few words of the script.
//
// The transcripts say what *should* happen. After a change
//
//	go test ./fsm -run TestStories -rewrite
//
// writes down what does happen. Read the difference line by line, and keep it only if you can say
// of each line why it is right now and was wrong before.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/story", func(t *testing.T, path string) {
		s := newStory(t, SupportedVersions())
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.play(d)
		})
	})
}

// story is a machine, who writes to it, and what a reader needs to know to follow.
type story struct {
	t         *testing.T
	supported VersionRange
	m         *Machine
	term      uint64 // of the entries

	// The present leader: what it stamps its entries with.
	epoch uint64
	now   clock.Time
	nonce uint64

	epochs  []epochInfo // in order; they are called A, B, …
	clients map[string]*storyClient
	names   map[session.ID]string
	backups map[string][]byte

	// tokens has the last exclusive token of each lock, over restores too.
	tokens map[string]uint64
}

// epoch is one leadership.
type epochInfo struct {
	node  string
	index uint64
}

// storyClient is a client: a name for a session.
type storyClient struct {
	name       string
	id         session.ID
	ttl        clock.Span
	uses       int    // how many sessions it has lost: each has a secret of its own
	lastTicket uint64 // the highest ticket used
	// sent is what was asked for, by ticket: for repeating it, and to know a lock's ticket by the
	// lock's name.
	sent map[uint64]*Acquire
	// disconnected is what the leader saw when the person's stream broke.
	disconnected *ReleaseOnDisconnect
}

func newStory(t *testing.T, supported VersionRange) *story {
	return &story{
		t: t, supported: supported, m: NewWithVersions(supported),
		clients: make(map[string]*storyClient), names: make(map[session.ID]string),
		backups: make(map[string][]byte), tokens: make(map[string]uint64),
	}
}

// apply gives the entry to the machine, and to a twin that was restored from a snapshot taken just
// before: both must do the same, and each state must be sound.
func (s *story) apply(entry []byte) (Applied, error) {
	s.t.Helper()
	before := s.snapshot(s.m)
	replica, err := RestoreWithVersions(bytes.NewReader(before), s.supported)
	require.NoError(s.t, err)
	require.Equal(s.t, s.m.Digest(), replica.Digest(), "a restored machine has another digest")
	state := s.observe()

	a, err := s.m.Apply(s.term, entry)
	replicaApplied, replicaErr := replica.Apply(s.term, entry)
	require.Equal(s.t, err, replicaErr)
	require.Equal(s.t, a, replicaApplied, "a restored machine does something else")
	for _, m := range []*Machine{s.m, replica} {
		require.NoError(s.t, m.Check())
		require.Equal(s.t, s.m.Digest(), m.Digest())
	}
	after := s.snapshot(s.m)
	require.True(s.t, bytes.Equal(after, s.snapshot(replica)), "a restored machine has other bytes")
	if err != nil {
		require.True(s.t, bytes.Equal(before, after), "the machine stopped and yet changed")
		return a, err
	}
	s.checkEntry(state, a)
	return a, nil
}

func (s *story) snapshot(m *Machine) []byte {
	s.t.Helper()
	var b bytes.Buffer
	_, err := m.Freeze().WriteTo(&b)
	require.NoError(s.t, err)
	return b.Bytes()
}

// observation is what is compared before and after an entry.
type observation struct {
	stamp  clock.Stamp
	time   clock.Time
	epoch  uint64
	counts Counts
	digest uint64 // of all but the header
	queues map[string][]TicketRef
}

func (s *story) observe() observation {
	queues := make(map[string][]TicketRef)
	for _, lock := range s.m.Locks("", "", unlimited) {
		for ref := range s.m.Waiters(lock.Name) {
			queues[lock.Name] = append(queues[lock.Name], ref)
		}
	}
	state := s.m.canonical
	state.header = header{}
	return observation{
		s.m.Stamp(), s.m.Time(), s.m.Epoch(), s.m.Counts(),
		state.Digest(), queues,
	}
}

// unlimited is more than there ever is of anything in a story.
const unlimited = 1 << 20

// checkEntry holds what an entry did to the version that hold in every story.
func (s *story) checkEntry(before observation, a Applied) {
	s.t.Helper()
	after := s.observe()
	require.True(s.t, before.stamp.Before(after.stamp), "the stamp went from %v to %v",
		before.stamp, after.stamp)
	require.Equal(s.t, after.stamp, a.Stamp)
	require.GreaterOrEqual(s.t, after.time, before.time, "time went back")
	require.Equal(s.t, after.time, a.Time)
	if a.Refused != OK {
		require.Equal(s.t, before.stamp.Index+1, after.stamp.Index)
		require.Empty(s.t, a.Events)
		require.Empty(s.t, a.Results)
		// a higher term ends the epoch in any case
		before.stamp, before.epoch = after.stamp, after.epoch
		require.Equal(s.t, before, after, "a refused entry changed something")
		return
	}
	s.checkEvents(before, after, a)
}

func (s *story) checkEvents(before, after observation, a Applied) {
	s.t.Helper()
	moved := make(map[string]uint64)
	index := a.Index
	for _, e := range a.Events {
		require.GreaterOrEqual(s.t, e.Index, index, "events are out of order")
		require.LessOrEqual(s.t, e.Index, after.stamp.Index)
		index = e.Index
		switch e.Kind {
		case EvGranted:
			for _, it := range e.Items {
				if it.Mode == Exclusive {
					require.Greater(s.t, e.Token, s.tokens[it.Name], "the tokens of %s do not rise",
						it.Name)
					s.tokens[it.Name] = e.Token
				}
			}
			require.Equal(s.t, e.Index, e.Token, "a token is the index of the step that granted")
		case EvQueueChanged:
			require.NotEqual(s.t, e.Index, moved[e.Lock],
				"the queue of %s is reported twice in one step", e.Lock)
			moved[e.Lock] = e.Index
		}
	}
	for name, queue := range after.queues {
		if moved[name] == 0 {
			require.Equal(s.t, before.queues[name], queue,
				"the queue of %s moved without an event", name)
		}
	}
}
