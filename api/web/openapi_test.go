package web

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate"
	"zamok/api/gate/rules"
	"zamok/api/view"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

var updateOpenAPI = flag.Bool("update-openapi", false,
	"write openapi.json, which TestOpenAPIIsWhatTheRoutesSay compares")

// The description is what the table of routes says, the Go types that are read and written, and the
// rows of the gate's table for the requests that each route makes.
func TestOpenAPIIsWhatTheRoutesSay(t *testing.T) {
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetIndent("", "\t")
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(describe(t)))
	if *updateOpenAPI {
		require.NoError(t, os.WriteFile("openapi.json", want.Bytes(), 0o644))
		return
	}
	require.Equal(t, want.String(), string(openAPI), "make generate would fix openapi.json")
}

// recordingConn records the requests that it gets. Reads of a lock show a holder; nothing else
// succeeds.
type recordingConn struct {
	requests []proto.Message
	end      func() // of the request over HTTP
}

func (c *recordingConn) Do(_ context.Context, _ gate.Arrival, request proto.Message) (
	proto.Message, error) {
	c.requests = append(c.requests, request)
	if _, reads := request.(*zamokpb.GetRequest); reads {
		holder := &zamokpb.Ticket{Session: 7, Meta: []byte(`{"ID":"x"}`)}
		return &zamokpb.GetResponse{Holders: []*zamokpb.Ticket{holder}}, nil
	}
	return nil, wire.Errorf(zamokpb.Code_CODE_NOT_ACQUIRED, "not done: it is only recorded")
}

func (c *recordingConn) Stream(ctx context.Context, _ gate.Arrival, method string,
	messages gate.Messages) error {
	defer c.end() // a hold would open another stream
	c.requests = append(c.requests, gate.OfMethod(method).Message)
	if method == zamokpb.Zamok_Session_FullMethodName {
		s := &fakeStream{ctx, messages}
		frame := new(zamokpb.ClientFrame)
		if err := s.RecvMsg(frame); err != nil {
			return err
		}
		opened := &zamokpb.SessionState{Session: 7, Ttl: int64(ttlDefault), Sent: frame.Sent}
		s.sends(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: opened}})
		c.requests = append(c.requests, s.received().GetAcquire())
	}
	return wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: it is only recorded")
}

func (*recordingConn) Cluster() string { return "00ff" }

// made returns the requests of the wire that a route makes: for a request with the fields that it
// must have, and for one that names a ticket of a session, too.
func made(t *testing.T, r route) []proto.Message {
	conn := new(recordingConn)
	handler := New(fakeConfig(conn))
	for _, also := range [][]string{nil, {"session", "secret", "ticket"}} {
		path, query, fields := r.path, []string{}, map[string]any{}
		for _, f := range reflect.VisibleFields(r.request) {
			name := fieldName(f)
			if f.Anonymous || isOptional(f) && !slices.Contains(also, name) {
				continue
			}
			value := map[bool]string{true: "7",
				false: "a"}[f.Type == reflect.TypeFor[view.Number]()]
			switch {
			case name == "secret":
				fields[name] = strings.Repeat("0", 2*secretBytes)
			case strings.Contains(path, "{"+name+"}"):
				path = strings.Replace(path, "{"+name+"}", value, 1)
			default:
				fields[name], query = value, append(query, name+"="+value)
			}
		}
		body, err := json.Marshal(fields)
		require.NoError(t, err)
		if r.method == http.MethodGet || r.method == http.MethodDelete {
			body = nil
		} else if r.method != http.MethodPost {
			body = []byte(`{"ID":"x"}`)
		}
		if r.method != http.MethodPost {
			path += "?" + strings.Join(query, "&")
		}
		ctx, cancel := context.WithCancel(t.Context())
		conn.end = cancel
		request := httptest.NewRequestWithContext(ctx, r.method, "http://localhost"+path,
			bytes.NewReader(body))
		if secret, has := fields["secret"].(string); has && r.method != http.MethodPost {
			request.Header.Set(secretHeader, secret)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		cancel()
		require.NotEqual(t, http.StatusBadRequest, answer.Code, "%s %s: %s", r.method, path,
			answer.Body)
	}
	require.NotEmpty(t, conn.requests, "%s %s", r.method, r.path)
	return conn.requests
}

// rowText is what the gate's table says of the requests that a route makes.
func rowText(requests []proto.Message) string {
	var sentences, limits []string
	ofEach, acts := map[rules.Verb]bool{}, false // of each verb, whether each lock needs it
	for _, request := range requests {
		row := gate.Of(request)
		if row.Needs != nil {
			verb, names := row.Needs(request)
			ofEach[verb] = ofEach[verb] || len(names) > 0
		}
		acts = acts || row.Acts != nil && row.Acts(request)
		limits = append(limits, strings.Fields(strings.Trim(fmt.Sprint(row.Counts), "{}"))...)
	}
	for _, verb := range slices.Sorted(maps.Keys(ofEach)) {
		switch {
		case verb == "" && len(ofEach) > 1: // the others are more
		case verb == "":
			sentences = append(sentences, "It needs any permission.")
		case verb == rules.Operate:
			sentences = append(sentences, "It needs the verb operate.")
		case ofEach[verb]:
			sentences = append(sentences,
				"It needs the verb "+string(verb)+" for each lock that it names.")
		default:
			sentences = append(sentences,
				"It needs the verb "+string(verb)+" for at least one name.")
		}
	}
	if acts {
		sentences = append(sentences, "It is an operator's act, which the audit log records.")
	}
	if slices.Sort(limits); len(limits) > 0 {
		names := strings.Join(slices.Compact(limits), " and in ")
		sentences = append(sentences, "While it is open it counts in the limit "+names+".")
	}
	return strings.Join(sentences, " ")
}

// object is a JSON object of the description.
type object = map[string]any

// describe makes the OpenAPI description of the table of routes.
func describe(t *testing.T) object {
	d := description{schemas: object{}}
	failed := object{"description": "what went wrong, and what took effect", "content": object{
		"application/json": object{"schema": d.schema(reflect.TypeFor[errorBody]())}}}
	paths := object{}
	for _, r := range new(handler).routes() {
		needs := rowText(made(t, r))
		// it is the only one that answers, too, when its request is refused
		if r.path == "/v1/status" {
			needs += " Without that the field cluster is absent."
		}
		operation := object{"summary": r.summary, "description": needs,
			"operationId": operationID(r), "responses": d.responses(r, failed)}
		if parameters := d.parameters(r); len(parameters) > 0 {
			operation["parameters"] = parameters
		}
		if r.method == http.MethodPost {
			operation["requestBody"] = object{
				"content": object{"application/json": object{"schema": d.schema(r.request)}}}
		}
		path, _ := paths[r.path].(object)
		if path == nil {
			path = object{}
			paths[r.path] = path
		}
		// OpenAPI has no place for other methods than HTTP's own
		if r.method == "LOCK" || r.method == "UNLOCK" {
			text, _ := path["description"].(string)
			path["description"], path["parameters"] = text+r.method+": "+r.summary+" "+needs+" ",
				d.parameters(r)
			continue
		}
		path[strings.ToLower(r.method)] = operation
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "zamok", "version": "v1",
			"description": "Locks over HTTP. Numbers of 64 bits are strings, durations are texts " +
				"such as \"30s\". Any node answers; one that does not lead relays the request to " +
				"the leader."},
		"paths":      paths,
		"components": object{"schemas": d.schemas},
	}
}

var notWords = regexp.MustCompile(`[^a-z]+`)

func operationID(r route) string {
	return strings.Trim(strings.ToLower(r.method)+
		notWords.ReplaceAllString(strings.TrimPrefix(r.path, "/v1"), "_"), "_")
}

// description collects the schemas of the types that have names.
type description struct{ schemas object }

func (d *description) responses(r route, failed object) object {
	answer := object{"description": "done"}
	switch {
	case r.events != nil: // OpenAPI has no form for them
		all := object{}
		for name, data := range r.events {
			all[name] = d.schema(reflect.TypeOf(data))
		}
		answer["content"] = object{
			"text/event-stream": object{
				"schema": object{"type": "string",
					"description": "Server-Sent Events. x-events has the schema of the " +
						"data of each"}, "x-events": all}}
	case r.stream:
		answer["content"] = object{"application/octet-stream": object{}}
	case r.response != nil:
		answer["content"] = object{"application/json": object{"schema": d.schema(r.response)}}
	}
	all := object{"200": answer, "default": failed}
	if r.path == "/v1/acquire" {
		all["202"] = object{"description": "it still waits: repeat the request",
			"content": answer["content"]}
	}
	return all
}

// parameters are the fields of a request that are not in its body.
func (d *description) parameters(r route) []object {
	var list []object
	for _, f := range reflect.VisibleFields(r.request) {
		if f.Anonymous {
			continue
		}
		name, in := fieldName(f), ""
		switch {
		case strings.Contains(r.path, "{"+name+"}"):
			in = "path"
		case name == "secret":
			name, in = secretHeader, "header"
		case r.method != http.MethodPost:
			in = "query"
		default:
			continue
		}
		list = append(list, object{"name": name, "in": in,
			"required":    in == "path" || in == "query" && !isOptional(f),
			"description": f.Tag.Get("doc"), "schema": d.schema(f.Type)})
	}
	if r.path == "/v1/acquire" {
		list = append(list, object{"name": keyHeader, "in": "header",
			"schema": object{"type": "string"},
			"description": "at least 128 random bits: a repetition with the same key and body " +
				"has the same lock. The key is the right to the lock"})
	}
	list = append(list, object{"name": "Zamok-Cluster", "in": "header",
		"schema": object{"type": "string"},
		"description": "the id of the cluster that the request is for, as every answer has it in " +
			"this header: a node of another one refuses the request"})
	if r.path == "/v1/watch" {
		list = append(list, object{"name": lastEventHeader, "in": "header",
			"schema": d.schema(reflect.TypeFor[view.Number]())})
	}
	return list
}

func isOptional(f reflect.StructField) bool {
	return strings.Contains(f.Tag.Get("json"), ",omitempty")
}

var formats = map[reflect.Type]object{
	reflect.TypeFor[view.Number](): {"type": "string", "pattern": "^[0-9]+$"},
	reflect.TypeFor[view.Duration](): {"type": "string",
		"pattern":  `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`,
		"examples": []string{"30s", "1h30m"}},
	reflect.TypeFor[patience](): {"type": "string",
		"pattern":  `^(forever|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`,
		"examples": []string{"30s", "forever"}},
	reflect.TypeFor[secret]():    {"type": "string", "pattern": "^[0-9a-f]{32}$"},
	reflect.TypeFor[view.Mode](): {"enum": []string{"exclusive", "shared", "permits"}},
}

// schema describes a type.
func (d *description) schema(t reflect.Type) object {
	if format := formats[t]; format != nil {
		return format
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.schema(t.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Uint32:
		return object{"type": "integer", "minimum": 0}
	case reflect.Struct:
		return d.structure(t)
	}
	panic("web: " + t.String() + " has no form in JSON")
}

func (d *description) structure(t reflect.Type) object {
	name := strings.ToLower(t.Name()[:1]) + t.Name()[1:] // of this package, or of package view
	reference := object{"$ref": "#/components/schemas/" + name}
	if d.schemas[name] != nil {
		return reference
	}
	properties, required := object{}, []string{}
	whole := object{"type": "object", "properties": properties}
	d.schemas[name] = whole
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue
		}
		schema := d.schema(f.Type)
		if text := f.Tag.Get("doc"); text != "" {
			with := object{"description": text}
			for key, value := range schema {
				with[key] = value
			}
			schema = with
		}
		properties[fieldName(f)] = schema
		if !isOptional(f) {
			required = append(required, fieldName(f))
		}
	}
	if slices.Sort(required); len(required) > 0 {
		whole["required"] = required
	}
	return reference
}
