package raftnode

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
	"zamok/raftnode/tail"
	"zamok/session"
)

// The power of all nodes fails, and the end of one log is damaged. The node that has the same
// entries is away at first, so the damaged one could elect a third that never had them. However it
// is damaged, no grant that was acknowledged is lost; and when all are back the cluster goes on by
// itself, unless the damaged node knows that it has to be replaced.
func TestNothingAcknowledgedIsLostWithADamagedTail(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	became := map[string]int{}
	least, most := 6*durabilityRounds(t), 100*durabilityRounds(t)
	inBubble(t, func(b *bubble) {
		for round := 0; round < least || became["cut"] == 0 || became["refused"] == 0; round++ {
			require.Less(b, round, most, "%v", became)
			damagedTail(b, random, round, became)
			if b.Failed() {
				return
			}
		}
	})
	t.Log(became)
}

func damagedTail(b *bubble, random *rand.Rand, round int, became map[string]int) {
	lock := func(n *bubbleNode, name string, ttl clock.Span) fsm.State {
		secret := session.Hash{}
		for i := range secret {
			secret[i] = byte(random.Uint32())
		}
		opened, err := n.Propose(b.Context(),
			&fsm.OpenSession{Secret: secret, Settings: session.Settings{TTL: ttl}})
		require.NoError(b, err)
		a, err := n.Propose(b.Context(), &fsm.Acquire{
			Session: opened.Result.Session, Ticket: 1,
			Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
		})
		require.NoError(b, err)
		return a.Result.State
	}
	leader := b.leader(b.nodes...)
	others := b.others(leader)
	random.Shuffle(2, func(i, j int) { others[i], others[j] = others[j], others[i] })
	bad, third := others[0], others[1]
	b.kill(third)
	var names []string
	for i := range 1 + random.IntN(4) {
		names = append(names, fmt.Sprintf("%d-%d", round, i))
		require.Equal(b, fsm.Granted, lock(leader, names[i], clock.Hour))
	}
	if random.IntN(4) == 0 {
		time.Sleep(time.Second) // every node has the same log
	}
	powerFails(b, leader, bad)
	away := leader
	if random.IntN(2) == 0 {
		bad, away = away, bad
	}
	segments, err := filepath.Glob(filepath.Join(bad.dir, "log", "*.log"))
	require.NoError(b, err)
	path := slices.Max(segments)
	whole, err := os.ReadFile(path)
	require.NoError(b, err)
	what, damaged := damageTail(whole, random)
	require.NoError(b, os.WriteFile(path, damaged, 0o600))

	opened := b.open(bad)
	switch {
	case opened != nil:
		became["refused"]++
		require.ErrorIs(b, opened, store.ErrDamaged, what)
		require.NoError(b, os.WriteFile(path, whole, 0o600))
		require.NoError(b, b.open(bad))
	case bad.store.Tail().Owed != (tail.End{}):
		became["cut"]++
	default:
		became["whole"]++
	}
	require.NoError(b, b.open(third))
	time.Sleep(time.Duration(random.IntN(6)) * time.Second)
	require.NoError(b, b.open(away))
	next := b.leader(b.nodes...)
	for _, name := range names {
		assert.NotEqual(b, fsm.Granted, lock(next, name, 5*clock.Second),
			"round %d, %s: %s was held", round, what, name)
	}
	b.awaitNothingOwed(b.nodes...)
	for _, n := range b.nodes {
		assert.Empty(b, n.ended)
	}
}

// powerFails ends nodes with what is on their disks now.
func powerFails(b *bubble, nodes ...*bubbleNode) {
	for _, n := range nodes {
		require.NoError(b, os.CopyFS(n.dir+"-left", os.DirFS(n.dir)))
	}
	b.kill(nodes...)
	for _, n := range nodes {
		require.NoError(b, os.RemoveAll(n.dir))
		require.NoError(b, os.Rename(n.dir+"-left", n.dir))
	}
}

// damageTail does something to the end of a segment, and says what.
func damageTail(whole []byte, random *rand.Rand) (what string, damaged []byte) {
	text := bytes.Clone(whole)
	end := len(bytes.TrimRight(text, "\x00"))
	at := max(0, end-1-random.IntN(200))
	switch random.IntN(6) {
	case 0:
		text[at] ^= 1 << random.IntN(8)
		return fmt.Sprintf("a bit flipped at %d of %d", at, end), text
	case 1:
		for i := range text[at:end] {
			text[at+i] = byte(random.Uint32())
		}
		return fmt.Sprintf("nonsense from %d to %d", at, end), text
	case 2:
		clear(text[at:])
		return fmt.Sprintf("nothing from %d on, of %d", at, end), text
	case 3:
		return fmt.Sprintf("it ends at %d of %d", at, end), text[:at]
	case 4:
		clear(text[at/512*512:])
		return fmt.Sprintf("nothing from the sector of %d on, of %d", at, end), text
	}
	record := 4096 * (1 + random.IntN(2))
	text[record+random.IntN(29)] ^= 1 << random.IntN(8)
	if random.IntN(2) == 0 {
		text[at] ^= 1
	}
	return fmt.Sprintf("the record at %d, and perhaps %d of %d", record, at, end), text
}
