package crio

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/internal/poll"
)

// storeKey is where the child of TestInotifyLimit finds the root of its store.
const storeKey = "TEST_INOTIFY_STORE"

// No process may have an inotify instance: the child runs in a user namespace of its own, whose
// limit concerns nobody else. The log names the way out, and an image that comes is found.
func TestInotifyLimit(t *testing.T) {
	if root := os.Getenv(storeKey); root != "" {
		withoutInotify(t, root)
		return
	}
	s := newStore(t)
	program, err := os.Executable()
	must(t, err)
	child := exec.CommandContext(t.Context(), program, "-test.run=^TestInotifyLimit$", "-test.v")
	child.Env = append(os.Environ(), storeKey+"="+s.root)
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	var output bytes.Buffer
	child.Stdout, child.Stderr = &output, &output
	if err := child.Start(); err != nil {
		t.Skipf("no user namespace can be made here, so no limit can be set: %v", err)
	}
	if err := child.Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, &output)
	}
	t.Logf("%s", &output)
}

// withoutInotify is the child.
func withoutInotify(t *testing.T, root string) {
	must(t, os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0))
	var log bytes.Buffer
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.MultiWriter(&log, os.Stderr))))
	reader := NewReader(root)
	err := reader.Watch(t.Context(), func() { t.Error("nothing can be watched") })
	for _, part := range []string{"too many open files", "changes are seen some seconds later", "sysctl -w fs.inotify.max_user_instances=8192"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("%v: want %q", err, part)
		}
	}
	s := &store{t: t, root: root}
	s.add("aa", manifestOf("base"), "quay.io/a:1")
	s.write()
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	done := make(chan error, 1)
	go func() { done <- (&read.Loop{Runtime: reader, Writer: handover.NewWriter(folder)}).Run(ctx) }()
	from := handover.NewReader(folder)
	images := func(want int32) {
		t.Helper()
		must(t, poll.Until(t.Context(), 100*time.Millisecond, 2*time.Minute, func(context.Context) error {
			report, err := from.Report()
			if err == nil && (report == nil || report.Spec.TotalImages != want) {
				err = fmt.Errorf("not a report with %d images: %+v", want, report)
			}
			return err
		}))
	}
	images(1)
	s.add("bb", manifestOf("top"), "quay.io/b:1")
	s.write()
	images(2)
	cancel()
	must(t, <-done)
	if n := strings.Count(log.String(), "max_user_instances"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
}
