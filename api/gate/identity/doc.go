// Package identity verifies what clients authenticate with: certificates, and bearer tokens of two
// kinds. Random tokens are created by `zamok token new`, and a file has their hashes. JWTs are
// signed by an issuer whose public keys are in a file.
//
//	keys, err := identity.ParseKeys(text, issuer, audience)
//	tokens, err := identity.ParseTokens(text)
//	who, err := identity.Verifier{Tokens: tokens, Keys: keys}.Bearer(token, time.Now())
//	name, err := identity.CommonName.Of(certificate)
//
// A token that does not verify is refused even if the connection has a certificate, since the
// client wanted to use the token. No error contains a part of a token.
//
// # Files
//
//	identity.go  Verifier; identities, and the names in certificates
//	tokens.go    random tokens and their file
//	jwt.go       JWTs and the keys of their issuer
package identity
