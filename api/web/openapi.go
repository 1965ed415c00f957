package web

import (
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// object is a JSON object of the description.
type object = map[string]any

// describe makes the OpenAPI description of a table of routes. Requests and responses are described by their Go types,
// the types that are read and written, so it can't say anything else.
func describe(routes []route) object {
	d := description{schemas: object{}}
	failed := object{"description": "what went wrong, and what took effect", "content": object{
		"application/json": object{"schema": d.schema(reflect.TypeFor[errorBody]())}}}
	paths := object{}
	for _, r := range routes {
		operation := object{"summary": r.summary, "operationId": operationID(r), "responses": d.responses(r, failed)}
		if parameters := d.parameters(r); len(parameters) > 0 {
			operation["parameters"] = parameters
		}
		if r.method == http.MethodPost {
			operation["requestBody"] = object{"content": object{"application/json": object{"schema": d.schema(r.request)}}}
		}
		path, _ := paths[r.path].(object)
		if path == nil {
			path = object{}
			paths[r.path] = path
		}
		if r.method == "LOCK" || r.method == "UNLOCK" { // OpenAPI has no place for other methods than HTTP's own
			text, _ := path["description"].(string)
			path["description"], path["parameters"] = text+r.method+": "+r.summary+" ", d.parameters(r)
			continue
		}
		path[strings.ToLower(r.method)] = operation
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "zamok", "version": "v1", "description": "Locks over HTTP. Numbers of 64 bits are strings, durations are " +
			"texts such as \"30s\". Any node answers; one that does not lead asks the leader."},
		"paths":      paths,
		"components": object{"schemas": d.schemas},
	}
}

var notWords = regexp.MustCompile(`[^a-z]+`)

func operationID(r route) string {
	return strings.Trim(strings.ToLower(r.method)+notWords.ReplaceAllString(strings.TrimPrefix(r.path, "/v1"), "_"), "_")
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
		answer["content"] = object{"text/event-stream": object{"schema": object{"type": "string", "description": "Server-Sent Events. " +
			"x-events has the schema of the data of each"}, "x-events": all}}
	case r.stream:
		answer["content"] = object{"application/octet-stream": object{}}
	case r.response != nil:
		answer["content"] = object{"application/json": object{"schema": d.schema(r.response)}}
	}
	all := object{"200": answer, "default": failed}
	if r.path == "/v1/acquire" {
		all["202"] = object{"description": "it still waits: repeat the request", "content": answer["content"]}
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
		list = append(list, object{"name": name, "in": in, "required": in == "path" || in == "query" && !isOptional(f),
			"description": f.Tag.Get("doc"), "schema": d.schema(f.Type)})
	}
	if r.path == "/v1/acquire" {
		list = append(list, object{"name": keyHeader, "in": "header", "schema": object{"type": "string"}, "description": "at least 128 " +
			"random bits: a repetition with the same key and body has the same lock. The key is the right to the lock"})
	}
	list = append(list, object{"name": "Zamok-Cluster", "in": "header", "schema": object{"type": "string"}, "description": "the id of the " +
		"cluster that is meant, as every answer has it in this header: a node of another one refuses the request"})
	if r.path == "/v1/watch" {
		list = append(list, object{"name": lastEventHeader, "in": "header", "schema": d.schema(reflect.TypeFor[number]())})
	}
	return list
}

func isOptional(f reflect.StructField) bool { return strings.Contains(f.Tag.Get("json"), ",omitempty") }

var formats = map[reflect.Type]object{
	reflect.TypeFor[number]():   {"type": "string", "pattern": "^[0-9]+$"},
	reflect.TypeFor[duration](): {"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, "examples": []string{"30s", "1h30m"}},
	reflect.TypeFor[patience](): {"type": "string", "pattern": `^(forever|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`, "examples": []string{"30s", "forever"}},
	reflect.TypeFor[secret]():   {"type": "string", "pattern": "^[0-9a-f]{32}$"},
	reflect.TypeFor[mode]():     {"enum": []string{"exclusive", "shared", "permits"}},
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
	reference := object{"$ref": "#/components/schemas/" + t.Name()}
	if d.schemas[t.Name()] != nil {
		return reference
	}
	properties, required := object{}, []string{}
	whole := object{"type": "object", "properties": properties}
	d.schemas[t.Name()] = whole
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
