package raftnode

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoStopsWhenDigestsDiffer(t *testing.T) {
	const at = digestEvery
	for name, c := range map[string]struct {
		mine     uint64
		reports  map[string]uint64
		found    bool
		outvoted bool
	}{
		"all agree": {1, map[string]uint64{"n1": 1, "n2": 1, "n3": 1},
			false, false},
		"one has not reported": {1, map[string]uint64{"n1": 1, "n2": 2},
			false, false},
		"a majority differs from mine": {1, map[string]uint64{"n2": 2, "n3": 2},
			true, true},
		"mine and one more against one": {1, map[string]uint64{"n1": 1, "n2": 1, "n3": 2},
			true, false},
		"all three differ": {1, map[string]uint64{"n1": 1, "n2": 2, "n3": 3},
			true, false},
		"who has no vote does not count": {1, map[string]uint64{"n2": 2, "n4": 2, "n5": 2},
			false, false},
		"not known what mine was, so no answer": {0, map[string]uint64{"n2": 2, "n3": 2},
			false, false},
	} {
		d := &digests{}
		if c.mine != 0 {
			d.applied(at-1, at, c.mine)
		}
		for node, value := range c.reports {
			d.at(at).byNode[node] = value
		}
		voters := servers{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}
		got := d.compare(voters)
		require.Equal(t, c.found, got != nil, name)
		require.Equal(t, c.outvoted, got != nil && got.outvoted, name)
		require.Nil(t, d.compare(voters), "%s: reported once", name)
	}
}

func TestPointsAreTheSameOnEveryNode(t *testing.T) {
	d := &digests{}
	d.applied(0, 50*digestEvery, 1) // the first entry of a new history is none
	for before := uint64(1); before < 3*digestEvery; before += 5 {
		d.applied(before, before+5, before+5)
	}
	var points []uint64
	for _, r := range d.todo {
		points = append(points, r.Index, r.Value)
	}
	require.Equal(t, []uint64{digestEvery, digestEvery, 2 * digestEvery, 2*digestEvery + 4,
		3 * digestEvery, 3*digestEvery + 3}, points,
		"where an entry passes a multiple")
}

func TestOldPointsAreForgotten(t *testing.T) {
	d := &digests{}
	for i := range uint64(digestsKept + 9) {
		d.at((i + 1) * digestEvery).byNode["n2"] = i
	}
	require.Len(t, d.points, digestsKept)
	require.Equal(t, uint64(10*digestEvery), d.points[0].index)
}
