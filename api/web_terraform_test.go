package api

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The bodies are those that the HTTP backend sends: the description of the lock as JSON in one
// line, by LOCK and by UNLOCK. A force-unlock sends an empty body (OpenTofu, and Terraform with
// issue 28421), or a description that has nothing but the ID.
const (
	terraformInfo = `{"ID":%q,"Operation":"OperationTypeApply","Info":"","Who":%q,"Version":"1.9.8","Created":"2026-11-26T10:00:00.123456789Z","Path":""}`
	terraformID   = `{"ID":%q,"Operation":"","Info":"","Who":"","Version":"","Created":"0001-01-01T00:00:00Z","Path":""}`
	anneID        = "0e4d1b0c-5a0f-4f0e-8d8e-6a4d7c1f2b3a"
	bertID        = "7c1f2b3a-8d8e-4f0e-5a0f-0e4d1b0c6a4d"
)

func TestTerraformLocksItsState(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	anne, bert := fmt.Sprintf(terraformInfo, anneID, "anne@laptop"),
		fmt.Sprintf(terraformInfo, bertID, "ci@runner")
	do := func(method, query, body string) reply {
		n := c.follower()
		return send(ctx, t, n, method, "/v1/terraform/lock?name=states/prod"+query, body,
			"Content-Type", "application/json", "Content-MD5", "x")
	}
	require.Equal(t, 200, do("LOCK", "", anne).code)
	require.Equal(t, 200, do("LOCK", "", anne).code, "a repetition after a lost answer")
	refused := do("LOCK", "", bert)
	require.Equal(t, 423, refused.code, refused.text)
	assert.JSONEq(t, anne, refused.text, "the description of the lock that is held")
	refused = do("UNLOCK", "", bert)
	require.Equal(t, 423, refused.code, "another's lock")
	assert.JSONEq(t, anne, refused.text)
	require.Equal(t, 200, do("UNLOCK", "", anne).code)
	gone := do("UNLOCK", "", anne)
	assert.Equal(t, 410, gone.code, "unlocked already, or lost: the state may have changed")
	assert.Contains(t, gone.fields["message"], "not held")

	require.Equal(t, 200, do("LOCK", "", bert).code)
	require.Equal(t, 200, do("UNLOCK", "", fmt.Sprintf(terraformID, bertID)).code,
		"Terraform's force-unlock")
	require.Equal(t, 410, do("LOCK", "", anne).code, "a late retransmission locks nothing")
	require.Equal(t, 200, do("LOCK", "",
		fmt.Sprintf(terraformID, "9d3f7a52-6f3e-4b7c-9a0e-2d1c5b8e4f60")).code)
	require.Equal(t, 200, do("UNLOCK", "", "").code, "OpenTofu's force-unlock")

	for body, want := range map[string]string{"": "empty", "{}": "has an ID", "[": "has an ID"} {
		wrong := do("LOCK", "", body)
		assert.Equal(t, 400, wrong.code)
		assert.Contains(t, wrong.fields["message"], want)
	}
	assert.Equal(t, 400, do("LOCK", "&ttl=999h", anne).code)
	assert.Equal(t, 413, do("LOCK", "", strings.Repeat(" ", 65<<10)+anne).code)
	assert.Equal(t, 400, do("LOCK", "", strings.Replace(anne, "anne", "\xff", 1)).code, "not UTF-8")
}

// What another kind of client holds is not Terraform's to unlock.
func TestTerraformMeetsAnotherHolder(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	const path = "/v1/terraform/lock?name=states/prod"
	other := send(ctx, t, n, "POST", "/v1/acquire",
		`{"name":"states/prod","label":"maintenance","meta":"until noon"}`)
	require.Equal(t, 200, other.code)
	refused := send(ctx, t, n, "LOCK", path, fmt.Sprintf(terraformInfo, anneID, "anne@laptop"))
	require.Equal(t, 423, refused.code)
	assert.Equal(t, "maintenance", refused.fields["Who"])
	assert.Equal(t, "until noon", refused.fields["Info"])
	assert.Contains(t, refused.fields["ID"], other.fields["session"])
	assert.Equal(t, 423, send(ctx, t, n, "UNLOCK", path, "").code)
	check := "/v1/check?name=states/prod&token=" + other.fields["token"].(string)
	assert.Equal(t, true, send(ctx, t, n, "GET", check, "").fields["held"])
}

// A LOCK may wait, in the queue of the lock.
func TestTerraformWaits(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	const path = "/v1/terraform/lock?name=states/prod"
	anne := fmt.Sprintf(terraformInfo, anneID, "anne@laptop")
	require.Equal(t, 200, send(ctx, t, n, "LOCK", path, anne).code)
	waited := make(chan reply)
	go func() {
		waited <- send(ctx, t, n, "LOCK", path+"&wait=1m",
			fmt.Sprintf(terraformInfo, bertID, "ci@runner"))
	}()
	require.Eventually(t, func() bool {
		return send(ctx, t, n, "GET", "/v1/lock?name=states/prod", "").fields["waiters"] == 1.0
	}, patience, patience/1000)
	require.Equal(t, 200, send(ctx, t, n, "UNLOCK", path, anne).code)
	assert.Equal(t, 200, (<-waited).code)
}

// TestTerraformAuthenticatesByPassword: Terraform sends Basic and nothing else, so its password is
// the token, whatever the user name. Only its routes accept that.
func TestTerraformAuthenticatesByPassword(t *testing.T) {
	t.Parallel()
	n, _, as := startWithRules(t)
	basic := func(who string) string {
		token := strings.TrimPrefix(shown(as(who)), "Bearer ")
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("terraform:"+token))
	}
	do := func(method, name, authorization string) reply {
		path := "/v1/terraform/lock?name=" + name
		return send(soon(t), t, n, method, path, fmt.Sprintf(terraformInfo, anneID, "anne@laptop"),
			"Authorization", authorization)
	}
	require.Equal(t, 200, do("LOCK", "p/1", basic("alice")).code)
	shownTo := send(soon(t), t, n, "GET", "/v1/lock?name=p/1", "", "Authorization",
		shown(as("bob")))
	assert.Contains(t, shownTo.text, `"identity":"alice"`)
	assert.Equal(t, 423, do("UNLOCK", "p/1", basic("bob")).code,
		"the session is alice's, and bob may read the lock")
	assert.Equal(t, 403, do("LOCK", "q", basic("alice")).code, "the rules allow her only p/*")
	assert.Equal(t, 200, do("UNLOCK", "p/1", basic("alice")).code)
	for _, wrong := range []string{
		basic("alice") + "AAAA", "Basic x", "Basic",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("alice:")), "Bearer x",
	} {
		refused := do("LOCK", "p/1", wrong)
		assert.Equal(t, 401, refused.code, wrong)
		assert.Equal(t, []string{`Basic realm="zamok"`, "Bearer"},
			refused.header.Values("WWW-Authenticate"))
	}
	assert.Equal(t, 403, send(soon(t), t, n, "LOCK", "/v1/terraform/lock?name=p/1",
		`{"ID":"1"}`).code, "anonymous")
	elsewhere := send(soon(t), t, n, "GET", "/v1/now", "", "Authorization", basic("alice"))
	assert.Equal(t, 401, elsewhere.code)
	assert.Equal(t, []string{"Bearer"}, elsewhere.header.Values("WWW-Authenticate"))
}
