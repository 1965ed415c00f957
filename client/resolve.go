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

// name is an endpoint that stands for several addresses. Each is asked as if it had been given.
type name struct {
	endpoint   string
	host, port string // port "" = the host has SRV records, which name hosts and ports
	authority  string // the name that a certificate must have, whatever the address
	failed     error  // why the latest look-up failed; nil if it did not. The mutex of nodes guards it.
}

const (
	dnsScheme = "dns:///"
	srvScheme = "srv:///"
	// Names are looked up again while no node speaks, after pauses that grow.
	resolveMin = time.Second
	resolveMax = 10 * time.Second
	// resolvePatience is enough for a resolver to ask a second server when the first is silent.
	resolvePatience = 10 * time.Second
)

var errNoAddress = errors.New("the name has no addresses")

// nameOf is the name that an endpoint is; nil if it is an address.
func nameOf(endpoint string) (*name, error) {
	if host, is := strings.CutPrefix(endpoint, srvScheme); is {
		authority := strings.TrimSuffix(host, ".")
		for strings.HasPrefix(authority, "_") {
			_, authority, _ = strings.Cut(authority, ".")
		}
		if authority == "" || strings.ContainsAny(host, ":/") {
			return nil, invalid("endpoint", "%q: write the name of the records, as in srv:///_zamok._tcp.example.com", endpoint)
		}
		return &name{endpoint: endpoint, host: host, authority: authority, failed: errNoAnswer}, nil
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
	return &name{endpoint: endpoint, host: host, port: port, authority: net.JoinHostPort(strings.TrimSuffix(host, "."), port), failed: errNoAnswer}, err
}

// lookUp gives the addresses that a name stands for.
func (n *nodes) lookUp(ctx context.Context, one *name) (addresses []string, err error) {
	if one.port != "" {
		hosts, err := n.resolver.LookupHost(ctx, one.host)
		return each(hosts, func(host string) string { return net.JoinHostPort(host, one.port) }), err
	}
	_, targets, err := n.resolver.LookupSRV(ctx, "", "", one.host)
	for _, t := range targets {
		if host := strings.TrimSuffix(t.Target, "."); host != "" { // "." = the service is not offered
			addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(int(t.Port))))
		}
	}
	if len(addresses) == 0 {
		return nil, cmp.Or(err, errNoAddress)
	}
	return addresses, nil // an error is about records that were left out
}

// resolve looks the names up in the background, unless that was done a short while ago: what is known may answer
// meanwhile. It returns a channel that is closed at the end of the look-up in progress; nil if there is none.
func (n *nodes) resolve() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); len(n.names) > 0 && n.resolving == nil && !n.closed && now.After(n.resolveAfter) {
		n.resolvePause = min(max(2*n.resolvePause, resolveMin), resolveMax)
		n.resolveAfter = now.Add(n.resolvePause + rand.N(n.resolvePause/2))
		n.resolving = make(chan struct{})
		n.background.Go(n.resolveNames)
	}
	return n.resolving
}

func (n *nodes) resolveNames() {
	ctx, cancel := context.WithTimeout(n.ctx, resolvePatience)
	defer cancel()
	var all sync.WaitGroup
	for _, one := range n.names {
		all.Go(func() {
			addresses, err := n.lookUp(ctx, one)
			n.move(one, addresses, err)
		})
	}
	all.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.resolving)
	n.resolving = nil
}

// move replaces the addresses of a name. Those that it does not have any more are let go of if they fail.
func (n *nodes) move(one *name, addresses []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if one.failed = err; err != nil {
		return // the addresses that are known may still be right
	}
	for _, known := range n.all {
		known.given = known.given && known.from != one
	}
	for _, address := range addresses {
		known, err := n.add(address, one)
		if one.failed = cmp.Or(one.failed, err); known != nil {
			known.given = true
		}
	}
	n.all = slices.DeleteFunc(n.all, func(known *node) bool {
		left := known.from == one && !known.given && known.last != nil && !n.leads(known)
		if left {
			_ = known.conn.Close() // a call that uses it asks another node
		}
		return left
	})
}

// unresolved are the names whose addresses are not known, or may have changed, and why. The caller has the mutex.
func (n *nodes) unresolved() (all []NodeError) {
	for _, one := range n.names {
		if one.failed != nil {
			all = append(all, NodeError{Address: one.endpoint, Err: plain(one.failed)})
		}
	}
	return all
}

// given are the endpoints, each name as its addresses. A look-up that takes long is not waited for if there is another
// endpoint.
func (n *nodes) given(ctx context.Context) []*node {
	known := func() []*node {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.DeleteFunc(slices.Clone(n.all), func(one *node) bool { return !one.given })
	}
	silence := time.NewTimer(n.silence)
	defer silence.Stop()
	for done := n.resolve(); done != nil; {
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
