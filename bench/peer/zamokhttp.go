package peer

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
)

var errNoHTTP = errors.New("no node has announced its HTTP address")

// openedHTTP counts clients: one after the other uses the next node.
var openedHTTP atomic.Int64

// openZamokHTTP asks one node, which relays unless it leads.
func openZamokHTTP(ctx context.Context, s Session) (Client, error) {
	return openHTTP(ctx, s, func(nodes []client.Member) client.Member { return nodes[int(openedHTTP.Add(1))%len(nodes)] })
}

// openZamokHTTPLeader asks the node that leads when it is opened.
func openZamokHTTPLeader(ctx context.Context, s Session) (Client, error) {
	return openHTTP(ctx, s, func(nodes []client.Member) client.Member {
		return nodes[max(0, slices.IndexFunc(nodes, func(m client.Member) bool { return m.Leader }))]
	})
}

// openHTTP locks by one call with a session of its own, and releases by another, as a program does that has nothing but
// HTTP.
func openHTTP(ctx context.Context, s Session, choose func([]client.Member) client.Member) (Client, error) {
	cluster, err := client.New(client.Config{Endpoints: s.Endpoints, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return Client{}, err
	}
	members, _, err := cluster.Members(ctx)
	if err = errors.Join(err, cluster.Close()); err != nil {
		return Client{}, err
	}
	node := choose(members).HTTP
	if node == "" {
		return Client{}, errNoHTTP
	}
	connection := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: s.Width}}
	post := func(ctx context.Context, path string, body []byte) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		response, err := connection.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		switch {
		case err != nil:
			return nil, err
		case response.StatusCode == http.StatusConflict:
			return nil, ErrHeld
		case response.StatusCode != http.StatusOK:
			return nil, fmt.Errorf("%s: %s", response.Status, answer)
		}
		return answer, nil
	}
	lock := func(wait string) func(context.Context, string) (Unlock, error) {
		return func(ctx context.Context, key string) (Unlock, error) {
			body, err := json.Marshal(map[string]string{"name": key, "ttl": s.TTL.String(), "wait": wait})
			if err != nil {
				return nil, err
			}
			held, err := post(ctx, "/v1/acquire", body)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				_, err := post(ctx, "/v1/release", held) // the answer is the body
				return err
			}, nil
		}
	}
	return Client{Lock: lock("forever"), TryLock: lock("0s"), Close: func() error {
		connection.CloseIdleConnections()
		return nil
	}}, nil
}
