package raftnode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// What must survive a kill -9, and what would leave a goroutine behind that never ends, is tested
// in processes of their own: the test binary started again, one process for each node. They are
// controlled what to do by lines of JSON on their standard input and answer through a pipe,
// descriptor 3. A process whose standard input ends has lost its test, and ends too.

// orderVariable makes the test binary a process of a cluster; it holds an order.
const orderVariable = "ZAMOK_TEST_NODE"

// order says what a process is.
type order struct {
	ID, Dir, Address, Cluster string
	// Floor is nothing for a node, and for the bare stack that nodes are compared with how many
	// messages to a follower may be on their way.
	Floor           int
	SnapshotEntries uint64
	Election        time.Duration
}

// task is what a test has a process do.
type task struct {
	Do string // load, rest, report, fence, transfer, sick, serve, close
	// Workers is for load and serve, Round for load, How for sick, Index for report.
	Workers, Round int
	How            string
	Index          uint64
}

// said is a line of a process: what its load was acknowledged, or the answer to a task.
type said struct {
	// Of is opened, granted, dropping or dropped for the load, fatal, or the Do of a task.
	Of string
	fsm.TicketRef
	Name  string    `json:",omitempty"`
	Token uint64    `json:",omitempty"`
	Error string    `json:",omitempty"`
	State *standing `json:",omitempty"`
}

// standing is how a node stands.
type standing struct {
	Leads       bool
	Leader      string
	Term        uint64
	Index       uint64 // the machine's
	Digest      uint64 // the machine's at the index of the task; 0 = it did not stop there
	First, Last uint64 // raft indexes of its log
	Restored    uint64 // the highest index of a snapshot that was installed
	Check       string // what the machine has against itself
	Led         led
	Live        []liveTicket
}

// led is what the entries cost that a node led, in sum.
type led struct {
	Entries, Commands, Bytes     int
	Queue, Append, Commit, Apply time.Duration
}

func (l *led) add(m ProposalTiming) {
	l.Entries++
	l.Commands += m.Commands
	l.Bytes += m.Bytes
	l.Queue += m.Queue
	l.Append += m.Append
	l.Commit += m.Commit
	l.Apply += m.Apply
}

type liveTicket struct {
	fsm.TicketRef
	Name  string
	Token uint64 // 0 = it waits
}

// mouth is how a process speaks: whole lines, each with one write, so that of a killed process only
// the last can be torn.
type mouth struct {
	mu  sync.Mutex
	out *os.File
}

func (m *mouth) say(s said) {
	line, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.out.Write(append(line, '\n')); err != nil {
		os.Exit(4) // its reader is gone
	}
}

// die ends the process of a node as production does.
func (m *mouth) die(err error) {
	m.say(said{Of: "fatal", Error: err.Error()})
	os.Exit(fatalCode)
}

const fatalCode = 3

// TestNodeProcess is no test by itself.
func TestNodeProcess(t *testing.T) {
	text := os.Getenv(orderVariable)
	if text == "" {
		t.Skip("the tests of this package that need processes start it in them")
	}
	var o order
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	m := &mouth{out: os.NewFile(3, "pipe")}
	tasks := make(chan task)
	go func() {
		run := json.NewDecoder(os.Stdin)
		for {
			var a task
			if err := run.Decode(&a); err != nil {
				if !errors.Is(err, io.EOF) {
					fmt.Fprintln(os.Stderr, "not a task:", err)
				}
				os.Exit(4)
			}
			tasks <- a
		}
	}()
	if o.Floor > 0 {
		runFloor(t, o, m, tasks)
		return
	}
	runNode(t, o, m, tasks)
}

// listen opens the port that the test chose. A connection of a dead process may hold it for a
// moment.
func listen(t *testing.T, address string) net.Listener {
	var l net.Listener
	until(t, "a port at "+address, func() bool {
		var err error
		l, err = peer.ListenTCP(context.Background(), address)
		return err == nil
	})
	return l
}

// served is a node inside a process.
type served struct {
	node  *Node
	mouth *mouth
	disk  *sickDisk
	load  *load
	*memory
}

func runNode(t *testing.T, o order, m *mouth, tasks <-chan task) {
	list, err := peer.ParseList(o.Cluster)
	require.NoError(t, err)
	s := &served{mouth: m, disk: newSickDisk(), memory: &memory{digests: make(map[uint64]uint64)}}
	s.load = newLoad(m)
	s.node, err = Open(context.Background(), Config{
		ID: o.ID, Store: store.Config{Dir: o.Dir, Wrap: s.disk.wrap()},
		Peers: peer.Config{List: list, Listener: listen(t, o.Address)}, Client: "client of " + o.ID,
		TokenBase: 1 << 20, SnapshotEntries: o.SnapshotEntries, SnapshotEvery: time.Second,
		// on a busy machine what is measured would change it in the middle of a story
		ElectionTimeout: cmp.Or(o.Election, timeoutMin),
		Applied: func(m *fsm.Machine, a fsm.Applied) {
			if len(a.Results) == 0 { // as a fence; after each entry of a load it would count
				s.noteDigest(m)
			}
			s.load.hear(a.Events)
		},
		Restored: func(m *fsm.Machine) { s.noteRestored(m) },
		Timing:   s.noteLed,
		Fatal:    m.die,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	require.NoError(t, err)
	m.say(said{Of: "open"})
	for a := range tasks {
		if a.Do == "close" {
			err := s.node.Close()
			s.load.rest()
			m.say(said{Of: "close", Error: text(err)})
			return
		}
		s.answer(t, a)
	}
}

func (s *served) answer(t *testing.T, a task) {
	answer := said{Of: a.Do}
	switch a.Do {
	case "load":
		s.load.start(s.node, a.Workers, a.Round)
	case "rest":
		s.load.rest()
	case "fence":
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		stamp, _, err := s.node.ReadBarrier(ctx)
		answer.Token, answer.Error = stamp.Index, text(err)
	case "report":
		answer.State = s.report(a.Index)
	case "transfer":
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		answer.Error = text(s.node.Transfer(ctx, ""))
	case "sick":
		answer.Error = text(s.disk.become(a.How))
	case "serve":
		answer.Name = s.serve(t, a.Workers)
	default:
		answer.Error = "unknown to this process"
	}
	s.mouth.say(answer)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *served) report(index uint64) *standing {
	status := s.node.Status()
	r := &standing{
		Leads: status.Leading, Leader: status.Leader, Term: status.Term, Last: status.RaftIndex,
	}
	r.Restored, r.Led = s.read()
	r.First, _ = s.node.store.Logs().FirstIndex()
	s.node.View(func(m *fsm.Machine) {
		r.Index, r.Check = m.Stamp().Index, text(m.Check())
		for _, l := range m.Locks("", "", 1<<20) {
			for _, ref := range slices.AppendSeq(slices.Collect(m.Holders(l.Name)),
				m.Waiters(l.Name)) {
				t, _ := m.Ticket(ref)
				r.Live = append(r.Live, liveTicket{ref, l.Name, t.Token})
			}
		}
	})
	r.Digest = s.digestAt(index)
	return r
}

// memory is what a process remembers of what its node applied.
type memory struct {
	mu       sync.Mutex
	digests  map[uint64]uint64 // by the machine's index, after entries without commands
	restored uint64
	led      led
}

func (m *memory) noteDigest(machine *fsm.Machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.digests[machine.Stamp().Index] = machine.Digest()
}

func (m *memory) noteRestored(machine *fsm.Machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restored = max(m.restored, machine.Stamp().Index)
	m.digests[machine.Stamp().Index] = machine.Digest()
}

func (m *memory) noteLed(measure ProposalTiming) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.led.add(measure)
}

func (m *memory) digestAt(index uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.digests[index]
}

func (m *memory) read() (restored uint64, led led) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restored, m.led
}
