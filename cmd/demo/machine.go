package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/rpc"
	"strings"
	"time"

	"zamok/client"
)

const (
	// shortTTL is the shortest ttl of a lease, so that act 3 is short.
	shortTTL = client.TTLMin
	// pauseVariable is how long a machine counts notes, between reading the balance and paying: a
	// second, or longer on a busy computer, where the other steps take longer.
	pauseVariable = "ZAMOK_DEMO_PAUSE"
)

// cashMachine is a cash machine. It pays out if the balance allows it: it reads the balance, and
// then it pays.
type cashMachine struct {
	name, endpoints string
	bank            *rpc.Client
	ttl             time.Duration // of its lease; 0 = it uses no lock
	pause           time.Duration
}

func (m *cashMachine) withdraw(ctx context.Context, amount int) error {
	var token client.Token
	if m.ttl > 0 {
		c, err := client.New(client.Config{
			Endpoints: strings.Split(m.endpoints, ","), TTL: m.ttl, Label: "cash machine " + m.name,
			Logger: slog.New(slog.DiscardHandler), // only the machine prints
		})
		if err != nil {
			return err
		}
		defer c.Close()
		m.logf("requests the lock")
		lock, err := c.Lock(ctx, account)
		if err != nil {
			return err
		}
		token = lock.Token()
		m.logf("holds the lock, token %d", token)
	}
	// A careless program: it does not check lock.Err() before it pays. The token protects the
	// account anyway.
	var balance, left int
	if err := m.bank.Call("Bank.Balance", 0, &balance); err != nil {
		return err
	}
	m.logf("sees %d", balance)
	if balance < amount {
		m.logf("pays nothing: %d is not enough", balance)
		return nil
	}
	pauseTimer := time.NewTimer(m.pause)
	defer pauseTimer.Stop()
	select {
	case <-pauseTimer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := m.bank.Call("Bank.Pay", Payment{amount, uint64(token)}, &left)
	if rejected, ok := err.(rpc.ServerError); ok {
		m.logf("pays nothing: the bank rejects it: %s",
			strings.TrimPrefix(string(rejected), "fence: "))
		return nil
	}
	if err == nil {
		m.logf("pays out %d; %d left", amount, left)
	}
	return err
}

func (m *cashMachine) logf(format string, args ...any) {
	fmt.Printf("machine %s %s\n", m.name, fmt.Sprintf(format, args...))
}
