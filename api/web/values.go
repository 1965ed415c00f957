package web

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"zamok/api/view"
	"zamok/api/wire"
	"zamok/clock"
)

// patience is how long an acquisition may wait: a duration, or "forever".
type patience int64

// forever is a wait without a limit.
const forever = patience(-1)

func (p patience) MarshalText() ([]byte, error) {
	if p == forever {
		return []byte("forever"), nil
	}
	return view.Duration(p).MarshalText()
}

func (p *patience) UnmarshalText(text []byte) error {
	if string(text) == "forever" {
		*p = forever
		return nil
	}
	if err := (*view.Duration)(p).UnmarshalText(text); err != nil {
		return fmt.Errorf(`%w, nor "forever"`, err)
	}
	return nil
}

// validFor is for how long it is certain that a deadline has not passed which was left ahead of a
// confirmation, from the moment at which the request for that was sent. Rounded down.
func validFor(left int64) view.Duration {
	certain := time.Duration(left - int64(clock.Margin(clock.Span(left))))
	return view.Duration(max(certain, 0).Truncate(time.Millisecond))
}

const (
	// bodyBytesMax bounds a request's body.
	bodyBytesMax = 64 << 10
	// secretHeader has the secret of a session for requests that have no body.
	secretHeader = "Zamok-Secret"
)

// read fills in a request: from the path, from the query if the method has no body, and else from
// the JSON of the body. The secret may come as a header.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	if r.Method == http.MethodPost {
		if len(r.URL.RawQuery) > 0 {
			if err := checkNoSecret(r.URL.Query()); err != nil {
				return err
			}
			return invalid("query",
				"is not read: the fields of this request are in its body, as JSON")
		}
		if err := readBody(w, r, into); err != nil {
			return err
		}
	} else if r.ContentLength != 0 {
		return invalid("body", "is not read: the fields of this request are in its address")
	} else if err := readQuery(r.URL.RawQuery, into); err != nil {
		return err
	}
	for name, field := range fields(into) {
		text := r.PathValue(name)
		if name == "secret" && field.IsZero() {
			text = r.Header.Get(secretHeader)
		}
		if text != "" {
			if err := set(field, []string{text}); err != nil {
				return invalid(name, "%v", err)
			}
		}
	}
	return nil
}

func readBody(w http.ResponseWriter, r *http.Request, into any) error {
	text, err := body(w, r)
	if err != nil || len(text) == 0 { // it has no fields
		return err
	}
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		return invalid("body", "is no JSON object: %v", err)
	}
	return readObject("", text, into)
}

// body is the body of a request without the space around it.
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &failure{status: http.StatusRequestEntityTooLarge,
			cause: wire.Invalid("body", "has more than %d bytes", large.Limit)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &failure{status: http.StatusRequestTimeout,
			cause: wire.Invalid("body", "did not arrive in time")}
	case err != nil:
		return nil, invalid("body", "did not arrive: %v", err)
	case !utf8.Valid(text):
		// package json would replace what is not: another name
		return nil, invalid("body", "is not UTF-8")
	}
	return bytes.TrimSpace(text), nil
}

// readObject fills in a struct from a JSON object, whose syntax is right. Other than package json
// it names the field that is wrong, and refuses a field that is given twice.
func readObject(prefix string, text []byte, into any) error {
	in := json.NewDecoder(bytes.NewReader(text))
	if begin, _ := in.Token(); begin != json.Delim('{') {
		return invalid(cmp.Or(strings.TrimSuffix(prefix, "."), "body"), "is no JSON object")
	}
	known, seen := make(map[string]reflect.Value), make(map[string]bool)
	var names []string
	for name, field := range fields(into) {
		known[name] = field
		names = append(names, name)
	}
	for in.More() {
		var value json.RawMessage
		token, _ := in.Token()
		name, _ := token.(string)
		if err := in.Decode(&value); err != nil {
			return invalid(prefix+name, "%v", err)
		}
		field, found := known[name]
		switch {
		case !found:
			return invalid(prefix+name, "is not known here; known are: %s",
				strings.Join(names, ", "))
		case seen[name]:
			return invalid(prefix+name, "is given more than once")
		}
		seen[name] = true
		if err := readValue(prefix+name, value, field); err != nil {
			return err
		}
	}
	return nil
}

// readValue fills in a field from a JSON value; null is as if it were absent.
func readValue(name string, text json.RawMessage, into reflect.Value) error {
	if string(text) == "null" {
		return nil
	}
	if t := into.Type(); t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		var list []json.RawMessage
		if json.Unmarshal(text, &list) != nil {
			return invalid(name, "is no list")
		}
		into.Set(reflect.MakeSlice(t, len(list), len(list)))
		for i, element := range list {
			if err := readObject(fmt.Sprintf("%s[%d].", name, i), element,
				into.Index(i).Addr().Interface()); err != nil {
				return err
			}
		}
		return nil
	}
	err := json.Unmarshal(text, into.Addr().Interface())
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return invalid(name, "is a %s in JSON, where %s is needed", kind.Value, wanted(into.Type()))
	case err != nil:
		return invalid(name, "%v", err)
	case into.Kind() == reflect.String && strings.ContainsRune(into.String(), utf8.RuneError) &&
		!bytes.ContainsRune(text, utf8.RuneError) &&
		!bytes.Contains(bytes.ToLower(text), []byte(`\ufffd`)):
		return invalid(name, `has half of a character, written as \ud800 to \udfff`)
	}
	return nil
}

// wanted is what a field has in JSON.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[view.Duration](), t == reflect.TypeFor[patience]():
		return `a text such as "30s"`
	case t.Kind() == reflect.Uint32:
		return "a number from 0 to 2^32-1"
	}
	return "a text"
}

func readQuery(raw string, into any) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return invalid("query", "%v", err)
	}
	if err := checkNoSecret(query); err != nil {
		return err
	}
	for name, values := range query {
		switch {
		case !utf8.ValidString(name):
			return invalid("query", "is not UTF-8")
		case !utf8.ValidString(strings.Join(values, "")):
			return invalid(name, "is not UTF-8")
		}
	}
	var known []string
	for name, field := range fields(into) {
		if name == "secret" {
			continue // addresses are kept in logs
		}
		known = append(known, name)
		if values := query[name]; len(values) > 0 {
			if err := set(field, values); err != nil {
				return invalid(name, "%v", err)
			}
		}
	}
	for name := range query {
		if !slices.Contains(known, name) {
			return invalid(name, "is not known here; known are: %s", strings.Join(known, ", "))
		}
	}
	return nil
}

// secretFields are names of secrets in a query, with the header to use instead.
var secretFields = map[string]string{
	"secret": secretHeader, "zamok-secret": secretHeader, "authorization": "Authorization",
	"bearer":       "Authorization",
	"access_token": "Authorization", "idempotency-key": keyHeader, "idempotency_key": keyHeader,
}

// checkNoSecret refuses secrets in the query of a URL, which proxies and browsers log.
func checkNoSecret(query url.Values) error {
	for name := range query {
		if header, is := secretFields[strings.ToLower(name)]; is {
			return invalid(name,
				"is a secret, and URLs are logged: send it in the header %s, and replace this one",
				header)
		}
	}
	return nil
}

// fields are the fields of a struct by their names in JSON, in a query and in a path.
func fields(of any) iter.Seq2[string, reflect.Value] {
	v := reflect.ValueOf(of).Elem()
	return func(yield func(string, reflect.Value) bool) {
		for _, f := range reflect.VisibleFields(v.Type()) {
			if !f.Anonymous && !yield(fieldName(f), v.FieldByIndex(f.Index)) {
				return
			}
		}
	}
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// set gives a field what a path, a query or a header has.
func set(v reflect.Value, texts []string) error {
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String {
		v.Set(reflect.ValueOf(texts))
		return nil
	}
	if len(texts) > 1 {
		return errors.New("is given more than once")
	}
	text := texts[0]
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if to, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return to.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Uint32:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return errors.New("must be a number from 0 to 2^32-1")
		}
		v.SetUint(n)
	default:
		return errors.New("can't be given here") // a list of objects
	}
	return nil
}
