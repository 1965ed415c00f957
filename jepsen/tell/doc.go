// Package tell puts what package client tells its callers into the words of a history for package
// check. Whoever records what programs saw, in virtual time or in processes, uses it.
package tell
