package admin

import (
	"context"
	"time"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

// Settings are the settings of the cluster. All nodes apply them.
type Settings struct {
	// LongestTTL is the longest ttl that a session may be opened with.
	LongestTTL time.Duration
	// RestoreHoldOff is how long a cluster that is restored from a backup taken now grants nothing,
	// unless the restore is given a shorter time. It follows the highest value that LongestTTL ever
	// had.
	RestoreHoldOff time.Duration
	// Quotas are the quotas in force, and Used is the usage of all clients; its Share is 0.
	Quotas, Used Quotas
}

// Quotas limit what clients make every node of a cluster store. A session or an acquisition beyond
// a quota fails with ErrLimit.
type Quotas struct {
	Sessions uint64 // live sessions of all clients together
	Tickets  uint64 // acquisitions that wait or are granted
	Bytes    uint64 // approximate memory of sessions, tickets and lock delays on each node
	Share    uint32 // percentage of each that one identity may use
}

// OfIdentity is what one identity may use; its Share is 0.
func (q Quotas) OfIdentity() Quotas {
	part := func(all uint64) uint64 { return (all*uint64(q.Share) + 99) / 100 }
	return Quotas{Sessions: part(q.Sessions), Tickets: part(q.Tickets), Bytes: part(q.Bytes)}
}

func quotasOf(q *zamokpb.Quotas) Quotas {
	return Quotas{
		Sessions: q.GetSessions(), Tickets: q.GetTickets(), Bytes: q.GetBytes(),
		Share: q.GetShare(),
	}
}

// Settings reads the settings of the cluster.
func (a *Admin) Settings(ctx context.Context) (Settings, error) {
	return a.settings(ctx, call.Reads, &zamokpb.SettingsRequest{})
}

// SetLongestTTL changes the longest ttl of sessions that are opened from now on: from a minute to 7
// days. Sessions that are open keep theirs. It returns all settings as they are then.
func (a *Admin) SetLongestTTL(ctx context.Context, ttl time.Duration) (Settings, error) {
	if ttl == 0 { // would only read
		return Settings{}, invalid("longest_ttl", "longest_ttl: is 0: it is from 1 m to 7 days")
	}
	return a.settings(ctx, call.Repeats, &zamokpb.SettingsRequest{LongestTtl: int64(ttl)})
}

// SetQuotas changes the quotas that are not 0, and returns all settings. Lowering a quota ends
// nothing.
func (a *Admin) SetQuotas(ctx context.Context, q Quotas) (Settings, error) {
	if q == (Quotas{}) { // would only read
		return Settings{}, invalid("quotas", "quotas: are all 0")
	}
	return a.settings(ctx, call.Repeats, &zamokpb.SettingsRequest{
		Quotas: &zamokpb.Quotas{Sessions: q.Sessions, Tickets: q.Tickets, Bytes: q.Bytes,
			Share: q.Share},
	})
}

// IdentityUsage is what one identity uses; its Share is 0.
type IdentityUsage struct {
	Identity string
	Used     Quotas
}

// Usage reads the settings, and the usage of up to limit identities, at most 1000. Those come first
// that use the largest part of one of their quotas.
func (a *Admin) Usage(ctx context.Context, limit int) (
	s Settings, identities []IdentityUsage, err error) {
	request := &zamokpb.SettingsRequest{Identities: uint32(max(limit, 0))}
	r, _, err := call.Leader(ctx, a.calls, call.Reads, call.Node.Settings, request)
	for _, u := range r.GetIdentities() {
		identities = append(identities, IdentityUsage{u.GetIdentity(), quotasOf(u.GetUsed())})
	}
	return settingsOf(r), identities, err
}

func invalid(field, message string) error {
	return &client.Error{Kind: client.ErrInvalid, Field: field, Message: message}
}

func (a *Admin) settings(ctx context.Context, effect call.Effect, request *zamokpb.SettingsRequest,
) (Settings, error) {
	r, _, err := call.Leader(ctx, a.calls, effect, call.Node.Settings, request)
	return settingsOf(r), err
}

func settingsOf(r *zamokpb.SettingsResponse) Settings {
	return Settings{
		LongestTTL:     time.Duration(r.GetLongestTtl()),
		RestoreHoldOff: time.Duration(r.GetRestoreHoldOff()),
		Quotas:         quotasOf(r.GetQuotas()), Used: quotasOf(r.GetUsed()),
	}
}
