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
	// shortTTL is as short as a lease may be, so that nobody has to wait long for act 3.
	shortTTL = client.TTLMin
	// countingDefault is how long a machine counts notes, between its look at the balance and the payment.
	countingDefault = time.Second
	// countingVariable says how long else. What the story does in between takes longer on a busy computer.
	countingVariable = "ZAMOK_DEMO_PAUSE"
)

func counting() (time.Duration, error) {
	text := os.Getenv(countingVariable)
	if text == "" {
		return countingDefault, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", countingVariable, err)
	}
	return d, nil
}

// machine is a cash machine. It pays out if the balance allows it, as programs do: it looks, and then it acts.
type machine struct {
	name, bank, endpoints string
	ttl                   time.Duration // of its lease; 0 = it uses no lock
	counting              time.Duration
	out                   io.Writer
}

func (m *machine) draw(ctx context.Context, amount int) error {
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
		m.says("asks for the lock")
		lock, err := c.Lock(ctx, account)
		if err != nil {
			return err
		}
		token = lock.Token()
		m.says("holds the lock, token %d", token)
	}
	// What a careless program does: it does not ask lock.Err() before it pays. The token protects all the same.
	balance, err := teller(m.bank).balance(ctx)
	if err != nil {
		return err
	}
	m.says("sees %d", balance)
	if balance < amount {
		m.says("pays nothing: %d is not enough", balance)
		return nil
	}
	notes := time.NewTimer(m.counting)
	defer notes.Stop()
	select {
	case <-notes.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	left, err := teller(m.bank).pay(ctx, payment{Amount: amount, Token: uint64(token)})
	if errors.Is(err, errRefused) {
		m.says("pays nothing: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	m.says("pays out %d; %s left", amount, left)
	return nil
}

func (m *machine) says(format string, args ...any) {
	fmt.Fprintf(m.out, "machine %s %s\n", m.name, fmt.Sprintf(format, args...))
}

func (t teller) pay(ctx context.Context, p payment) (left string, err error) {
	body, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	return t.call(ctx, http.MethodPost, "/pay", body)
}

func (t teller) call(ctx context.Context, method, path string, body []byte) (string, error) {
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
		err = fmt.Errorf("%w: %s", errRefused, strings.TrimSpace(strings.TrimPrefix(string(text), "fence: ")))
	}
	return strings.TrimSpace(string(text)), err
}
