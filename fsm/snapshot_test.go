package fsm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

// populatedMachine has at least one of everything that a snapshot holds.
func populatedMachine(t testing.TB) *Machine {
	m := New()
	apply := func(now clock.Time, commands ...Command) Applied {
		e := Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: now},
			Commands: commands}
		a, err := m.Apply(3, e.Append(nil))
		require.NoError(t, err)
		require.Equal(t, OK, a.Refused)
		return a
	}
	apply(0, &LeaderStart{Node: "n1", Nonce: 7, Cluster: ClusterID{0xC1}, TokenBase: 1000})
	apply(5, &Member{ID: "n1", Incarnation: Incarnation{9}, StateVersionMin: 1, StateVersionMax: 1},
		&Member{
			ID: "n1", Incarnation: Incarnation{1}, Client: "a:1", Peer: "a:2", HTTP: "a:3",
			Version:         "v0",
			StateVersionMin: 1, StateVersionMax: 1, FreeBytes: 1 << 40, LowSpaceThreshold: 1 << 28,
			ElectionTimeout: 750, ElectionTimeoutFixed: 500,
		}, &Digest{Node: "n1", Index: 1001, Value: 0xD1}, &SetLongestTTL{TTL: 48 * clock.Hour},
		&SetLongestTTL{TTL: 30 * clock.Minute})
	open := func(secret byte, delay clock.Span) session.ID {
		return apply(m.Time(), &OpenSession{Secret: session.Hash{secret},
			Settings: session.Settings{Identity: "i", Label: "l", Meta: "m\x00",
				TTL: 10 * clock.Second, LockDelay: delay,
				ReleaseOnDisconnect: clock.Second}}).Results[0].Session
	}
	one, two, expired := open(1, 0), open(2, clock.Second), open(3, 20*clock.Second)
	apply(clock.Time(clock.Second),
		&Attach{Session: one, Secret: session.Hash{1}, Attempt: 5},
		&Acquire{Session: one, Ticket: 1, Items: exclusive("a", "b"), Wait: Forever, Owner: "x",
			Meta: "md"},
		&Acquire{Session: two, Ticket: 1, Items: exclusive("b"), Wait: 5 * clock.Second,
			MaxHold: clock.Hour},
		&Acquire{Session: one, Ticket: 2, Items: []Item{{"p", Permits, 2, 5}}, Wait: 0,
			MaxHold: clock.Minute},
		&Acquire{Session: two, Ticket: 2, Items: []Item{{"s", Shared, 0, 0}}, Wait: 0},
		&Acquire{Session: one, Ticket: 3, Items: []Item{{"s", Shared, 0, 0}}, Wait: 0},
		&Acquire{Session: two, Ticket: 3, Items: exclusive("s"), Wait: 0},
		&Acquire{Session: expired, Ticket: 1, Items: exclusive("d"), Wait: 0},
		&Drop{Session: one, Ticket: 3},
		&Drop{Session: two, Ticket: 9},
		&ExpireSession{Session: expired, Reason: "why not"},
	)
	require.NoError(t, m.Check())
	return m
}

func snapshotOf(t testing.TB, m *Machine) []byte {
	var b bytes.Buffer
	n, err := m.Freeze().WriteTo(&b)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), n)
	return b.Bytes()
}

func TestSnapshotRestoresState(t *testing.T) {
	m := populatedMachine(t)
	b := snapshotOf(t, m)
	restored, err := Restore(bytes.NewReader(b))
	require.NoError(t, err)
	require.NoError(t, restored.Check())
	require.Equal(t, m.Digest(), restored.Digest())
	require.Equal(t, m.Counts(), restored.Counts())
	require.Equal(t, b, snapshotOf(t, restored))
	require.Equal(t, m.Members(), restored.Members())
	require.NotZero(t, m.Members()[0].Replaced)
	require.Equal(t, 30*clock.Minute, restored.LongestTTL())
	require.Equal(t, 48*clock.Hour+DelayMax, restored.RestoreHoldOff())

	// Both continue alike.
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: clock.Time(clock.Hour)}}
	one, err := m.Apply(3, e.Append(nil))
	require.NoError(t, err)
	two, err := restored.Apply(3, e.Append(nil))
	require.NoError(t, err)
	require.NotEmpty(t, one.Events)
	require.Equal(t, one, two)
	require.Equal(t, m.Digest(), restored.Digest())
}

func TestFrozenStateIsImmutable(t *testing.T) {
	m := populatedMachine(t)
	before := snapshotOf(t, m)
	frozen := m.Freeze()
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: clock.Time(clock.Hour)}}
	_, err := m.Apply(3, e.Append(nil))
	require.NoError(t, err)
	require.NotEqual(t, before, snapshotOf(t, m))
	var b bytes.Buffer
	_, err = frozen.WriteTo(&b)
	require.NoError(t, err)
	require.Equal(t, before, b.Bytes())
}

// Damage of any one byte and every truncation is noticed, and nothing is restored.
func TestRestoreRefusesDamage(t *testing.T) {
	b := snapshotOf(t, populatedMachine(t))
	for i := range b {
		_, err := Restore(bytes.NewReader(b[:i]))
		require.Error(t, err, "cut off at %d", i)
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		m, err := Restore(bytes.NewReader(bad))
		require.Error(t, err, "byte %d of %d", i, len(b))
		require.Nil(t, m)
	}
	_, err := Restore(bytes.NewReader(append(bytes.Clone(b), 0)))
	require.ErrorContains(t, err, "after the end")
}

func TestRestoreErrors(t *testing.T) {
	good := snapshotOf(t, populatedMachine(t))
	for want, bytes := range map[string][]byte{
		"cut off":                nil,
		"not the bytes of a":     []byte("something else"),
		"version 9 is unknown":   []byte("zamok\x09"),
		"kind 2 after":           []byte("zamok\x01\x02\x00\x00"),
		"unexpected EOF":         []byte("zamok\x01\x01\xff\xff\x01"),
		"the checksum is":        append(good[:len(good)-1:len(good)-1], good[len(good)-1]+1),
		"nothing was restored":   good[:20],
		"of kind 6 after one of": []byte("zamok\x01\x06\x00\x00"),
		"there is something aft": append(good[:len(good):len(good)], 'x'),
	} {
		_, err := Restore(readerOnly(bytes))
		require.ErrorContains(t, err, want)
	}
}

// readerOnly hides everything but Read, as a network connection does.
func readerOnly(b []byte) io.Reader { return struct{ io.Reader }{bytes.NewReader(b)} }

func TestRestoreRefusesUnsupportedVersion(t *testing.T) {
	m := NewWithVersions(VersionRange{Min: 1, Max: 3})
	e := Entry{Version: 1, Commands: []Command{&Upgrade{Version: 2}}}
	_, err := m.Apply(1, e.Append(nil))
	require.NoError(t, err)
	_, err = Restore(bytes.NewReader(snapshotOf(t, m)))
	var rules *VersionError
	require.ErrorAs(t, err, &rules)
	require.Equal(t, uint32(2), rules.Need)

	again, err := RestoreWithVersions(bytes.NewReader(snapshotOf(t, m)),
		VersionRange{Min: 2, Max: 2})
	require.NoError(t, err)
	require.Equal(t, uint32(2), again.Version())
}

func TestSnapshotWriteError(t *testing.T) {
	frozen := populatedMachine(t).Freeze()
	_, err := frozen.WriteTo(failingWriter{})
	require.ErrorIs(t, err, io.ErrShortWrite)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// The form of a snapshot may change until the first release, with a reason in the commit and
// -update-golden; after that it is read forever.
func TestGoldenSnapshot(t *testing.T) {
	path := filepath.Join("testdata", "golden", "snapshot-v1.hex")
	b := snapshotOf(t, populatedMachine(t))
	if *updateGolden {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(hexLines(b)), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(text), hexLines(b), "the form of a snapshot changed")

	kept, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	require.NoError(t, err)
	m, err := Restore(bytes.NewReader(kept))
	require.NoError(t, err)
	require.NoError(t, m.Check())
	require.Equal(t, kept, snapshotOf(t, m))
}

func hexLines(b []byte) string {
	var lines strings.Builder
	for len(b) > 0 {
		n := min(32, len(b))
		lines.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return lines.String()
}

// FuzzRestore hands Restore bytes whose checksum is right, so that it looks at all of them.
// Whatever it takes comes out as it went in, and the machine works on.
func FuzzRestore(f *testing.F) {
	rich := snapshotOf(f, populatedMachine(f))
	f.Add(rich[:len(rich)-record.ChecksumBytes])
	empty := snapshotOf(f, New())
	f.Add(empty[:len(empty)-record.ChecksumBytes])
	f.Fuzz(func(t *testing.T, body []byte) {
		b := binary.LittleEndian.AppendUint32(bytes.Clone(body), record.UpdateChecksum(0, body))
		m, err := Restore(bytes.NewReader(b))
		if err != nil {
			return
		}
		require.Equal(t, b, snapshotOf(t, m))
		_ = m.Check() // may find much, must not panic
		e := Entry{Version: m.Version(),
			Reading: clock.Reading{Epoch: m.Epoch(), Now: clock.Time(clock.Hour)}}
		e.Commands = append(e.Commands, &Member{ID: "of no snapshot", StateVersionMax: 1},
			&Digest{Node: "of no snapshot"})
		for _, s := range m.Sessions(0, 3) {
			e.Commands = append(e.Commands,
				&Acquire{Session: s.ID, Ticket: s.AckedThrough + 1, Items: exclusive("a"),
					Wait: Forever},
				&Drop{Session: s.ID, Ticket: s.AckedThrough + 1, AckedThrough: s.AckedThrough + 1},
				&CloseSession{Session: s.ID})
		}
		_, err = m.Apply(1, e.Append(nil))
		require.NoError(t, err)
	})
}
