package fencefile_test

import (
	"context"
	"os"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fencefile"
)

func ExampleLog() {
	_ = func(ctx context.Context, term *tenure.Term) error {
		log, err := fencefile.Open("/var/lib/scheduler/log")
		if err != nil {
			return err
		}
		defer log.Close()
		if err := log.Seal(ctx, term.Fence()); err != nil { // before reading what to build on
			return err
		}
		done := 0
		for _, err := range log.Records(ctx) {
			if err != nil {
				return err
			}
			done++
		}
		return log.Append(ctx, term.Fence(), []byte("another one done"))
	}
}

// Another file is replaced under the lock of the log.
func ExampleLog_Do() {
	_ = func(ctx context.Context, log *fencefile.Log, term *tenure.Term, config []byte) error {
		return log.Do(ctx, term.Fence(), func() error {
			if err := os.WriteFile("/var/lib/scheduler/config.new", config, 0o600); err != nil {
				return err
			}
			return os.Rename("/var/lib/scheduler/config.new", "/var/lib/scheduler/config")
		})
	}
}
