package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"zamok/client/fence"
)

const (
	account        = "account/200"
	initialBalance = 200
	withdrawal     = 150 // what each machine draws
)

// bank keeps one account. It has no lock of its own that spans a look at the balance and the payment: the
// machines must see to that. All it does is to check tokens.
type bank struct {
	url    string
	server *http.Server
	done   chan struct{} // closed when nothing is served any more

	mu         sync.Mutex
	balance    int
	fenceGuard *fence.Guard // nil: tokens are not looked at
	rejected   int          // payments, for their tokens
}

func openBank() (*bank, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &bank{url: "http://" + listener.Addr().String(), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /balance", b.serveBalance)
	mux.HandleFunc("POST /pay", b.servePay)
	b.server = &http.Server{Handler: mux}
	go func() {
		defer close(b.done)
		_ = b.server.Serve(listener) // until close
	}()
	return b, nil
}

func (b *bank) close() {
	_ = b.server.Close()
	<-b.done
}

// reset fills the account for the next act.
func (b *bank) reset(checksTokens bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.balance, b.rejected, b.fenceGuard = initialBalance, 0, nil
	if checksTokens {
		b.fenceGuard = &fence.Guard{}
	}
}

func (b *bank) state() (balance, rejected int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.balance, b.rejected
}

func (b *bank) serveBalance(w http.ResponseWriter, _ *http.Request) {
	balance, _ := b.state()
	fmt.Fprint(w, balance)
}

// payment is what a machine sends when it has counted out the notes.
type payment struct {
	Amount int    `json:"amount"`
	Token  uint64 `json:"token"`
}

func (b *bank) servePay(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fenceGuard != nil {
		if err := b.fenceGuard.Check(account, fence.Exclusive, p.Token); err != nil {
			b.rejected++
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
	}
	b.balance -= p.Amount
	fmt.Fprint(w, b.balance)
}

// bankClient talks to the bank for a machine.
type bankClient string

func (t bankClient) balance(ctx context.Context) (int, error) {
	text, err := t.call(ctx, http.MethodGet, "/balance", nil)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

var errTokenRejected = errors.New("the bank refuses")

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
