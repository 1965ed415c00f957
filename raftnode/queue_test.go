package raftnode

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/fair"
	"zamok/session"
)

func ignored(Answer, error) {}

// put puts a request, and returns why that or another was refused.
func put(q *queue, r request) error {
	refused, err := q.put(r)
	if (err == nil) != (len(refused) == 0) {
		panic("what is refused has a reason")
	}
	return err
}

// take takes what is to be proposed.
func take(q *queue) batch {
	b, _ := q.take()
	return b
}

func acquire(id session.ID) *fsm.Acquire { return &fsm.Acquire{Session: id} }

func TestAQueueIsOpenOnlyDuringAnEpoch(t *testing.T) {
	q := newQueue()
	now := time.Now()
	require.ErrorIs(t, put(q, request{since: now, done: ignored}), errNotLeading)
	require.ErrorIs(t, put(q, request{renews: true, session: 1, since: now, done: ignored}),
		errNotLeading)

	q.open.Store(true)
	var refused []error
	keep := func(_ Answer, err error) { refused = append(refused, err) }
	require.NoError(t, put(q, request{since: now, done: keep}))
	require.NoError(t, put(q, request{renews: true, session: 1, since: now, done: keep}))
	require.NoError(t, put(q, request{renews: true, session: 1, since: now, done: keep}))

	left := q.end()
	left.fail(&NotLeaderError{})
	require.Len(t, refused, 3, "every waiting request is answered, once")
	require.False(t, q.open.Load())
	q.open.Store(true)
	require.Empty(t, take(q).requests)
}

// An acquisition that an entry has left behind is refused once it has waited for queueWaitMax. What
// ends something, attaches or reads waits on.
func TestAnAcquisitionThatWaitsTooLongIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.open.Store(true)
		put := func(c fsm.Command) {
			require.NoError(t, put(q, request{command: c, since: time.Now(), done: ignored}))
		}
		const left = 10
		for range entryCommandsMax + left {
			put(acquire(1))
		}
		put(&fsm.Drop{Session: 1})
		time.Sleep(queueWaitMax)
		b, late := q.take()
		require.Len(t, b.requests, entryCommandsMax, "no entry has left them behind yet")
		require.Empty(t, late)
		put(acquire(2))
		time.Sleep(time.Nanosecond)
		b, late = q.take()
		require.Len(t, late, left)
		require.Equal(t, []fsm.Command{&fsm.Drop{Session: 1}, acquire(2)},
			[]fsm.Command{b.requests[0].command, b.requests[1].command})

		put(acquire(1))
		put(acquire(1))
		time.Sleep(10 * queueWaitMax) // that is how long the entry before takes
		b, late = q.take()
		require.Len(t, b.requests, 2, "they came after the last entry was taken")
		require.Empty(t, late)
		for _, c := range []fsm.Command{
			nil, &fsm.Drop{Session: 1}, &fsm.DropUnrenewed{Session: 1}, &fsm.Downgrade{Session: 1},
			&fsm.Attach{Session: 2}, &fsm.ReleaseOnDisconnect{Session: 2},
			&fsm.CloseSession{Session: 2}, &fsm.WithdrawSession{Session: 2},
			&fsm.ExpireSession{Session: 1}, &fsm.ForceRelease{}, &fsm.Member{},
		} {
			for range entryCommandsMax + 1 {
				put(c)
			}
			take(q)
			time.Sleep(2 * queueWaitMax)
			b, late = q.take()
			require.Len(t, b.requests, 1, "%T", c)
			require.Empty(t, late, "%T", c)
		}
	})
}

// However much is urgent, acquisitions have the room of theirs, and the other way round.
func TestClassesHaveRoomOfTheirOwn(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	for i := range queueMax {
		require.NoError(t, put(q,
			request{command: acquire(session.ID(i + 1)), since: time.Now(), done: ignored}))
		require.NoError(t, put(q,
			request{command: &fsm.Drop{Session: session.ID(queueMax + i + 1)}, since: time.Now(),
				done: ignored}))
	}
	newest, release := acquire(1<<40), &fsm.Drop{Session: 1 << 41}
	for _, c := range []fsm.Command{newest, release} {
		refused, err := q.put(request{command: c, since: time.Now(), done: ignored})
		require.ErrorIs(t, err, ErrOverloaded)
		require.Len(t, refused, 1)
		require.Equal(t, c, refused[0].command)
	}
}

// A client has 4096 acquisitions of the largest kind waiting, and more come as these are taken. A
// bystander locks and unlocks, one after the other: each of its commands is in the next entry,
// where it was behind all that the queue takes of such, in the 274th. So is the opening of a
// newcomer's session, also of the same identity.
func TestAFloodDelaysItsOwnClientOnly(t *testing.T) {
	for name, from := range map[string]string{"another identity": "bystander",
		"a session of the same identity": "flood"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // no time passes: none waits too long
				q := newQueue()
				q.open.Store(true)
				large := largest(0)
				nothingOfOthers := func(refused []request) {
					for _, r := range refused {
						require.EqualValues(t, 1, r.command.(*fsm.Acquire).Session,
							"nothing of others is refused")
					}
				}
				flood := func() { // until the queue is full to the last byte
					for i := range 4096 + queueBytesMax/queueMax {
						c := acquire(1)
						if i < 4096 {
							c = large
						}
						refused, _ := q.put(request{from: "flood", command: c, since: time.Now(),
							done: ignored})
						nothingOfOthers(refused)
					}
				}
				flood()
				for i, c := range []fsm.Command{
					&fsm.OpenSession{}, &fsm.Attach{Session: 2}, acquire(2), &fsm.Drop{Session: 2},
					acquire(2), nil, &fsm.ExpireSession{Session: 1},
				} {
					refused, _ := q.put(request{from: from, command: c, since: time.Now(),
						done: ignored})
					nothingOfOthers(refused)
					next := take(q)
					require.True(t, slices.ContainsFunc(next.requests, func(r request) bool {
						return r.command == c
					}), "%d: %T is in the next entry", i, c)
					require.Greater(t, len(next.requests), 1, "the flood goes on")
					flood()
				}
			})
		})
	}
}

// A release overtakes the acquisitions of others, and nothing of its own session.
func TestTheQueueKeepsTheOrderOfASession(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	own := []fsm.Command{
		acquire(1), &fsm.Drop{Session: 1}, acquire(1), acquire(1), &fsm.Downgrade{Session: 1},
		&fsm.Attach{Session: 1}, acquire(1),
		&fsm.ReleaseOnDisconnect{Session: 1}, &fsm.CloseSession{Session: 1},
	}
	for i, c := range own {
		require.NoError(t, put(q, request{command: acquire(2), done: ignored}))
		require.NoError(t, put(q,
			request{from: []string{"", "also"}[i%2], command: c, done: ignored}))
	}
	require.NoError(t, put(q, request{command: &fsm.Drop{Session: 3}, done: ignored}))
	got := []fsm.Command{}
	for _, r := range take(q).requests {
		if order, _ := orderOf(r.command); order == 1 {
			got = append(got, r.command)
		} else if order == 3 {
			require.Empty(t, got, "a release overtakes the acquisitions of others")
		}
	}
	require.Equal(t, own, got)
}

// Urgent commands fill a part of an entry only if others wait, and all of it if not.
func TestAFloodOfReleasesLeavesRoom(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	for range 3 * entryCommandsMax {
		require.NoError(t, put(q,
			request{command: &fsm.Drop{Session: 1}, since: time.Now(), done: ignored}))
	}
	require.NoError(t, put(q, request{command: acquire(2), since: time.Now(), done: ignored}))
	b := take(q)
	require.Len(t, b.requests, entryCommandsMax)
	require.Equal(t, urgentCommandsMax,
		slices.IndexFunc(b.requests,
			func(r request) bool { _, is := r.command.(*fsm.Acquire); return is }))
}

// largest is as large as an Acquire can be.
func largest(ticket int) *fsm.Acquire {
	c := &fsm.Acquire{
		Session: 1, Ticket: uint64(ticket) + 1, Owner: strings.Repeat("o", fsm.OwnerBytesMax),
		Meta: strings.Repeat("m", fsm.MetaBytesMax),
	}
	for i := range fsm.ItemsMax {
		name := fmt.Sprint(ticket, "/", i, "/")
		c.Items = append(c.Items,
			fsm.Item{Name: name + strings.Repeat("n", fsm.NameBytesMax-len(name)),
				Mode: fsm.Exclusive})
	}
	return c
}

// However large commands are, the queue takes no more bytes than it says: then it refuses, and
// continues when there is room again. Renewals have their own.
func TestTheQueueIsBoundedInBytes(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	now := time.Now()
	before := heapInUse()
	taken := 0
	for ; taken < queueMax; taken++ {
		if err := put(q, request{command: largest(taken), since: now,
			done: func(Answer, error) {}}); err != nil {
			require.ErrorIs(t, err, ErrOverloaded)
			break
		}
	}
	grown := int64(heapInUse()) - int64(before)
	t.Logf("%d of the largest commands, %d bytes by count and %d of the heap", taken,
		q.waiting.Cost(fair.Normal), grown)
	require.Less(t, taken, queueMax)
	require.LessOrEqual(t, q.waiting.Cost(fair.Normal), queueBytesMax)
	require.Greater(t, q.waiting.Cost(fair.Normal), queueBytesMax-64<<10, "it is full")
	require.Less(t, grown, int64(queueBytesMax+queueBytesMax/4))
	require.ErrorIs(t, put(q, request{command: largest(0), since: now, done: ignored}),
		ErrOverloaded)
	require.NoError(t, put(q, request{renews: true, session: 1, since: now, done: ignored}),
		"a renewal has room")

	q.take()
	require.NoError(t, put(q, request{command: largest(0), since: now, done: ignored}),
		"there is room again")
	for q.count() > 0 {
		q.take()
	}
	require.Zero(t, q.waiting.Cost(fair.Normal))
	require.NoError(t, put(q, request{command: largest(0), since: now, done: ignored}))
	q.end()
	require.Zero(t, q.waiting.Cost(fair.Normal))
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// As many small commands as are taken at all fit into the bytes.
func TestSmallCommandsFillTheQueueByCount(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	now := time.Now()
	for i := range uint64(queueMax) {
		c := &fsm.Acquire{Session: 1 << 40, Ticket: i,
			Items: []fsm.Item{{Name: strings.Repeat("n", 100), Mode: fsm.Exclusive}}}
		require.NoError(t, put(q, request{command: c, since: now, done: ignored}))
	}
	require.ErrorIs(t, put(q, request{command: acquire(1), since: now, done: ignored}),
		ErrOverloaded)
	require.NoError(t, put(q, request{since: now, done: ignored}), "a read has room")
}

func TestRenewalsOfASessionAreBounded(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	for range renewalsMax {
		require.NoError(t, put(q,
			request{renews: true, session: 1, since: time.Now(), done: ignored}))
	}
	require.ErrorIs(t, put(q, request{renews: true, session: 1, since: time.Now(), done: ignored}),
		ErrOverloaded)
	require.NoError(t, put(q, request{renews: true, session: 2, since: time.Now(), done: ignored}),
		"others are not concerned")
	require.Len(t, take(q).renewals, 2)
}

func TestAnEntryTakesWhatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes: none waits too long
		q := newQueue()
		q.open.Store(true)
		now := time.Now()
		for range entryCommandsMax + 5 {
			require.NoError(t, put(q, request{command: &fsm.Drop{}, since: now, done: ignored}))
		}
		require.Len(t, take(q).requests, entryCommandsMax)
		require.Len(t, take(q).requests, 5)

		// Large commands go in smaller numbers, so that no entry is too long to be read.
		large := &fsm.Acquire{Meta: strings.Repeat("m", fsm.MetaBytesMax)}
		for range fsm.ItemsMax {
			large.Items = append(large.Items, fsm.Item{Name: strings.Repeat("n", fsm.NameBytesMax)})
		}
		for range 100 {
			require.NoError(t, put(q, request{command: large, since: now, done: ignored}))
		}
		taken := 0
		for taken < 100 {
			b := take(q)
			require.NotEmpty(t, b.requests)
			taken += len(b.requests)
			e := fsm.Entry{Version: 1}
			for _, r := range b.requests {
				e.Commands = append(e.Commands, r.command)
			}
			_, err := fsm.DecodeEntry(e.Append(nil))
			require.NoError(t, err)
		}
	})
}

func TestRenewalsRideInOrderAndOnce(t *testing.T) {
	q := newQueue()
	q.open.Store(true)
	now := time.Now()
	for _, id := range []session.ID{9, 3, 7, 3} {
		require.NoError(t, put(q, request{renews: true, session: id, since: now, done: ignored}))
	}
	require.Equal(t, now, q.oldest)
	b := take(q)
	require.Len(t, b.renewals, 3)
	require.Equal(t, []session.ID{3, 7, 9},
		[]session.ID{b.renewals[0].id, b.renewals[1].id, b.renewals[2].id})
	require.Len(t, b.renewals[0].done, 2)
	require.Zero(t, q.oldest)
}

// The epoch is woken once enough waits for an entry: by the request that makes it enough, or when
// the entry that was in the way is applied or has failed, or when the callers that it unblocked
// have been waited for. There is nothing else before the next tick.
func TestTheQueueWakesTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		<-q.gathered.C
		q.open.Store(true)
		woken := func() bool {
			synctest.Wait()
			select {
			case <-q.wake:
			case <-q.gathered.C:
			default:
				return false
			}
			ready, _ := q.look()
			return assert.True(t, ready, "the epoch is woken for nothing")
		}
		put := func() bool {
			require.NoError(t, put(q, request{since: time.Now(), done: ignored}))
			return woken()
		}
		assert.True(t, put(), "nothing is in flight")
		q.take()
		assert.True(t, put(), "as many as are in flight")
		q.take()
		assert.False(t, put(), "two entries are in flight")
		assert.False(t, put())
		sent := time.Now()
		time.Sleep(time.Second)
		q.completed(1, 0, sent) // it failed
		assert.True(t, woken(), "an entry has failed")
		q.completed(1, 2, sent)
		assert.True(t, woken(), "as many wait as it unblocked")
		q.take()
		assert.False(t, put(), "two are in flight, in one entry")
		q.completed(2, 3, sent)
		assert.False(t, woken(), "three are waited for")
		time.Sleep(batchWaitMax)
		assert.True(t, woken(), "and no longer")
		q.take()
		assert.True(t, put())
		q.completed(1, 1, sent)
		assert.True(t, woken(), "one alone is not waited for")
		q.take()
		q.completed(1, 1, sent)
		time.Sleep(batchWaitMax)
		assert.False(t, woken(), "no timer was set for one")
	})
}

// Every request of an entry gets its own result, fences get none, and renewals hear who is dead.
func TestAnswersGoToWhoAsked(t *testing.T) {
	var got []string
	say := func(who string) Done {
		return func(a Answer, err error) {
			require.NoError(t, err)
			got = append(got, who+":"+strings.Repeat("!", int(a.Result.Code))+
				strings.Repeat("t", int(a.Result.Token)))
		}
	}
	b := batch{
		requests: []request{
			{command: &fsm.Drop{}, done: say("drop")}, {done: say("fence")},
			{command: &fsm.Acquire{}, done: say("acquire")},
		},
		renewals: []renewal{{3, []Done{say("three")}}, {4, []Done{say("four"), say("four too")}}},
	}
	b.answer(fsm.Applied{
		Results: []fsm.Result{{Token: 1}, {Token: 2}}, Unrenewed: []session.ID{4},
	}, nil)
	dead := strings.Repeat("!", int(fsm.NoSession))
	require.Equal(t, []string{"drop:t", "fence:", "acquire:tt", "three:", "four:" + dead,
		"four too:" + dead}, got)
}

func TestAnEntryOfOtherRulesWasNotDone(t *testing.T) {
	var got []error
	b := batch{
		requests: []request{{command: &fsm.Drop{},
			done: func(_ Answer, err error) { got = append(got, err) }}}}
	b.answer(fsm.Applied{Refused: fsm.OtherVersion}, nil)
	require.Equal(t, []error{ErrOtherVersion}, got)
}

// A command that orderOf did not know would overtake those of its session that came before.
func TestACommandIsOrderedUnderItsSession(t *testing.T) {
	commands := map[string]fsm.Command{
		"Attach": &fsm.Attach{Session: 7}, "Acquire": &fsm.Acquire{Session: 7},
		"Drop": &fsm.Drop{Session: 7}, "DropUnrenewed": &fsm.DropUnrenewed{Session: 7},
		"Downgrade":           &fsm.Downgrade{Session: 7},
		"ReleaseOnDisconnect": &fsm.ReleaseOnDisconnect{Session: 7},
		"CloseSession":        &fsm.CloseSession{Session: 7},
		"WithdrawSession":     &fsm.WithdrawSession{Session: 7},
	}
	for name, c := range commands {
		order, _ := orderOf(c)
		require.Equal(t, uint64(7), order, name)
	}
	source, err := parser.ParseFile(token.NewFileSet(), "../fsm/command.go", nil, 0)
	require.NoError(t, err)
	hasSession := make(map[string]bool)
	for _, d := range source.Decls {
		decl, _ := d.(*ast.GenDecl)
		if decl == nil || decl.Tok != token.TYPE {
			continue
		}
		spec := decl.Specs[0].(*ast.TypeSpec)
		switch of := spec.Type.(type) {
		case *ast.Ident: // of the same fields as one before
			hasSession[spec.Name.Name] = hasSession[of.Name]
		case *ast.StructType:
			for _, field := range of.Fields.List {
				hasSession[spec.Name.Name] = hasSession[spec.Name.Name] ||
					len(field.Names) > 0 && field.Names[0].Name == "Session"
			}
		}
	}
	require.True(t, hasSession["ExpireSession"])
	delete(hasSession, "ExpireSession") // an operator's, who does not wait for the session
	for name, has := range hasSession {
		if has {
			require.Contains(t, commands, name, "add it to orderOf, and here")
		}
	}
}
