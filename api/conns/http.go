package conns

import (
	"io"
	"net/http"
)

// Handler counts the bytes of HTTP requests: a body until all of it was read, and each write of an
// answer.
func (b *Budget) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := Of(r.Context())
		id := conn.requests.Add(1) // with HTTP/2 a connection has several
		call := conn.begin(id, nil)
		defer conn.end(id)
		r.Body = &countedBody{ReadCloser: r.Body, call: call}
		h.ServeHTTP(countedWriter{w, call}, r)
	})
}

type countedBody struct {
	io.ReadCloser
	call  *call
	bytes int // read
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes += n
	if b.call.receive(n, 0); err != nil {
		b.call.received(b.bytes)
	}
	return n, err
}

type countedWriter struct {
	http.ResponseWriter
	call *call
}

// Unwrap is for http.ResponseController.
func (w countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w countedWriter) Write(p []byte) (int, error) {
	w.call.send(len(p))
	defer w.call.sent(len(p))
	return w.ResponseWriter.Write(p)
}
