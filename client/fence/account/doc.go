// Package account shows how a database refuses whoever lost a lock unawares: SQLite, an account with a
// column for the highest token seen, and withdrawals under a lock. It has tests only.
package account
