package view

import (
	"errors"
	"strconv"
	"time"
	"unicode/utf8"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// Number is a number of 64 bits: a text in JSON, since many languages would round it; a number is
// read as well.
type Number uint64

// MarshalText implements encoding.TextMarshaler.
func (n Number) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(n), 10), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Number) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		// without the value: it may be a misplaced secret
		return errors.New("must be a number from 0 to 2^64-1")
	}
	*n = Number(v)
	return nil
}

// UnmarshalJSON reads a text or a number.
func (n *Number) UnmarshalJSON(text []byte) error {
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	return n.UnmarshalText(text)
}

// Duration is a span of time as Go writes it: "1m30s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return errors.New(`is not a duration such as "30s" or "1h30m"`)
	}
	*d = Duration(v)
	return nil
}

// Nanoseconds is the duration as the wire has it.
func (d Duration) Nanoseconds() int64 { return int64(d) }

// rounded is a span of cluster time for people: to the millisecond.
func rounded(ns int64) Duration { return Duration(time.Duration(ns).Round(time.Millisecond)) }

// left is how far ahead a moment of cluster time is, 0 if it has passed; nil: there is none.
func left(until, now int64) *Duration {
	if until == 0 {
		return nil
	}
	return new(rounded(max(until-now, 0)))
}

// since is how long ago a moment of cluster time was; nil: it is not known.
func since(at, now int64) *Duration {
	if at == 0 {
		return nil
	}
	return left(now, at)
}

// meta is metadata as a text, quoted if it is none.
func meta(data []byte) string {
	if !utf8.Valid(data) {
		return strconv.Quote(string(data))
	}
	return string(data)
}

// Mode is how a lock is requested: exclusive, shared or permits.
type Mode string

var modes = map[Mode]zamokpb.Mode{
	"exclusive": zamokpb.Mode_MODE_EXCLUSIVE, "shared": zamokpb.Mode_MODE_SHARED,
	"permits": zamokpb.Mode_MODE_PERMITS,
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	if _, known := modes[Mode(text)]; !known {
		return errors.New("must be exclusive, shared or permits")
	}
	*m = Mode(text)
	return nil
}

// Item is one lock of an acquisition.
type Item struct {
	Name    string `json:"name,omitempty" doc:"1 to 512 bytes of UTF-8 without control characters"`
	Mode    Mode   `json:"mode,omitempty" doc:"exclusive (default), shared or permits"`
	Permits uint32 `json:"permits,omitempty" doc:"with permits: how many"`
	Of      uint32 `json:"of,omitempty" doc:"with permits: of how many"`
}

// Wire converts an item. Without a mode it is exclusive, or of permits if their number is given.
func (i Item) Wire() *zamokpb.Item {
	m := modes[i.Mode]
	if i.Mode == "" {
		m = zamokpb.Mode_MODE_EXCLUSIVE
		if i.Permits > 0 || i.Of > 0 {
			m = zamokpb.Mode_MODE_PERMITS
		}
	}
	return &zamokpb.Item{Name: i.Name, Mode: m, Permits: i.Permits, Of: i.Of}
}

func newItem(i *zamokpb.Item) Item {
	return Item{i.Name, Mode(wire.JSONName(i.Mode)), i.Permits, i.Of}
}
