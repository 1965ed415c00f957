package fsm

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

// # The language of the stories
//
// Each line is an entry of its own in the log, written by the present leader and stamped with its
// clock. Several lines may share one transcript. Sessions go by their client's name; #2 is a
// client's ticket 2, and where a lock's name will do, it stands for the latest ticket that asked
// for it.
//
// Leaders and time
//
//	leader n1 [base=100] [term=4]  n1 is elected in the next term (or this one), and opens an
//	                               epoch, called A, B, … in order; its clock starts at the
//	                               machine's time
//	time 5s                        the leader's clock is at 5s: an entry with nothing else in it
//	pass 3s                        3s go by: as `time`, counted from now
//	unwritten 900ms                so much goes by and no entry is written
//	restart                        every node starts again from its snapshot
//
// Clients
//
//	open alice bob [ttl=10s] [delay=5s] [release_on_disconnect=2s] [identity=…] [label=…]
//	        [secret=old]           with a new secret if her session has ended, or the old one
//	alice acquires ITEM… [wait=3s] [owner=x] [hold=30s] [as=7] [acked=3]
//	                               waits, forever without wait=
//	alice tries ITEM… …            does not wait
//	    an ITEM is stock, stock:shared, or seats:2/10 (2 of 10 permits);
//	    item/1..65 is 65 names, x*513 a name of 513 bytes
//	alice repeats #1               the same Acquire comes once more
//	alice drops|downgrades stock|#1 [acked=1]
//	alice renews | attaches [secret=…] [acked=1] [attempt=2] | closes | withdraws
//	alice breaks                   the leader sees her stream break; no entry
//	disconnected alice             the leader proposes to release what it holds: its stream did
//	                               not come back
//
// Operators, nodes
//
//	force stock token=105 [reason=…]      expire alice [reason=…]
//	longest ttl=48h                sessions may be opened with a ttl of up to 48h
//	quotas [sessions=9] [tickets=9] [bytes=9000] [share=50]
//	                               what all clients may use, and how many percent each identity
//	member n1 disk=A [version=1-2] [free=…]   raise to=2   report n1 index=5 value=7
//	binary knows=1-2               the program is replaced by one that knows these version
//	backup monday                  keeps a snapshot
//	restore monday [above=900] [quiet=20s] [time=1h]   makes a new history out of it
//
// Before a line
//
//	at 12s …          the leader's clock is at 12s
//	stamped A 20s …   the entry carries the reading 20s of epoch A (or of this number), whichever
//	                  node leads
//	term 3 …          the entry comes in term 3, and so do those after it
//	version 2 …         the entry is encoded under version 2
//	damaged …  truncated …   its bytes suffer on the way
//	newer …           the entry is of a binary that knows more commands, and has one of those
//
// Around lines
//
//	entry             all following lines go into one entry
//	repeat 100        the following lines are played 100 times, % being the number; the transcript
//	                  counts what is said
//
// Questions: show stock|alice|locks|members|member n1|quotas [of=identity], why bob, next, index.

// scriptLine is one line of a script, taken apart.
type scriptLine struct {
	s       *story
	text    string
	words   []string
	options map[string]string
}

func (s *story) parseLine(text string) *scriptLine {
	s.t.Helper()
	cmd, args, err := datadriven.ParseLine(text)
	require.NoError(s.t, err)
	l := &scriptLine{s: s, text: text, words: []string{cmd}, options: make(map[string]string)}
	for _, arg := range args {
		if arg.Vals == nil {
			l.words = append(l.words, arg.Key)
		} else {
			l.options[arg.Key] = strings.Join(arg.Vals, ", ")
		}
	}
	return l
}

func (l *scriptLine) fail(format string, args ...any) {
	l.s.t.Helper()
	l.s.t.Fatalf("%s: %s", l.text, fmt.Sprintf(format, args...))
}

// next takes the next word.
func (l *scriptLine) next() string {
	l.s.t.Helper()
	if len(l.words) == 0 {
		l.fail("there is a word missing")
	}
	word := l.words[0]
	l.words = l.words[1:]
	return word
}

// option takes an option, or its default.
func (l *scriptLine) option(key, fallback string) string {
	if v, ok := l.options[key]; ok {
		delete(l.options, key)
		return v
	}
	return fallback
}

// end insists that everything was understood.
func (l *scriptLine) end() {
	l.s.t.Helper()
	if len(l.words)+len(l.options) > 0 {
		l.fail("what is %v %v?", l.words, l.options)
	}
}

func (l *scriptLine) number(text string) uint64 {
	l.s.t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(l.s.t, err, l.text)
	return n
}

func (l *scriptLine) span(text string) clock.Span {
	l.s.t.Helper()
	d, err := time.ParseDuration(text)
	require.NoError(l.s.t, err, l.text)
	return clock.FromDuration(d)
}

// versionRange reads "1-3".
func (l *scriptLine) versionRange(text string) VersionRange {
	l.s.t.Helper()
	low, high, ok := strings.Cut(text, "-")
	if !ok {
		l.fail("%q is no range", text)
	}
	return VersionRange{uint32(l.number(low)), uint32(l.number(high))}
}

// storyClient is who the next word names.
func (l *scriptLine) storyClient() *storyClient {
	l.s.t.Helper()
	name := l.next()
	p := l.s.clients[name]
	if p == nil {
		l.fail("nobody here is called %s", name)
	}
	return p
}

// items takes the words that are left.
func (l *scriptLine) items() []Item {
	l.s.t.Helper()
	var items []Item
	for len(l.words) > 0 {
		word := l.next()
		name, how, _ := strings.Cut(word, ":")
		it := Item{Mode: Exclusive}
		if n, of, permits := strings.Cut(how, "/"); permits {
			it = Item{Mode: Permits, Permits: uint32(l.number(n)), Of: uint32(l.number(of))}
		} else if how == "shared" {
			it.Mode = Shared
		} else if how != "" {
			l.fail("%q is no mode", how)
		}
		for _, name := range l.names(name) {
			it.Name = name
			items = append(items, it)
		}
	}
	return items
}

// names spells out item/1..65 and x*513.
func (l *scriptLine) names(text string) []string {
	l.s.t.Helper()
	if letter, n, ok := strings.Cut(text, "*"); ok {
		return []string{strings.Repeat(letter, int(l.number(n)))}
	}
	stem, last, ok := strings.Cut(text, "..")
	if !ok {
		return []string{text}
	}
	cut := strings.LastIndex(stem, "/") + 1
	var names []string
	for i := l.number(stem[cut:]); i <= l.number(last); i++ {
		names = append(names, fmt.Sprintf("%s%d", stem[:cut], i))
	}
	return names
}

// ticket is a person's ticket: #2, or the latest that asked for a lock of this name, if possible
// one that has not ended.
func (l *scriptLine) ticket(p *storyClient) uint64 {
	l.s.t.Helper()
	word := l.next()
	if n, ok := strings.CutPrefix(word, "#"); ok {
		return l.number(n)
	}
	latest := uint64(0)
	for n := p.lastTicket; n > 0; n-- {
		c := p.sent[n]
		if c == nil || !slices.ContainsFunc(c.Items,
			func(it Item) bool { return it.Name == word }) {
			continue
		}
		if view, _ := l.s.m.Ticket(TicketRef{p.id, n}); view.State != Ended {
			return n
		}
		latest = max(latest, n)
	}
	if latest == 0 {
		l.fail("%s never asked for %s", p.name, word)
	}
	return latest
}

// entryDraft is an entry that is being written.
type entryDraft struct {
	Entry
	setsTime bool                // the script sets the time
	corrupt  func([]byte) []byte // what happens to the bytes on the way
}

// newDraft begins an entry with what stands before a line.
func (s *story) newDraft(l *scriptLine) *entryDraft {
	s.t.Helper()
	d := &entryDraft{Entry: Entry{Version: s.m.Version()}}
	d.Reading = clock.Reading{Epoch: s.epoch, Now: s.now}
	for {
		switch l.words[0] {
		case "at":
			l.next()
			s.now = clock.Time(l.span(l.next()))
			d.Reading.Now, d.setsTime = s.now, true
		case "stamped":
			l.next()
			d.Reading = clock.Reading{Epoch: l.epoch(l.next()), Now: clock.Time(l.span(l.next()))}
			d.setsTime = true
		case "term":
			l.next()
			s.term = l.number(l.next())
		case "version":
			l.next()
			d.Version = uint32(l.number(l.next()))
		case "damaged":
			l.next()
			d.corrupt = func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b }
		case "newer":
			l.next()
			d.corrupt = func([]byte) []byte {
				head := (&Entry{Version: d.Version, Reading: d.Reading}).Append(nil)
				// of what stands before the number of commands
				end := len(head) - record.ChecksumBytes - 1
				return record.AppendChecksum(append(head[:end], 1, 99, 0), 0)
			}
		case "truncated":
			l.next()
			d.corrupt = func(b []byte) []byte { return b[:len(b)-1] }
		default:
			return d
		}
	}
}

// epoch is the number of the epoch that goes by this letter.
func (l *scriptLine) epoch(letter string) uint64 {
	l.s.t.Helper()
	i := int(letter[0] - 'A')
	if i < 0 || i >= len(l.s.epochs) {
		return l.number(letter)
	}
	return l.s.epochs[i].index
}

// write puts what a line says into the entry; false: the line is not one for an entry.
func (s *story) write(d *entryDraft, l *scriptLine) bool {
	s.t.Helper()
	switch word := l.words[0]; word {
	case "time":
		l.next()
		s.now = clock.Time(l.span(l.next()))
		d.Reading.Now, d.setsTime = s.now, true
	case "pass":
		l.next()
		s.now = s.now.Add(l.span(l.next()))
		d.Reading.Now, d.setsTime = s.now, true
	case "open":
		s.writeOpen(d, l)
	case "disconnected":
		l.next()
		p := l.storyClient()
		require.NotNil(s.t, p.disconnected, "%s's stream did not break", p.name)
		d.Commands = append(d.Commands, p.disconnected)
	case "leader", "force", "expire", "member", "raise", "report", "longest", "quotas":
		d.Commands = append(d.Commands, s.operatorCommand(l))
	default:
		if s.clients[word] == nil || len(l.words) < 2 || l.words[1] == "breaks" {
			return false
		}
		s.writeClient(d, l, l.storyClient())
	}
	l.end()
	return true
}

func (s *story) writeOpen(d *entryDraft, l *scriptLine) {
	l.next()
	c := OpenSession{Settings: session.Settings{TTL: l.span(l.option("ttl", "10s")),
		LockDelay:           l.span(l.option("delay", "0s")),
		ReleaseOnDisconnect: l.span(l.option("release_on_disconnect", "0s")),
		Identity:            l.option("identity", ""), Label: l.option("label", "")}}
	old := l.option("secret", "") == "old"
	for len(l.words) > 0 {
		name := l.next()
		if s.clients[name] == nil {
			s.clients[name] = &storyClient{name: name, sent: make(map[uint64]*Acquire)}
		}
		p := s.clients[name]
		if _, alive := s.m.Session(p.id); p.id != 0 && !alive && !old {
			p.uses++
		}
		one := c
		one.Secret = p.secret()
		d.Commands = append(d.Commands, &one)
	}
}

// secret is the hash that a client's secret has: its name will do, and for which of its sessions it
// was drawn.
func (p *storyClient) secret() session.Hash {
	if p == nil {
		return session.Hash{} // of nobody
	}
	return sha256.Sum256(fmt.Append(nil, p.name, p.uses))
}

func (s *story) writeClient(d *entryDraft, l *scriptLine, p *storyClient) {
	s.t.Helper()
	switch verb := l.next(); verb {
	case "renews":
		d.Renewals = append(d.Renewals, p.id)
		slices.Sort(d.Renewals)
	case "attaches":
		d.Commands = append(d.Commands, &Attach{
			Session: p.id, Secret: s.clients[l.option("secret", p.name)].secret(),
			AckedThrough: l.number(l.option("acked", "0")),
			Attempt:      l.number(l.option("attempt", "0")),
		})
	case "closes":
		d.Commands = append(d.Commands, &CloseSession{Session: p.id})
	case "withdraws":
		d.Commands = append(d.Commands, &WithdrawSession{Session: p.id})
	case "acquires":
		d.Commands = append(d.Commands, s.acquire(l, p, Forever))
	case "tries":
		d.Commands = append(d.Commands, s.acquire(l, p, 0))
	case "repeats":
		c := *p.sent[l.ticket(p)]
		d.Commands = append(d.Commands, &c)
	case "drops":
		d.Commands = append(d.Commands, &Drop{
			Session: p.id, Ticket: l.ticket(p), AckedThrough: l.number(l.option("acked", "0")),
		})
	case "downgrades":
		d.Commands = append(d.Commands, &Downgrade{
			Session: p.id, Ticket: l.ticket(p), AckedThrough: l.number(l.option("acked", "0")),
		})
	default:
		l.fail("what does %s do?", p.name)
	}
}

func (s *story) acquire(l *scriptLine, p *storyClient, wait clock.Span) *Acquire {
	s.t.Helper()
	c := &Acquire{Session: p.id, Wait: wait, Owner: l.option("owner", "")}
	c.Ticket = l.number(l.option("as", fmt.Sprint(p.lastTicket+1)))
	if ackedThrough := l.option("acked", "0"); ackedThrough == "before" {
		c.AckedThrough = c.Ticket - 1
	} else {
		c.AckedThrough = l.number(ackedThrough)
	}
	if wait := l.option("wait", ""); wait != "" {
		c.Wait = l.span(wait)
	}
	c.MaxHold = l.span(l.option("hold", "0s"))
	c.Items = l.items()
	p.lastTicket = max(p.lastTicket, c.Ticket)
	p.sent[c.Ticket] = c
	return c
}

// operatorCommand is a command of an operator or of a node.
func (s *story) operatorCommand(l *scriptLine) Command {
	s.t.Helper()
	switch l.next() {
	case "leader":
		s.term = l.number(l.option("term", fmt.Sprint(s.term+1)))
		s.nonce++
		return &LeaderStart{
			Node: l.next(), Nonce: s.nonce, Cluster: ClusterID{1},
			TokenBase: l.number(l.option("base", "100")),
		}
	case "force":
		return &ForceRelease{Name: l.next(), Token: l.number(l.option("token", "0")),
			Reason: l.option("reason", "")}
	case "expire":
		return &ExpireSession{Session: l.storyClient().id, Reason: l.option("reason", "")}
	case "member":
		rules := l.versionRange(l.option("version", "1-1"))
		c := &Member{ID: l.next(), StateVersionMin: rules.Min, StateVersionMax: rules.Max,
			FreeBytes: l.number(l.option("free", "0"))}
		copy(c.Incarnation[:], l.option("disk", "A"))
		return c
	case "raise":
		return &Upgrade{Version: uint32(l.number(l.option("to", "0")))}
	case "longest":
		return &SetLongestTTL{TTL: l.span(l.option("ttl", "0s"))}
	case "quotas":
		number := func(name string) uint64 { return l.number(l.option(name, "0")) }
		return &SetQuotas{Quotas{Amounts{number("sessions"), number("tickets"), number("bytes")},
			uint32(number("share"))}}
	default: // report
		return &Digest{Node: l.next(), Index: l.number(l.option("index", "0")),
			Value: l.number(l.option("value", "0"))}
	}
}
