package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dnsName is an endpoint that stands for several addresses. Each of them is used like a configured
// endpoint.
type dnsName struct {
	endpoint   string
	host, port string // port "" = the host has SRV records, which name hosts and ports
	authority  string // the name that a certificate must have, whatever the address
	// why the latest look-up failed; nil if it did not. The mutex of nodes guards it.
	failed error
}

const (
	dnsScheme = "dns:///"
	srvScheme = "srv:///"
	// Names are looked up again while no node replies, after delays that grow.
	lookUpDelayMin = time.Second
	lookUpDelayMax = 10 * time.Second
	// lookUpTimeout is enough for a resolver to query a second server when the first is silent.
	lookUpTimeout = 10 * time.Second
)

var errNoAddress = errors.New("the name has no addresses")

// dnsNameOf returns the name that an endpoint is; nil if it is an address.
func dnsNameOf(endpoint string) (*dnsName, error) {
	if host, is := strings.CutPrefix(endpoint, srvScheme); is {
		authority := strings.TrimSuffix(host, ".")
		for strings.HasPrefix(authority, "_") {
			_, authority, _ = strings.Cut(authority, ".")
		}
		if authority == "" || strings.ContainsAny(host, ":/") {
			return nil, invalid("endpoint",
				"%q: write the name of the records, as in srv:///_zamok._tcp.example.com", endpoint)
		}
		return &dnsName{endpoint: endpoint, host: host, authority: authority,
			failed: errNoAnswer}, nil
	}
	rest, is := strings.CutPrefix(endpoint, dnsScheme)
	if !is {
		return nil, nil
	}
	address, err := addressOf(rest)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	return &dnsName{endpoint: endpoint, host: host, port: port,
		authority: net.JoinHostPort(strings.TrimSuffix(host, "."), port), failed: errNoAnswer}, err
}

// lookUp returns the addresses that a name stands for.
func (n *nodes) lookUp(ctx context.Context, one *dnsName) (addresses []string, err error) {
	if one.port != "" {
		hosts, err := n.resolver.LookupHost(ctx, one.host)
		return each(hosts, func(host string) string {
			return net.JoinHostPort(host, one.port)
		}), err
	}
	_, targets, err := n.resolver.LookupSRV(ctx, "", "", one.host)
	for _, t := range targets {
		// "." = the service is not offered
		if host := strings.TrimSuffix(t.Target, "."); host != "" {
			addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(int(t.Port))))
		}
	}
	if len(addresses) == 0 {
		return nil, cmp.Or(err, errNoAddress)
	}
	return addresses, nil // an error is about records that were left out
}

// startLookUp looks the names up in the background, unless that was done a short while ago: the
// known addresses may work meanwhile. It returns a channel that is closed at the end of the look-up
// in progress; nil if there is none.
func (n *nodes) startLookUp() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); len(n.names) > 0 && n.lookingUp == nil && !n.closed &&
		now.After(n.lookUpAfter) {
		n.lookUpDelay = min(max(2*n.lookUpDelay, lookUpDelayMin), lookUpDelayMax)
		n.lookUpAfter = now.Add(n.lookUpDelay + rand.N(n.lookUpDelay/2))
		n.lookingUp = make(chan struct{})
		n.background.Go(n.lookUpNames)
	}
	return n.lookingUp
}

func (n *nodes) lookUpNames() {
	ctx, cancel := context.WithTimeout(n.ctx, lookUpTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, one := range n.names {
		all.Go(func() {
			addresses, err := n.lookUp(ctx, one)
			n.setAddresses(one, addresses, err)
		})
	}
	all.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.lookingUp)
	n.lookingUp = nil
}

// setAddresses replaces the addresses of a name. An address that the name does not have any more is
// removed if its node has failed.
func (n *nodes) setAddresses(one *dnsName, addresses []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if one.failed = err; err != nil {
		return // the addresses that are known may still be right
	}
	for _, known := range n.all {
		known.configured = known.configured && known.from != one
	}
	for _, address := range addresses {
		known, err := n.add(address, one)
		if one.failed = cmp.Or(one.failed, err); known != nil {
			known.configured = true
		}
	}
	n.all = slices.DeleteFunc(n.all, func(known *node) bool {
		left := known.from == one && !known.configured && known.last != nil && !n.leads(known)
		if left {
			_ = known.conn.Close() // a call that uses it tries another node
		}
		return left
	})
}

// unresolved are the names whose addresses are unknown or may have changed, with the reasons. The
// caller has the mutex.
func (n *nodes) unresolved() (all []NodeError) {
	for _, one := range n.names {
		if one.failed != nil {
			all = append(all, NodeError{Address: one.endpoint, Err: plainError(one.failed)})
		}
	}
	return all
}

// endpoints returns the configured endpoints, each name as its addresses. It does not wait for a
// slow look-up if there is another endpoint.
func (n *nodes) endpoints(ctx context.Context) []*node {
	known := func() []*node {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.DeleteFunc(slices.Clone(n.all),
			func(one *node) bool { return !one.configured })
	}
	silence := time.NewTimer(n.surveyWait)
	defer silence.Stop()
	for done := n.startLookUp(); done != nil; {
		select {
		case <-done:
			done = nil
		case <-ctx.Done():
			done = nil
		case <-silence.C:
			if len(known()) > 0 {
				done = nil
			}
		}
	}
	return known()
}
