package session

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

// sessionOf is a session that is opened at now.
func sessionOf(id ID, ttl clock.Span, now clock.Time) Session {
	return Session{
		ID: id, Secret: Hash{byte(id), byte(id >> 8)}, Settings: Settings{TTL: ttl}, Opened: now, Renewed: uint64(id), Deadline: now.Add(ttl),
	}
}

func TestSessionDeadlineFollowsRenewal(t *testing.T) {
	table := NewTable()
	table.Insert(sessionOf(7, 10*clock.Second, 100))

	// A renewal moves the deadline.
	table.Renew(table.Find(7), clock.Time(5*clock.Second), 8)
	require.Equal(t, clock.Time(15*clock.Second), table.Find(7).Deadline)
	require.Equal(t, uint64(8), table.Find(7).Renewed)
	require.NoError(t, table.Check())
}

func TestSecretNamesOneLiveSession(t *testing.T) {
	table := NewTable()
	one := sessionOf(1, clock.Second, 0)
	table.Insert(one)
	require.Equal(t, ID(1), table.BySecret(one.Secret))

	table.Close(1)
	require.Zero(t, table.BySecret(one.Secret), "a closed session has no secret")

	reopened := one
	reopened.ID = 2
	table.Insert(reopened)
	require.Equal(t, ID(2), table.BySecret(one.Secret))
	require.NoError(t, table.Check())
}

func TestCloseRemovesEverything(t *testing.T) {
	table := NewTable()
	for id := range ID(1000) {
		table.Insert(sessionOf(id+1, clock.Span(id+1)*clock.Second, 0))
	}
	for id := range ID(1000) {
		table.Close(id + 1)
		table.Close(id + 1) // a second time does nothing
	}
	require.Zero(t, table.Len())
	require.Zero(t, table.Sum())
	require.Empty(t, table.bySecret)
}

func TestFrozenTableIsImmutable(t *testing.T) {
	table := NewTable()
	for id := ID(1); id <= 100; id++ {
		table.Insert(sessionOf(id, clock.Second, 0))
	}
	frozen := table.Freeze()
	for id := ID(1); id <= 100; id++ {
		table.Renew(table.Find(id), clock.Time(clock.Hour), 500)
		if id%2 == 0 {
			table.Close(id)
		}
	}
	n := ID(0)
	for _, s := range frozen.From(0) {
		n++
		require.Equal(t, n, s.ID)
		require.Equal(t, clock.Time(clock.Second), s.Deadline)
	}
	require.Equal(t, ID(100), n)
	require.Equal(t, 100, frozen.Len())
	require.NoError(t, table.Check())
}

// Whatever is done to a table, it agrees with a plain map, its Check is content, and its sum is that
// of a table that was filled with the same records in one go.
func TestTableMatchesMap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		table, model := NewTable(), map[ID]Session{}
		now, index := clock.Time(0), uint64(0)
		pickID := func() ID {
			ids := make([]ID, 0, len(model)+1)
			for id := range model {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			return rapid.SampledFrom(append(ids, 9999)).Draw(r, "id")
		}
		change := func(id ID, onTable func(*Session), onModel func(*Session)) {
			s := table.Find(id)
			m, ok := model[id]
			require.Equal(r, ok, s != nil)
			if ok {
				onTable(s)
				onModel(&m)
				model[id] = m
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"time": func(r *rapid.T) { now = now.Add(clock.Span(rapid.Int64Range(0, 5e9).Draw(r, "span"))) },
			"open": func(r *rapid.T) {
				index++
				s := sessionOf(ID(index), clock.Span(rapid.Int64Range(1, 10).Draw(r, "ttl"))*clock.Second, now)
				table.Insert(s)
				model[s.ID] = s
			},
			"hear": func(r *rapid.T) {
				index++
				id := pickID()
				change(id, func(s *Session) { table.Renew(s, now, index) },
					func(s *Session) { s.Renewed, s.Deadline = index, now.Add(s.TTL) })
			},
			"attach": func(r *rapid.T) {
				index++
				attempt := rapid.Uint64Range(0, 9).Draw(r, "attempt")
				change(pickID(), func(s *Session) { table.Attach(s, index, attempt) },
					func(s *Session) { s.Attachment, s.Attempt = index, max(s.Attempt, attempt) })
			},
			"floor": func(r *rapid.T) {
				through := rapid.Uint64Range(0, 50).Draw(r, "floor")
				change(pickID(), func(s *Session) { table.Acknowledge(s, through) },
					func(s *Session) { s.AckedThrough = max(s.AckedThrough, through) })
			},
			"change": func(r *rapid.T) {
				index++
				change(pickID(), func(s *Session) { table.RecordChange(s, index, 1) },
					func(s *Session) { s.Changed = index; s.Live++ })
			},
			"close": func(r *rapid.T) {
				id := pickID()
				table.Close(id)
				delete(model, id)
			},
			"": func(r *rapid.T) {
				require.NoError(r, table.Check())
				require.Equal(r, len(model), table.Len())
				copied := NewTable()
				for _, m := range model {
					copied.Insert(m)
					got, ok := table.Get(m.ID)
					require.True(r, ok)
					got.fixedFieldsSum = 0
					require.Equal(r, m, got)
				}
				require.Equal(r, copied.Sum(), table.Sum())
			},
		})
	})
}

// Each damage that Check is there for is named by its number.
func TestCheckFindsDamage(t *testing.T) {
	for want, damage := range map[string]func(*Table){
		"S1": func(t *Table) { t.Find(2).ID = 5 },
		"S2": func(t *Table) { delete(t.bySecret, Hash{2}) },
		"S3": func(t *Table) { t.Find(2).Opened++ },
		"S4": func(t *Table) { t.Find(2).AckedThrough++ },
	} {
		table := NewTable()
		for id := ID(1); id <= 3; id++ {
			table.Insert(sessionOf(id, clock.Second, 0))
		}
		require.NoError(t, table.Check())
		damage(table)
		require.ErrorContains(t, table.Check(), want)
	}
}
