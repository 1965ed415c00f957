// Package tell converts what package client returns to its callers into the terms of a history for package
// check. The recorders of the simulation and of the real processes use it.
package tell
