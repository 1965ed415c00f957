package peer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// foundry is a model of what docs/proofs/bootstrap.md argues, one step at a time. A step is the
// start of a round of questions, the answer of one node to one question, the end of a round, the
// carrying out of what Decide said (as much later as chance has it), a crash, or the loss of a
// disk.
type foundry struct {
	t      *testing.T
	random *rand.Rand
	list   List
	nodes  []*modelNode
	drawn  int // incarnations
	wipes  int // disks that may still be lost
	log    []func() string
	done   map[Action]int
}

type modelNode struct {
	// On disk.
	Server
	founders InitialMembers
	began    string // the first entry; "": it holds nothing
	joins    bool   // it waits to be taken into the cluster that began without it

	// In the process.
	asking  bool
	mine    Answer
	holds   map[Server]bool // answers of which only the first half was read
	replies []Reply
	decided *Decision
}

func newFoundry(t *testing.T, random *rand.Rand, size int) *foundry {
	f := &foundry{t: t, random: random, done: map[Action]int{}}
	text := ""
	for i := range size {
		text += fmt.Sprintf(",n%d=h%d:5751", i+1, i+1)
	}
	f.list = mustList(t, text[1:])
	for _, node := range f.list.Nodes() {
		n := &modelNode{Server: Server{Name: node.ID}}
		f.wipe(n)
		f.nodes = append(f.nodes, n)
	}
	f.wipes = random.IntN(size + 2)
	return f
}

// logf records a line, which is formatted only if something fails.
func (f *foundry) logf(format string, args ...any) {
	f.log = append(f.log, func() string { return fmt.Sprintf(format, args...) })
}

func (f *foundry) crash(n *modelNode) { n.asking, n.decided = false, nil }

func (f *foundry) wipe(n *modelNode) {
	f.drawn++
	*n = modelNode{Server: Server{n.Name, Incarnation{byte(f.drawn), byte(f.drawn >> 8), 1}}}
}

func (n *modelNode) answer(l List) Answer {
	return Answer{Server: n.Server, List: l,
		Condition: Condition{HasData: n.began != "", Initial: n.founders}}
}

// step makes one random step of one random node.
func (f *foundry) step() {
	n := f.nodes[f.random.IntN(len(f.nodes))]
	switch chance := f.random.IntN(40); {
	case chance == 0:
		f.logf("%s crashes", n.Server)
		f.crash(n)
		n.joins = false // the next process starts over, with its list
	case chance == 1 && f.wipes > 0:
		f.wipes--
		f.logf("%s is lost", n.Server)
		f.wipe(n)
	case n.joins && n.began == "":
		f.takeIn(n)
	case n.began != "":
	case n.decided != nil:
		f.act(n)
	case !n.asking:
		n.asking, n.mine, n.replies, n.holds = true, n.answer(f.list), nil, map[Server]bool{}
		f.logf("%s begins to ask, with %v", n.Server, n.mine.Initial)
	default:
		f.ask(n)
	}
}

// ask asks one node that has not answered yet. A node reads whether it holds data first, then its
// initial members; in between anything may happen. What was read of a disk that is lost by then
// never arrives.
func (f *foundry) ask(n *modelNode) {
	var left []*modelNode
	for _, other := range f.nodes {
		if other != n && !slices.ContainsFunc(n.replies,
			func(r Reply) bool { return r.Node.ID == other.Name }) {
			left = append(left, other)
		}
	}
	if len(left) == 0 {
		d := Decide(n.mine, n.replies)
		n.asking, n.decided = false, &d
		f.logf("%s decides: %s", n.Server, d.Action)
		return
	}
	other := left[f.random.IntN(len(left))]
	held, half := n.holds[other.Server]
	if !half {
		n.holds[other.Server] = other.began != ""
		return
	}
	reply := Reply{Node: Node{other.Name, "h" + other.Name[1:] + ":5751"},
		Answer: other.answer(f.list)}
	reply.Answer.HasData = held
	if f.random.IntN(20) == 0 {
		reply = silent(other.Name)
	}
	n.replies = append(n.replies, reply)
	f.logf("%s asks %s: holds %v, initial members %v, %v", n.Server, other.Server, held,
		other.founders, reply.Err)
}

// act carries out what was decided.
func (f *foundry) act(n *modelNode) {
	d := n.decided
	n.decided = nil
	f.done[d.Action]++
	f.logf("%s does: %s", n.Server, d.Action)
	switch d.Action {
	case Agree:
		n.founders = d.Initial
	case Bootstrap:
		if n.founders.String() != d.Initial.String() || !n.founders.Has(n.Server) {
			f.fail("%s begins with %v, and has %v on disk", n.Server, d.Initial, n.founders)
		}
		n.began = d.Initial.String()
	case JoinElsewhere:
		if f.random.IntN(2) == 0 {
			n.joins, n.founders = true, InitialMembers{}
		}
	case Refuse:
		f.fail("%s: %s", n.Server, d.Reason)
	}
}

// takeIn lets a node that waits have what the cluster has; it has no initial members then.
func (f *foundry) takeIn(n *modelNode) {
	from := f.nodes[f.random.IntN(len(f.nodes))]
	if n.began = from.began; n.began != "" {
		f.logf("%s is taken in by %s", n.Server, from.Server)
	}
}

// check is the claim: no two nodes have begun with different initial members.
func (f *foundry) check() {
	first := ""
	for _, n := range f.nodes {
		switch {
		case n.began == "" || n.began == first:
		case first == "":
			first = n.began
		default:
			f.fail("%s began with %s, another with %s", n.Server, n.began, first)
		}
	}
}

func (f *foundry) fail(format string, args ...any) {
	f.t.Helper()
	for _, line := range f.log {
		f.t.Log(line())
	}
	require.FailNow(f.t, fmt.Sprintf(format, args...))
}

// settle lets every node that is left continue without faults, in turns: all begin that are counted
// in, and the others are sent to those.
func (f *foundry) settle() {
	f.wipes = 0
	for range 6 {
		for _, n := range f.nodes {
			if n.began != "" || n.joins {
				continue
			}
			var replies []Reply
			for _, other := range f.nodes {
				if other != n {
					replies = append(replies,
						Reply{Node: Node{ID: other.Name}, Answer: other.answer(f.list)})
				}
			}
			d := Decide(n.answer(f.list), replies)
			n.decided = &d
			f.act(n)
			f.check()
		}
	}
	for _, n := range f.nodes {
		for _, other := range f.nodes {
			if n.began == "" && !n.joins && other.began != "" && other.founders.Has(n.Server) {
				f.fail("%s has not begun, though %s counts it in", n.Server, other.Server)
			}
		}
	}
	if slices.ContainsFunc(f.nodes, func(n *modelNode) bool { return n.began == "" && n.joins }) {
		return // its turn comes with the cluster that it waits for
	}
	if !slices.ContainsFunc(f.nodes, func(n *modelNode) bool { return n.began != "" }) {
		f.fail("none has begun")
	}
}

// However the steps of Agree and Bootstrap interleave with each other, with crashes and with disks
// that are lost: no two nodes hold different first entries.
func TestNoTwoNodesBeginDifferently(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	runs, done := 3000, map[Action]int{}
	if testing.Short() {
		runs = 1000
	}
	for range runs {
		f := newFoundry(t, random, 1+random.IntN(5))
		for range 50 * len(f.nodes) {
			f.step()
			f.check()
		}
		f.settle()
		for act, n := range f.done {
			done[act] += n
		}
	}
	t.Log(done)
	for _, act := range []Action{Agree, Bootstrap, Wait, JoinElsewhere} {
		require.Greater(t, done[act], 100, "so rarely %s: this shows nothing", act)
	}
}
