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
	// shortTTL is as short as a lease may be, so that act 3 is short.
	shortTTL = client.TTLMin
	// pauseVariable says how long a machine counts notes, between its look at the balance and the payment: a second,
	// or longer, because what happens in between takes longer on a busy computer.
	pauseVariable = "ZAMOK_DEMO_PAUSE"
)

// cashMachine is a cash machine. It pays out if the balance allows it, as programs do: it looks, and then it acts.
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
			Logger: slog.New(slog.DiscardHandler), // a story has one teller
		})
		if err != nil {
			return err
		}
		defer c.Close()
		m.logf("asks for the lock")
		lock, err := c.Lock(ctx, account)
		if err != nil {
			return err
		}
		token = lock.Token()
		m.logf("holds the lock, token %d", token)
	}
	// What a careless program does: it does not ask lock.Err() before it pays. The token protects all the same.
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
	if refused, ok := err.(rpc.ServerError); ok {
		m.logf("pays nothing: the bank refuses: %s", strings.TrimPrefix(string(refused), "fence: "))
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
