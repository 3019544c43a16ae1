package process

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestOwnProcess(t *testing.T) {
	before, err := Host.CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for end := time.Now().Add(time.Minute); after <= before && time.Now().Before(end); {
		if after, err = Host.CPU(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if after <= before {
		t.Errorf("processor time went from %s to %s", before, after)
	}
	memory, err := Host.Memory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if memory.RSS < 1<<20 || memory.Anonymous <= 0 || memory.Anonymous > memory.RSS {
		t.Errorf("implausible memory of a test: %+v", memory)
	}
	if _, err := Host.CPU(-1); err == nil {
		t.Error("no error for a process that does not exist")
	}
}

// A process is found by its program and its first argument, also as another process sees it.
func TestRunning(t *testing.T) {
	if len(os.Args) < 2 {
		t.Skip("this process has no arguments")
	}
	program := filepath.Base(os.Args[0])
	pids, err := Host.Running(program, os.Args[1])
	if err != nil || !slices.Contains(pids, os.Getpid()) {
		t.Errorf("%v, %v, want %d", pids, err, os.Getpid())
	}
	seen, err := SeenBy(os.Getpid()).Running(program, os.Args[1])
	if err != nil || !slices.Contains(seen, os.Getpid()) {
		t.Errorf("%v, %v, want %d", seen, err, os.Getpid())
	}
	if pids, err := Host.Running(program, "another argument"); len(pids) > 0 || err != nil {
		t.Errorf("%v, %v", pids, err)
	}
}
