// Package access decides which requests are served: it validates every field and asks whether the caller is
// allowed. All protocols of a node pass their requests through Guard.Admit before anything is proposed or read.
package access
