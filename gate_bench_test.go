package tenure_test

import (
	"context"
	"testing"

	"github.com/tenure-go/tenure"
)

func BenchmarkGateEnter(b *testing.B) {
	gate := tenure.NewGate(key)
	fence := tenure.Fence{Key: key, Epoch: 7, Lease: 1}
	b.Run("Background", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, leave, err := gate.Enter(context.Background(), fence)
			if err != nil {
				b.Fatal(err)
			}
			leave()
		}
	})
	b.Run("Request", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		b.ReportAllocs()
		for b.Loop() {
			_, leave, err := gate.Enter(ctx, fence)
			if err != nil {
				b.Fatal(err)
			}
			leave()
		}
	})
	b.Run("Parallel", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, leave, err := gate.Enter(ctx, fence)
				if err != nil {
					b.Fatal(err)
				}
				leave()
			}
		})
	})
}

// sealsAll is a memory that is never asked twice.
type sealsAll struct{}

func (sealsAll) Seal(context.Context, tenure.Fence) error { return nil }

// What a memory has sealed costs no more than a gate without one.
func BenchmarkGateWithMemoryEnter(b *testing.B) {
	gate := tenure.NewGateWith(key, sealsAll{})
	fence := tenure.Fence{Key: key, Epoch: 7, Lease: 1}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		_, leave, err := gate.Enter(ctx, fence)
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}
