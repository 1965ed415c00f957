package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"zamok/client"
)

const (
	// shortTTL is as short as a lease may be, so that act 3 is short.
	shortTTL = client.TTLMin
	// pauseDefault is how long a machine counts notes, between its look at the balance and the payment.
	pauseDefault = time.Second
	// pauseVariable sets another length. What happens in between takes longer on a busy computer.
	pauseVariable = "ZAMOK_DEMO_PAUSE"
)

func pauseFromEnv() (time.Duration, error) {
	text := os.Getenv(pauseVariable)
	if text == "" {
		return pauseDefault, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", pauseVariable, err)
	}
	return d, nil
}

// cashMachine is a cash machine. It pays out if the balance allows it, as programs do: it looks, and then it acts.
type cashMachine struct {
	name, bank, endpoints string
	ttl                   time.Duration // of its lease; 0 = it uses no lock
	pause                 time.Duration
	out                   io.Writer
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
	balance, err := bankClient(m.bank).balance(ctx)
	if err != nil {
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
	remaining, err := bankClient(m.bank).pay(ctx, payment{Amount: amount, Token: uint64(token)})
	if errors.Is(err, errTokenRejected) {
		m.logf("pays nothing: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	m.logf("pays out %d; %s left", amount, remaining)
	return nil
}

func (m *cashMachine) logf(format string, args ...any) {
	fmt.Fprintf(m.out, "machine %s %s\n", m.name, fmt.Sprintf(format, args...))
}

func (t bankClient) pay(ctx context.Context, p payment) (left string, err error) {
	body, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	return t.call(ctx, http.MethodPost, "/pay", body)
}

func (t bankClient) call(ctx context.Context, method, path string, body []byte) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, string(t)+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode == http.StatusConflict {
		err = fmt.Errorf("%w: %s", errTokenRejected, strings.TrimSpace(strings.TrimPrefix(string(text), "fence: ")))
	}
	return strings.TrimSpace(string(text)), err
}
