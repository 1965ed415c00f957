// Package account shows how a database rejects a process that lost its lock without noticing:
// SQLite, an account with a column for the highest token seen, and withdrawals under a lock. It has
// tests only.
package account
