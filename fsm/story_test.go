package fsm

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// The stories under testdata/story are the version of locking, each told by an example: a script, and
// under each of its steps what the machine makes of it. They are meant to be read by people who do
// not read Go; story_script_test.go lists the few words of the script.
//
// The transcripts say what *should* happen. After a change
//
//	go test ./fsm -run TestStories -rewrite
//
// writes down what does happen. Read the difference line by line, and keep it only if you can say
// of each line why it is right now and was wrong before.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/story", func(t *testing.T, path string) {
		s := newStory(t, Known())
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.play(d)
		})
	})
}

// story is a machine, who writes to it, and what a reader needs to know to follow.
type story struct {
	t     *testing.T
	known Range
	m     *Machine
	term  uint64 // of the entries

	// The present leader: what it stamps its entries with.
	office uint64
	now    clock.Time
	nonce  uint64

	offices []office // in order; they are called A, B, …
	people  map[string]*person
	named   map[session.ID]string
	backups map[string][]byte

	// tokens has the last exclusive token of each lock, over restores too.
	tokens map[string]uint64
}

// epoch is one leadership.
type office struct {
	node   string
	number uint64
}

// person is a client: a name for a session.
type person struct {
	name string
	id   session.ID
	ttl  clock.Span
	last uint64 // the highest ticket used
	// sent is what was asked for, by ticket: for repeating it, and to know a lock's ticket by the
	// lock's name.
	sent map[uint64]*Acquire
	// broke is what the leader saw when the person's stream broke.
	broke *Detached
}

func newStory(t *testing.T, known Range) *story {
	return &story{
		t: t, known: known, m: newMachine(known),
		people: make(map[string]*person), named: make(map[session.ID]string),
		backups: make(map[string][]byte), tokens: make(map[string]uint64),
	}
}

// apply gives the entry to the machine, and to a twin that was restored from a snapshot taken just
// before: both must do the same, and each state must be sound.
func (s *story) apply(entry []byte) (Applied, error) {
	s.t.Helper()
	before := s.snapshot(s.m)
	twin, err := restore(bytes.NewReader(before), s.known)
	require.NoError(s.t, err)
	require.Equal(s.t, s.m.Digest(), twin.Digest(), "a restored machine has another digest")
	was := s.look()

	a, err := s.m.Apply(s.term, entry)
	ofTwin, errOfTwin := twin.Apply(s.term, entry)
	require.Equal(s.t, err, errOfTwin)
	require.Equal(s.t, a, ofTwin, "a restored machine does something else")
	for _, m := range []*Machine{s.m, twin} {
		require.NoError(s.t, m.Check())
		require.Equal(s.t, s.m.Digest(), m.Digest())
	}
	after := s.snapshot(s.m)
	require.True(s.t, bytes.Equal(after, s.snapshot(twin)), "a restored machine has other bytes")
	if err != nil {
		require.True(s.t, bytes.Equal(before, after), "the machine stopped and yet changed")
		return a, err
	}
	s.judge(was, a)
	return a, nil
}

func (s *story) snapshot(m *Machine) []byte {
	s.t.Helper()
	var b bytes.Buffer
	_, err := m.Freeze().WriteTo(&b)
	require.NoError(s.t, err)
	return b.Bytes()
}

// seen is what is compared before and after an entry.
type seen struct {
	stamp  clock.Stamp
	time   clock.Time
	office uint64
	counts Counts
	sums   [2]session.Sum
	queues map[string][]TicketRef
}

func (s *story) look() seen {
	queues := make(map[string][]TicketRef)
	for _, lock := range s.m.Locks("", "", everything) {
		view, _ := s.m.Lock(lock.Name, everything)
		for _, t := range view.Queue {
			queues[lock.Name] = append(queues[lock.Name], t.TicketRef)
		}
	}
	return seen{
		s.m.Stamp(), s.m.Time(), s.m.Epoch(), s.m.Counts(),
		[2]session.Sum{s.m.sessions.Sum(), s.m.sum}, queues,
	}
}

// everything is more than there ever is of anything in a story.
const everything = 1 << 20

// judge holds what an entry did to the version that hold in every story.
func (s *story) judge(was seen, a Applied) {
	s.t.Helper()
	is := s.look()
	require.True(s.t, was.stamp.Before(is.stamp), "the stamp went from %v to %v", was.stamp, is.stamp)
	require.Equal(s.t, is.stamp, a.Stamp)
	require.GreaterOrEqual(s.t, is.time, was.time, "time went back")
	require.Equal(s.t, is.time, a.Time)
	if a.Refused != OK {
		require.Equal(s.t, was.stamp.Index+1, is.stamp.Index)
		require.Empty(s.t, a.Events)
		require.Empty(s.t, a.Results)
		was.stamp, was.office = is.stamp, is.office // a higher term ends the epoch in any case
		require.Equal(s.t, was, is, "a refused entry changed something")
		return
	}
	s.judgeEvents(was, is, a)
}

func (s *story) judgeEvents(was, is seen, a Applied) {
	s.t.Helper()
	moved := make(map[string]uint64)
	index := a.Index
	for _, e := range a.Events {
		require.GreaterOrEqual(s.t, e.Index, index, "events are out of order")
		require.LessOrEqual(s.t, e.Index, is.stamp.Index)
		index = e.Index
		switch e.Kind {
		case EvGranted:
			for _, it := range e.Items {
				if it.Mode == Exclusive {
					require.Greater(s.t, e.Token, s.tokens[it.Name], "the tokens of %s do not rise", it.Name)
					s.tokens[it.Name] = e.Token
				}
			}
			require.Equal(s.t, e.Index, e.Token, "a token is the index of the step that granted")
		case EvQueueMoved:
			require.NotEqual(s.t, e.Index, moved[e.Text], "the queue of %s is told twice in one step", e.Text)
			moved[e.Text] = e.Index
		}
	}
	for name, queue := range is.queues {
		if moved[name] == 0 {
			require.Equal(s.t, was.queues[name], queue, "the queue of %s moved and nobody was told", name)
		}
	}
}
