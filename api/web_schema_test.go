package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/web"
)

// fields is a JSON object.
type fields = map[string]any

// description is /v1/openapi.json. Every answer of a test is checked against it: it must have all
// that is required, and only what is described.
type description struct {
	paths, schemas fields
	whole          fields
}

var openAPI = sync.OnceValue(func() *description {
	handler := web.New(web.Config{Started: func() bool { return true }})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/v1/openapi.json", nil))
	d := &description{whole: fields{}}
	if err := json.Unmarshal(w.Body.Bytes(), &d.whole); err != nil {
		panic(err)
	}
	d.paths = d.whole["paths"].(fields)
	d.schemas = d.whole["components"].(fields)["schemas"].(fields)
	return d
})

func described(t testing.TB) *description {
	t.Helper()
	return openAPI()
}

// operation finds what describes a request; nil: nothing does.
func (d *description) operation(method, path string) fields {
	for template, item := range d.paths {
		pattern := regexp.MustCompile(
			"^" + regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(template),
				"[^/]+") + "$")
		if pattern.MatchString(path) {
			operation, _ := item.(fields)[strings.ToLower(method)].(fields)
			return operation
		}
	}
	return nil
}

// checkAnswer checks a JSON answer.
func (d *description) checkAnswer(t testing.TB, method, path string, r reply) {
	t.Helper()
	if path == "/v1/openapi.json" || method == "LOCK" || method == "UNLOCK" {
		return // the latter speak as Terraform wants
	}
	schema := any(fields{"$ref": "#/components/schemas/errorBody"}) // of what is in no table
	if operation := d.operation(method, path); operation != nil {
		responses := operation["responses"].(fields)
		response, found := responses[fmt.Sprint(r.code)].(fields)
		if !found {
			require.GreaterOrEqual(t, r.code, 400, "an answer that is not described: %s", r.text)
			response = responses["default"].(fields)
		}
		schema = response["content"].(fields)["application/json"].(fields)["schema"]
	}
	require.NoError(t, d.check("", schema, r.fields), "%s %s: %s", method, path, r.text)
}

// check checks a value against a schema of the kinds that the description has.
func (d *description) check(where string, schema, value any) error {
	s := schema.(fields)
	if reference, ok := s["$ref"].(string); ok {
		return d.check(where, d.schemas[strings.TrimPrefix(reference, "#/components/schemas/")],
			value)
	}
	if list, ok := s["enum"].([]any); ok && !slices.Contains(list, value) {
		return fmt.Errorf("%s is %v, which is none of %v", where, value, list)
	}
	right := true
	switch s["type"] {
	case "string":
		text, ok := value.(string)
		if right = ok; ok && s["pattern"] != nil &&
			!regexp.MustCompile(s["pattern"].(string)).MatchString(text) {
			return fmt.Errorf("%s is %q, which %v does not match", where, text, s["pattern"])
		}
	case "boolean":
		_, right = value.(bool)
	case "integer":
		n, ok := value.(float64)
		right = ok && n >= 0 && n == float64(int64(n))
	case "array":
		list, ok := value.([]any)
		right = ok
		for i, element := range list {
			if err := d.check(fmt.Sprintf("%s[%d]", where, i), s["items"], element); err != nil {
				return err
			}
		}
	case "object":
		object, ok := value.(fields)
		right = ok
		properties := s["properties"].(fields)
		for name, field := range object {
			if properties[name] == nil {
				return fmt.Errorf("%s.%s is not described", where, name)
			}
			if err := d.check(where+"."+name, properties[name], field); err != nil {
				return err
			}
		}
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, found := object[name.(string)]; !found {
				return fmt.Errorf("%s.%s is missing", where, name)
			}
		}
	case nil: // of an enum
	default:
		return fmt.Errorf("%s: the type %v is unknown", where, s["type"])
	}
	if !right {
		return fmt.Errorf("%s is no %v: %v", where, s["type"], value)
	}
	return nil
}

// The description is a document of OpenAPI 3.1: it has what that demands of the objects which it
// uses, and no others.
func TestTheDescriptionIsOpenAPI(t *testing.T) {
	t.Parallel()
	d := described(t)
	keys := func(o fields) []string { return slices.Sorted(maps.Keys(o)) }
	assert.Equal(t, "3.1.0", d.whole["openapi"])
	assert.Equal(t, []string{"components", "info", "openapi", "paths"}, keys(d.whole))
	assert.Subset(t, keys(d.whole["info"].(fields)), []string{"title", "version"})
	ids := map[any]bool{}
	for path, item := range d.paths {
		require.True(t, strings.HasPrefix(path, "/v1/"), path)
		var inPath []string
		for _, m := range regexp.MustCompile(`\{([a-z]+)\}`).FindAllStringSubmatch(path, -1) {
			inPath = append(inPath, m[1])
		}
		for method, o := range item.(fields) {
			at := method + " " + path
			// of methods that OpenAPI has no place for
			if method == "description" || method == "parameters" {
				continue
			}
			require.Contains(t, methods, method, path)
			operation := o.(fields)
			assert.Subset(t, []string{"summary", "description", "operationId", "parameters",
				"requestBody", "responses"}, keys(operation), at)
			assert.NotEmpty(t, operation["summary"], at)
			assert.NotEmpty(t, operation["description"], at)
			assert.False(t, ids[operation["operationId"]], "%s: two operations have the id %v", at,
				operation["operationId"])
			ids[operation["operationId"]] = true
			parameters, _ := operation["parameters"].([]any)
			var found []string
			seen := map[string]bool{}
			for _, one := range parameters {
				p := one.(fields)
				assert.Subset(t, []string{"name", "in", "required", "description", "schema"},
					keys(p), at)
				require.Contains(t, []any{"query", "header", "path"}, p["in"], at)
				name := fmt.Sprint(p["in"], " ", p["name"])
				assert.False(t, seen[name], "%s has %s twice", at, name)
				seen[name] = true
				if p["in"] == "path" {
					assert.Equal(t, true, p["required"], at)
					found = append(found, p["name"].(string))
				}
				d.sound(t, at, p["schema"])
			}
			assert.ElementsMatch(t, inPath, found, at)
			if body, ok := operation["requestBody"].(fields); ok {
				assert.Equal(t, "post", method, at)
				d.sound(t, at, body["content"].(fields)["application/json"].(fields)["schema"])
			}
			responses := operation["responses"].(fields)
			require.Contains(t, responses, "default", at)
			for code, r := range responses {
				require.Regexp(t, `^([1-5][0-9][0-9]|default)$`, code, at)
				response := r.(fields)
				assert.NotEmpty(t, response["description"], at)
				content, _ := response["content"].(fields)
				for kind, media := range content {
					if schema := media.(fields)["schema"]; schema != nil {
						d.sound(t, at+" "+kind, schema)
					}
					events, _ := media.(fields)["x-events"].(fields)
					for name, schema := range events {
						d.sound(t, at+" "+name, schema)
					}
				}
			}
		}
	}
	for name, schema := range d.schemas {
		assert.Regexp(t, `^[a-zA-Z0-9._-]+$`, name)
		d.sound(t, name, schema)
	}
}

// methods are those that OpenAPI has a place for.
var methods = []string{"get", "post", "delete", "put", "patch", "head", "options", "trace"}

// sound checks that a schema says something, and that what it refers to exists.
func (d *description) sound(t *testing.T, at string, schema any) {
	t.Helper()
	s, ok := schema.(fields)
	require.True(t, ok, at)
	if reference, ok := s["$ref"].(string); ok {
		require.NotNil(t, d.schemas[strings.TrimPrefix(reference, "#/components/schemas/")],
			"%s: %s", at, reference)
		return
	}
	if pattern, ok := s["pattern"].(string); ok {
		_, err := regexp.Compile(pattern)
		require.NoError(t, err, at)
	}
	switch s["type"] {
	case "object":
		properties := s["properties"].(fields)
		for name, property := range properties {
			require.NotEmpty(t, name, at)
			d.sound(t, at+"."+name, property)
		}
		required, _ := s["required"].([]any)
		for _, name := range required {
			require.Contains(t, properties, name, at)
		}
	case "array":
		d.sound(t, at+"[]", s["items"])
	case nil:
		require.NotEmpty(t, s["enum"], at)
	default:
		require.Contains(t, []any{"string", "integer", "boolean"}, s["type"], at)
	}
}

// Every route of the table answers at a follower and at the leader, as the description says. What
// is described and not requested here fails the test, so that no route is forgotten.
func TestEveryRouteAnswers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	left := map[string]bool{}
	for path, item := range described(t).paths {
		for method := range item.(fields) {
			if slices.Contains(methods, method) {
				left[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	for _, n := range []*Node{c.follower(), c.leader()} {
		do := func(method, route, at, body string, want int, headers ...string) fields {
			t.Helper()
			r := send(ctx, t, n, method, at, body, headers...)
			require.Equal(t, want, r.code, "%s %s: %s", method, at, r.text)
			assert.Equal(t, "no-store", r.header.Get("Cache-Control"))
			delete(left, method+" "+route)
			return r.fields
		}
		get := func(route, query string, want int) fields {
			t.Helper()
			return do("GET", route, route+query, "", want)
		}
		post := func(route, body string, want int) fields {
			t.Helper()
			return do("POST", route, route, body, want)
		}
		held := post("/v1/acquire", `{"name":"a/1","mode":"exclusive"}`, 200)
		whole, _ := json.Marshal(held)
		post("/v1/renew", string(whole), 200)
		post("/v1/downgrade", string(whole), 200)
		get("/v1/check", "?name=a/1&token="+held["token"].(string)+"&session="+
			held["session"].(string), 200)
		get("/v1/lock", "?name=a/1", 200)
		assert.Len(t, get("/v1/locks", "?prefix=a/&limit=1", 200)["locks"], 1)
		assert.NotEmpty(t, get("/v1/sessions", "", 200)["sessions"])
		get("/v1/now", "", 200)
		assert.Len(t, get("/v1/members", "", 200)["members"], 3)
		assert.Equal(t, n.cfg.ID, get("/v1/status", "", 200)["node"])
		post("/v1/release", string(whole), 200)
		get("/v1/lock", "?name=free", 200)

		opened := post("/v1/sessions", `{"ttl":"20s","label":"of a test"}`, 200)
		at := "/v1/sessions/" + opened["session"].(string)
		secret := opened["secret"].(string)
		do("POST", "/v1/sessions/{session}/renew", at+"/renew", "", 200, "Zamok-Secret", secret)
		do("DELETE", "/v1/sessions/{session}", at, "", 403, "Zamok-Secret", strings.Repeat("0", 32))
		do("DELETE", "/v1/sessions/{session}", at, "", 200, "Zamok-Secret", secret)

		held = post("/v1/acquire", `{"name":"a/2"}`, 200)
		assert.Len(t, post("/v1/admin/release",
			`{"name":"a/2","token":"`+held["token"].(string)+`","reason":"a test"}`, 200)["ended"],
			1)
		post("/v1/admin/expire",
			`{"session":"`+held["session"].(string)+`","reason":"a test"}`, 200)
		post("/v1/admin/transfer", `{"to":"nobody"}`, 400)
		post("/v1/admin/join", `{"id":"","peer":"127.0.0.1:1"}`, 400)
		post("/v1/admin/remove", `{"id":"nobody"}`, 400)
		backup := send(ctx, t, n, "GET", "/v1/admin/backup", "")
		require.Equal(t, http.StatusOK, backup.code, backup.text)
		assert.Equal(t, "application/octet-stream", backup.header.Get("Content-Type"))
		assert.NotEmpty(t, backup.text)
		delete(left, "GET /v1/admin/backup")

		watch := listen(ctx, t, n, "/v1/watch?prefix=a/")
		assert.NotEmpty(t, watch.next("index").id)
		watch.cut()
		hold := listen(ctx, t, n, "/v1/hold?name=a/3")
		hold.next("granted")
		hold.cut()
		delete(left, "GET /v1/watch")
		delete(left, "GET /v1/hold")
		assert.Equal(t, 200, send(ctx, t, n, "GET", "/v1/openapi.json", "").code)
		delete(left, "GET /v1/openapi.json")
	}
	assert.Equal(t, 200, send(ctx, t, c.follower(), "POST", "/v1/admin/transfer", `{}`).code)
	assert.Empty(t, left, "what no request of this test was for")
}
