package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"zamok/api/view"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

const (
	// keyHeader names an acquisition that may be sent again.
	keyHeader = "Idempotency-Key"
	// keyBits is how many random bits a key has at least: the secret of the session derives from
	// it.
	keyBits = 128
	// keyBytesMax bounds a key.
	keyBytesMax = 256
	// keyCharsMin is how many different characters a key has at least; one of 128 random bits has
	// fewer once in ten million.
	keyCharsMin = 8
	// onceTries is how often an acquisition with a session of its own is begun while that is being
	// closed.
	onceTries = 3
)

var (
	hexKey    = regexp.MustCompile(`^[0-9a-fA-F-]*$`)
	base64Key = regexp.MustCompile(`^[0-9a-zA-Z+/=_.~-]*$`)
	uuidKey   = regexp.MustCompile(`^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$`)
)

// checkKey refuses keys that can be guessed, as far as their form shows.
func checkKey(key string) error {
	const advice = `; a good one is made by "openssl rand -hex 16"`
	digits := strings.ReplaceAll(key, "-", "")
	chars := []byte(digits)
	slices.Sort(chars)
	bits := 6 * len(strings.TrimRight(key, "="))
	if hexKey.MatchString(key) {
		bits = 4 * len(digits)
	}
	switch {
	case len(key) > keyBytesMax || !base64Key.MatchString(key):
		return invalid(keyHeader,
			"has more than %d characters, or others than letters, digits and +/=_.~-"+advice,
			keyBytesMax)
	case uuidKey.MatchString(key):
		return invalid(keyHeader,
			"is a UUID, which has 122 random bits at most; %d are needed, since the key is the "+
				"right to the lock"+advice, keyBits)
	case bits < keyBits || len(slices.Compact(chars)) < keyCharsMin:
		return invalid(keyHeader,
			"has fewer than %d random bits, and the key is the right to the lock"+advice, keyBits)
	}
	return nil
}

// keySecret is the secret of the session of a key, on every node.
func keySecret(key string) secret {
	sum := sha256.Sum256([]byte("zamok Idempotency-Key\x00" + key))
	return sum[:secretBytes]
}

// digest identifies what a request acquires. It is the metadata of the session that the request
// opens, so that every node can compare.
func (r acquireRequest) digest() string {
	r.Poll = 0 // how long one answer may take changes nothing
	text, err := json.Marshal(r)
	if err != nil { // all of it can be JSON
		panic(err)
	}
	sum := sha256.Sum256(text)
	return "request " + hex.EncodeToString(sum[:])
}

// acquireOnce acquires with a session of its own.
func (h *handler) acquireOnce(w http.ResponseWriter, r *http.Request,
	request *acquireRequest) error {
	if request.Secret != nil || request.Ticket != 0 || request.AckedThrough != 0 {
		return invalid("session", "is missing beside a secret, a ticket or acked_through")
	}
	acquire, err := request.acquire(ownTicket)
	if err != nil {
		return err
	}
	key, s, digest := "", newSecret(), ""
	switch keys := r.Header.Values(keyHeader); {
	case len(keys) > 1:
		return invalid(keyHeader, "is given more than once")
	case len(keys) == 1: // an empty one is no missing one: the program that sends it relies on it
		key = keys[0]
		if err := checkKey(key); err != nil {
			return err
		}
		s, digest = keySecret(key), request.digest()
	case request.Poll != 0:
		return invalid("poll",
			"is given without a session or an %s, so a repetition would be another acquisition",
			keyHeader)
	}
	ctx := r.Context()
	answer, err := h.requestOnce(ctx, &zamokpb.AcquireRequest{
		Secret: s, Acquire: acquire, Poll: request.Poll.Nanoseconds(),
		Settings: settings(request.TTL, request.LockDelay, request.Label, digest),
	})
	switch {
	case isCode(err, zamokpb.Code_CODE_REFUSED):
		return &failure{status: http.StatusConflict, word: "key_reused",
			cause: wire.Errorf(zamokpb.Code_CODE_REFUSED,
				"not done: this %s was sent with another request, whose session is alive; "+
					"take a new "+
					"key for a new acquisition", keyHeader)}
	case err != nil:
		return err
	case ctx.Err() != nil && key == "":
		// the connection broke before this answer
		return h.closeLater(ctx, uint64(answer.Session), s)
	}
	answer.Secret, answer.Ticket = s, 0
	replyHeld(w, answer)
	return nil
}

// requestOnce requests a ticket with a session of its own. If that session is just being closed,
// because an earlier call with its secret broke, it is done again.
func (h *handler) requestOnce(ctx context.Context,
	request *zamokpb.AcquireRequest) (answer *held, err error) {
	for range onceTries {
		if answer, err = h.request(ctx, request); !isCode(err, zamokpb.Code_CODE_NO_SESSION) {
			break
		}
	}
	return answer, err
}

// closeLater closes a session, also if the request has ended.
func (h *handler) closeLater(ctx context.Context, session uint64, s secret) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	_, err := h.closeSession(ctx, &held{Session: view.Number(session), Secret: s})
	return err
}
