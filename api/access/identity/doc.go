// Package identity establishes who a client is, by what it shows: a certificate, or a bearer token. There are two kinds of
// tokens: random ones, whose hashes are in a file (`zamok token new`), and JWTs, signed by an issuer whose public keys are
// in a file.
//
//	keys, err := identity.ParseKeys(text, issuer, audience)
//	tokens, err := identity.ParseTokens(text)
//	who, err := identity.Verifier{Tokens: tokens, Keys: keys}.Bearer(token, time.Now())
//
// A token that can't be verified is refused, also if the connection has a certificate: a client that shows a token means to
// be known by it. What is refused is described without any part of the token.
package identity
