package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"

	"zamok/client"
	"zamok/client/admin"
)

var errNoHTTP = errors.New("no node has announced its HTTP address")

// openedHTTP counts clients: each uses the node after that of the one before.
var openedHTTP atomic.Int64

// openZamokHTTP calls one node, which relays unless it leads.
func openZamokHTTP(ctx context.Context, s Session) (Client, error) {
	return openHTTP(ctx, s, func(nodes []admin.Member) admin.Member {
		return nodes[int(openedHTTP.Add(1))%len(nodes)]
	})
}

// openZamokHTTPLeader calls the node that leads when it is opened.
func openZamokHTTPLeader(ctx context.Context, s Session) (Client, error) {
	return openHTTP(ctx, s, func(nodes []admin.Member) admin.Member {
		return nodes[max(0, slices.IndexFunc(nodes, func(m admin.Member) bool { return m.Leader }))]
	})
}

// openHTTP locks by one call with its own session, and releases by another, as a program that uses
// only HTTP.
func openHTTP(ctx context.Context, s Session,
	choose func([]admin.Member) admin.Member) (Client, error) {
	cluster, err := client.New(
		client.Config{Endpoints: s.Endpoints, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return Client{}, err
	}
	members, _, err := admin.New(cluster).Members(ctx)
	if err = errors.Join(err, cluster.Close()); err != nil {
		return Client{}, err
	}
	node := choose(members).HTTP
	if node == "" {
		return Client{}, errNoHTTP
	}
	connection := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: s.Width}}
	post := func(ctx context.Context, path string, body []byte) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+path,
			bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		response, err := connection.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		switch {
		case err != nil:
			return nil, err
		case response.StatusCode == http.StatusConflict:
			return nil, ErrHeld
		case response.StatusCode != http.StatusOK:
			return nil, fmt.Errorf("%s: %s", response.Status, text)
		}
		return text, nil
	}
	lock := func(wait string) func(context.Context, string) (Unlock, error) {
		return func(ctx context.Context, key string) (Unlock, error) {
			body, err := json.Marshal(
				map[string]string{"name": key, "ttl": s.TTL.String(), "wait": wait})
			if err != nil {
				return nil, err
			}
			held, err := post(ctx, "/v1/acquire", body)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				_, err := post(ctx, "/v1/release", held) // the body is the response to acquire
				return err
			}, nil
		}
	}
	return Client{Lock: lock("forever"), TryLock: lock("0s"), Close: func() error {
		connection.CloseIdleConnections()
		return nil
	}}, nil
}
