package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/admin"
)

// Waiters of one client cost little beyond their goroutines, whether they were sent or not, and go
// with their contexts.
func TestAWaiterIsSmall(t *testing.T) {
	const waiters = 10_000
	require.NoError(t, noneLeft()) // what other tests leave would count
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, silentServer{})
	cl, err := client.New(client.Config{Endpoints: []string{serve(t, server)},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	heap := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	before := heap()
	var all sync.WaitGroup
	var begun atomic.Int32
	for range waiters {
		all.Go(func() {
			begun.Add(1)
			_, err := cl.Lock(ctx, "account/200")
			if ctx.Err() == nil {
				t.Error("ended while it was measured:", err)
			}
		})
	}
	require.Eventually(t, func() bool { return begun.Load() == waiters }, testTimeout,
		time.Millisecond)
	var each, last int64
	require.Eventually(t, func() bool { // until all have sent their request
		last, each = each, (int64(heap().HeapAlloc)-int64(before.HeapAlloc))/waiters
		return each > 200 && each-last < 10
	}, testTimeout, 10*time.Millisecond)
	t.Logf("%d bytes a waiter, some of them its goroutine's", each)
	require.Less(t, each, int64(1350))
	cancel()
	all.Wait()
	_ = cl.Close()
	server.Stop()
	require.NoError(t, noneLeft())
}

// silentServer serves streams and answers nothing.
type silentServer struct {
	zamokpb.UnimplementedZamokServer
}

func (silentServer) Session(
	stream grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	<-stream.Context().Done()
	return nil
}

// More waiters than the window has room for are granted one after the other, and each exactly once.
func TestMoreWaitersThanTheWindow(t *testing.T) {
	const waiters = 2500
	c := startCluster(t, 1)
	a, b := c.client(nil), c.client(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testTimeout)
	defer cancel()
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	var all sync.WaitGroup
	var inside, passed atomic.Int32
	var highest atomic.Uint64
	for range waiters {
		all.Go(func() {
			l, err := b.Lock(ctx, "x")
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 || uint64(l.Token()) <= highest.Swap(uint64(l.Token())) {
				t.Error("not alone, or out of order")
			}
			inside.Add(-1)
			passed.Add(1)
			if err := l.Unlock(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	c.waiting(a, "x", waiters)
	require.NoError(t, held.Unlock(ctx))
	all.Wait()
	require.EqualValues(t, waiters, passed.Load())
}

func BenchmarkLockUnlock(b *testing.B) {
	for _, nodes := range []int{1, 3} {
		c := startCluster(b, nodes) // once: its first election takes longer than the rest
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("nodes=%d/callers=%d", nodes, callers), func(b *testing.B) {
				cl, ctx := c.client(nil), context.Background()
				_, err := admin.New(cl).Now(ctx)
				require.NoError(b, err)
				b.ReportAllocs()
				b.ResetTimer()
				var all sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(b.N))
				for i := range callers {
					all.Go(func() {
						name := fmt.Sprintf("x%d", i)
						for left.Add(-1) >= 0 {
							l, err := cl.Lock(ctx, name)
							if err == nil {
								err = l.Unlock(ctx)
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
			})
		}
	}
}

// BenchmarkHandoff is the time from an Unlock of one client to the grant of the next.
func BenchmarkHandoff(b *testing.B) {
	c := startCluster(b, 3)
	first, second, ctx := c.client(nil), c.client(nil), context.Background()
	b.ReportAllocs()
	held, err := first.Lock(ctx, "x")
	require.NoError(b, err)
	for b.Loop() {
		b.StopTimer()
		got := make(chan *client.Lock)
		go func() {
			l, err := second.Lock(ctx, "x")
			if err != nil {
				b.Error(err)
			}
			got <- l
		}()
		c.waiting(first, "x", 1)
		b.StartTimer()
		go func(l *client.Lock) { _ = l.Unlock(ctx) }(held)
		held = <-got
		first, second = second, first
	}
}
