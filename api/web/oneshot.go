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
	"time"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

const (
	// keyHeader names an acquisition that may be sent again.
	keyHeader = "Idempotency-Key"
	// keyBits is how many random bits a key has at least: the secret of the session derives from it.
	keyBits = 128
	// keyBytesMax bounds a key.
	keyBytesMax = 256
	// keyCharsMin is how many different characters a key has at least; one of 128 random bits has fewer once in ten
	// million.
	keyCharsMin = 8
	// onceTries is how often an acquisition begins anew because the session that its key names had ended, or its wait.
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
		return wire.Invalid(keyHeader, "has more than %d characters, or others than letters, digits and +/=_.~-"+advice, keyBytesMax)
	case uuidKey.MatchString(key):
		return wire.Invalid(keyHeader, "is a UUID, which has 122 random bits at most; %d are needed, since the key is the right to the lock"+advice, keyBits)
	case bits < keyBits || len(slices.Compact(chars)) < keyCharsMin:
		return wire.Invalid(keyHeader, "has fewer than %d random bits, and the key is the right to the lock"+advice, keyBits)
	}
	return nil
}

// keySecret is the secret of the session of a key, on every node.
func keySecret(key string) secret {
	sum := sha256.Sum256([]byte("zamok Idempotency-Key\x00" + key))
	return sum[:secretBytes]
}

// digest identifies what a request asks for. It is the metadata of the session that the request opens, so that every
// node can compare.
func (r acquireRequest) digest() string {
	r.Poll = 0 // how long one answer may take changes nothing
	text, err := json.Marshal(r)
	if err != nil { // nothing here has a form that JSON can't have
		panic(err)
	}
	sum := sha256.Sum256(text)
	return "request " + hex.EncodeToString(sum[:])
}

// once is an acquisition with a session of its own.
type once struct {
	*handler
	key     string // "": it is not repeated
	request *acquireRequest
	acquire *zamokpb.Acquire
	secret  secret
	digest  string
}

// acquireOnce acquires with a session of its own.
func (h *handler) acquireOnce(w http.ResponseWriter, r *http.Request, request *acquireRequest) error {
	if request.Secret != nil || request.Ticket != 0 || request.AckedThrough != 0 {
		return wire.Invalid("session", "is missing beside a secret, a ticket or acked_through")
	}
	o := &once{handler: h, request: request, secret: newSecret()}
	var err error
	if o.acquire, err = request.acquire(ownTicket); err != nil {
		return err
	}
	switch keys := r.Header.Values(keyHeader); {
	case len(keys) > 1:
		return wire.Invalid(keyHeader, "is given more than once")
	case len(keys) == 1: // an empty one is no missing one: the program that sends it relies on it
		if err := checkKey(keys[0]); err != nil {
			return err
		}
		o.key, o.secret, o.digest = keys[0], keySecret(keys[0]), request.digest()
	case request.Poll != 0:
		return wire.Invalid("poll", "is given without a session or an %s, so a repetition would be another acquisition", keyHeader)
	}
	ctx := r.Context()
	for try := 1; ; try++ {
		session, answer, err := o.try(ctx)
		err = inOwnWords(err, len(request.Items) > 0)
		switch {
		case err == nil && ctx.Err() != nil && o.key == "":
			return o.close(ctx, session) // the answer would not arrive
		case err == nil:
			answer.Secret, answer.Ticket = o.secret, 0
			replyHeld(w, answer)
			return nil
		case session == 0 || isCode(err, zamokpb.Code_CODE_NO_SESSION) && !o.mayRetry(try):
			return err
		case o.mayRetry(try) && isCode(err, zamokpb.Code_CODE_NO_SESSION):
			continue // another call with this key has closed it
		case o.mayRetry(try) && endedItself(err):
			if err := o.close(ctx, session); err != nil {
				return err
			}
		case o.key != "" && (ctx.Err() != nil || mayPass(err) || isCode(err, zamokpb.Code_CODE_OVERLOADED)):
			return err // a repetition continues, or another call with this key does
		default:
			fail(w, err)
			_ = http.NewResponseController(w).Flush() // the client need not wait for the end of a session that holds nothing
			_ = o.close(ctx, session)                 // if that fails, its ttl ends it
			return nil
		}
	}
}

// mayRetry reports whether the acquisition may begin anew.
func (o *once) mayRetry(try int) bool { return o.key != "" && try < onceTries }

// endedItself reports whether the ticket had been dropped because its call broke, so that a repetition begins anew.
func endedItself(err error) bool {
	info := infoOf(err)
	return info.Code == zamokpb.Code_CODE_TICKET_ENDED && info.Reason == zamokpb.Reason_REASON_DROPPED
}

// try opens the session, or finds it, and requests the ticket. A session of 0 was not opened, or is another request's.
func (o *once) try(ctx context.Context) (session uint64, answer *held, err error) {
	r := o.request
	opened, err := o.open(ctx, o.secret, settings(r.TTL, r.LockDelay, r.Label, o.digest))
	if err != nil {
		return 0, nil, err
	}
	if o.key != "" && string(opened.Metadata) != o.digest {
		return 0, nil, &failure{status: http.StatusConflict, word: "key_reused", cause: wire.Errorf(zamokpb.Code_CODE_REFUSED,
			"not done: this %s was sent with another request, whose session is alive; take a new key for a new acquisition", keyHeader)}
	}
	waiting, stop := context.WithCancel(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		o.keepAlive(waiting, opened)
	}()
	answer, err = o.handler.request(ctx, &zamokpb.AcquireRequest{
		Session: opened.Session, Secret: o.secret, Acquire: o.acquire, RespondWithin: r.Poll.nanoseconds(),
	})
	stop()
	<-renewed
	return opened.Session, answer, err
}

// keepAlive renews a session while its acquisition waits: the connection shows that the client is there.
func (o *once) keepAlive(ctx context.Context, opened *zamokpb.OpenSessionResponse) {
	tick := time.NewTicker(time.Duration(opened.Ttl) / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// An error needs no answer here: if the session ends, so does the acquisition.
			_, _ = o.zamok.RenewSession(ctx, &zamokpb.RenewSessionRequest{Session: opened.Session, Secret: o.secret})
		case <-ctx.Done():
			return
		}
	}
}

// close closes the session, also if the request has ended.
func (h *handler) closeLater(ctx context.Context, session uint64, s secret) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	_, err := h.closeSession(ctx, &held{Session: number(session), Secret: s})
	if isCode(err, zamokpb.Code_CODE_NO_SESSION) {
		return nil
	}
	return err
}

func (o *once) close(ctx context.Context, session uint64) error {
	return o.closeLater(ctx, session, o.secret)
}
