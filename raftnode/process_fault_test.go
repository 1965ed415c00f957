package raftnode

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A disk that fails a write ends the process of its node, and what was acknowledged is with the
// others. The node that starts again on that disk, well by then, takes part as before.
func TestAFailedWriteEndsTheProcess(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{})
	c.start(c.parts...)
	c.load(0, c.parts...)
	c.work(300)
	for _, whose := range []string{"the leader's", "a follower's"} {
		sick := c.leader(c.parts...)
		if whose != "the leader's" {
			sick = c.others(sick)[0]
		}
		c.order(sick, task{Do: "sick", How: "failing"}) // it may end before it can answer
		c.ends(sick, "a write failed")
		c.leader(c.others(sick)...)
		c.work(300)
		c.kill(sick)
		c.start(sick)
		c.load(1, sick)
	}
	c.rest(c.parts...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
}

// ends waits for a process to end itself, and for the reason that it gave.
func (c *cluster) ends(p *part, reason string) {
	c.t.Helper()
	limit := time.NewTimer(answerWait)
	defer limit.Stop()
	select {
	case <-p.ended:
		require.Contains(c.t, p.fatal, reason, "%s: %v", p.ID, p.exit)
		require.Equal(c.t, fatalCode, p.cmd.ProcessState.ExitCode(), p.ID)
	case <-limit.C:
		require.Fail(c.t, "a process that must end goes on", p.ID)
	}
}

// A leader that is told to close hands over first: the others need not notice its absence.
func TestAnOrderlyStopHandsOver(t *testing.T) {
	t.Parallel()
	const election = 3 * time.Second // who waits for one is seen to, on a busy machine too
	c := newCluster(t, order{Election: election})
	c.start(c.parts...)
	c.load(0, c.parts...)
	c.work(300)
	leader := c.leader(c.parts...)
	others := c.others(leader)
	c.order(leader, task{Do: "close"})
	began := time.Now()
	next := c.leader(others...)
	until(t, "a fence at the next leader",
		func() bool { return c.do(next, task{Do: "fence"}).Error == "" })
	took := time.Since(began)
	t.Logf("%s leads and fences %v after %s was told to close", next.ID, took, leader.ID)
	require.Less(t, took, election)
	require.Empty(t, c.answer(leader, "close").Error)
	t.Logf("%s was closed %v after it was told to", leader.ID, time.Since(began))
	<-leader.ended
	require.NoError(t, leader.exit)
	c.work(300)
	c.rest(others...)
	for id, r := range c.agree(others...) {
		c.ledger.compare(t, id, r)
	}
}

// A leader that handed over can lead again (hashicorp/raft#696), as often as one likes.
func TestLeadershipGoesRound(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{})
	c.start(c.parts...)
	c.load(0, c.parts...)
	led := make(map[string]int)
	for range 8 {
		c.work(100)
		// on a busy machine one may take too long, and is given up
		until(t, "a transfer", func() bool {
			leader := c.leader(c.parts...)
			handed := c.do(leader, task{Do: "transfer"}).Error == ""
			if handed {
				led[leader.ID]++
			}
			return handed
		})
	}
	t.Logf("epochs: %v", led)
	c.work(100)
	c.rest(c.parts...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
	c.noAlarms()
}

// A leader whose disk is full can't keep anything: another leads, and the work continues. With room
// again it takes part as before.
func TestAFullDiskPassesTheLeadershipOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{})
	c.start(c.parts...)
	c.load(0, c.parts...)
	c.work(300)
	full := c.leader(c.parts...)
	c.do(full, task{Do: "sick", How: "full"})
	next := c.leader(c.others(full)...)
	began := c.do(next, task{Do: "report"}).State.Term
	c.work(1000)
	ended := c.do(next, task{Do: "report"}).State
	until(t, "who is full knows that another leads",
		func() bool { return !c.do(full, task{Do: "report"}).State.Leads })
	t.Logf("the next epoch opened in term %d, and the work was done in term %d", began, ended.Term)
	c.do(full, task{Do: "sick", How: "well"})
	c.rest(c.parts...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
}

// The watchdog, in real time and on a process: what TestALeaderWhoseDiskHangsMakesRoom shows in a
// bubble, up to the end of the process with a write still hanging in it.
func TestAHangingDiskEndsTheProcess(t *testing.T) {
	if os.Getenv(roundsVariable) == "" {
		t.Skipf("takes more than a minute, because a process that has just started is not "+
			"ended; set %s", roundsVariable)
	}
	t.Parallel()
	c := newCluster(t, order{})
	c.start(c.parts...)
	c.load(0, c.parts...)
	old := time.NewTimer(watchdogArmed)
	<-old.C
	stuck := c.leader(c.parts...)
	c.do(stuck, task{Do: "sick", How: "stalling"})
	began := time.Now()
	c.ends(stuck, ErrStuck.Error())
	t.Logf("%s ended itself after %v: %s", stuck.ID, time.Since(began), stuck.fatal)
	c.leader(c.others(stuck)...)
	c.work(300)
	c.kill(stuck)
	c.start(stuck)
	c.rest(c.others(stuck)...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
	require.NotEqual(t, stuck, c.leader(c.parts...), "who was stuck lets others lead")
}
