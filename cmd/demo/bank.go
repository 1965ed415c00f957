package main

import (
	"net"
	"net/rpc"
	"sync"

	"zamok/client/fence"
)

const (
	account        = "account/200"
	initialBalance = 200
	withdrawal     = 150 // what each machine draws
)

// Bank keeps one account. It has no lock that covers both the reading of the balance and the
// payment: that is the task of the machines. It only checks tokens. Machines call Balance and Pay
// by net/rpc.
type Bank struct {
	mu         sync.Mutex
	balance    int
	fenceGuard *fence.Guard // nil: tokens are not checked
	rejected   int          // payments, for their tokens
}

// serve serves the bank until this program ends, and returns its address.
func (b *Bank) serve() (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := rpc.NewServer()
	go server.Accept(listener)
	return listener.Addr().String(), server.Register(b)
}

// reset fills the account for the next act.
func (b *Bank) reset(checksTokens bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.balance, b.rejected, b.fenceGuard = initialBalance, 0, nil
	if checksTokens {
		b.fenceGuard = &fence.Guard{}
	}
}

// Balance returns the balance.
func (b *Bank) Balance(_ int, balance *int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	*balance = b.balance
	return nil
}

// Payment is the message of a machine that pays out.
type Payment struct {
	Amount int
	Token  uint64
}

// Pay pays, unless it rejects the token, and returns the new balance.
func (b *Bank) Pay(p Payment, left *int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fenceGuard != nil {
		if err := b.fenceGuard.Check(account, fence.Exclusive, p.Token); err != nil {
			b.rejected++
			return err
		}
	}
	b.balance -= p.Amount
	*left = b.balance
	return nil
}
