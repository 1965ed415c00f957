package identity

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// tokenPrefix lets secret scanners find a token that was published by mistake.
	tokenPrefix = "zamok_"
	tokenID     = 5  // bytes of the id, which is not secret
	tokenSecret = 32 // random bytes
	// fileBytesMax bounds a file of tokens or keys.
	fileBytesMax = 16 << 20
)

var digits = base32.StdEncoding.WithPadding(base32.NoPadding)

// Token is a line of a tokens file: ID IDENTITY SHA256 [EXPIRES].
type Token struct {
	ID       string
	Identity string
	hash     [sha256.Size]byte
	Expires  time.Time // zero: never
}

// NewToken generates a token for an identity, and returns its text and its line for the tokens
// file. The text is stored nowhere.
func NewToken(identity string, expires time.Time) (text string, line Token, err error) {
	if err := checkField(identity); err != nil {
		return "", Token{}, err
	}
	var random [tokenID + tokenSecret]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := strings.ToLower(digits.EncodeToString(random[:tokenID]))
	text = tokenPrefix + id + "_" + strings.ToLower(digits.EncodeToString(random[tokenID:]))
	return text, Token{ID: id, Identity: identity, hash: sha256.Sum256([]byte(text)),
		Expires: expires}, nil
}

// checkField is Check for an identity in a file of fields.
func checkField(identity string) error {
	if strings.Contains(identity, " ") {
		return errors.New(
			"the identity contains a space, which separates the fields of a tokens file")
	}
	return Check(identity)
}

// String is the line of the file.
func (t Token) String() string {
	line := t.ID + " " + t.Identity + " " + hex.EncodeToString(t.hash[:])
	if !t.Expires.IsZero() {
		line += " " + t.Expires.UTC().Format(time.RFC3339)
	}
	return line
}

// Tokens are the tokens of a file, by id.
type Tokens map[string]Token

// ParseTokens reads a tokens file. Empty lines and lines that begin with # are ignored.
func ParseTokens(text []byte) (Tokens, error) {
	if len(text) > fileBytesMax {
		return nil, fmt.Errorf("has %d bytes; the maximum is %d", len(text), fileBytesMax)
	}
	all := Tokens{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		t, err := parseToken(strings.Fields(line))
		if err == nil && all[t.ID].ID != "" {
			err = errors.New("the id is used twice")
		}
		if err != nil {
			// without the line: it may be a token, by mistake
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all[t.ID] = t
	}
	return all, lines.Err()
}

func parseToken(fields []string) (t Token, err error) {
	if len(fields) < 3 || len(fields) > 4 {
		return t, errors.New("a line has an id, an identity, a SHA-256 and optionally an expiry: " +
			"create it with zamok token new")
	}
	t.ID, t.Identity = fields[0], fields[1]
	if len(t.ID) != digits.EncodedLen(tokenID) {
		return t, errors.New("the id was not created by zamok token new")
	}
	if err := checkField(t.Identity); err != nil {
		return t, err
	}
	hash, err := hex.DecodeString(fields[2])
	if err != nil || len(hash) != len(t.hash) {
		return t, errors.New("the third field is not a SHA-256")
	}
	copy(t.hash[:], hash)
	if len(fields) == 4 {
		if t.Expires, err = time.Parse(time.RFC3339, fields[3]); err != nil {
			return t, errors.New("the expiry must have the form 2027-01-31T00:00:00Z")
		}
	}
	return t, nil
}

// errToken refuses every token that is not in the file; it does not reveal which part of it is
// wrong.
var errToken = errors.New("the token is not known here")

// verify returns the identity of a token.
func (all Tokens) verify(text string, now time.Time) (string, error) {
	id, _, _ := strings.Cut(strings.TrimPrefix(text, tokenPrefix), "_")
	t, hash := all[id], sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 0 || t.ID == "" {
		return "", errToken
	}
	if !t.Expires.IsZero() && !now.Before(t.Expires) {
		return "", fmt.Errorf("the token %s of %s expired at %s; make another with zamok token new",
			t.ID, t.Identity, t.Expires.UTC().Format(time.RFC3339))
	}
	return t.Identity, nil
}
