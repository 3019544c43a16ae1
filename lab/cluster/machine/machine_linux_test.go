package machine

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	fields := " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 98765 20 21"
	for line, want := range map[string]byte{
		"7 (sh) S" + fields:            'S',
		"7 (a b) c) (d) Z" + fields:    'Z', // any name is possible
		"7 (evil) R 1 1 1) D" + fields: 'D',
		"7 (two\nlines) S" + fields:    'S',
	} {
		s, err := parseStat(line)
		if err != nil || s != (stat{want, 17, 98765}) {
			t.Errorf("%q: %+v, %v", line, s, err)
		}
	}
	for _, line := range []string{"", "7", "7 (sh)", "7 (sh) S 1 2 3", "7 (sh) S" + strings.Replace(fields, "98765", "x", 1), "7 (sh) S" + strings.Replace(fields, " 17 ", " x ", 1)} {
		if _, err := parseStat(line); err == nil {
			t.Errorf("%q: no error", line)
		}
	}
}

func TestParseCgroupMounts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ mountinfo, want string }{
		"v2": {
			"24 1 0:22 / /sys rw - sysfs sysfs rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			"/sys/fs/cgroup",
		},
		"hybrid": {
			"30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n31 30 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n" +
				"32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"/sys/fs/cgroup/unified /sys/fs/cgroup/memory",
		},
		"part of a hierarchy, bound elsewhere": {"32 30 0:28 /docker/x /mnt rw - cgroup cgroup rw,memory\n", ""},
		"none":                                 {"24 1 0:22 / /sys rw - sysfs sysfs rw\n", ""},
	} {
		got, err := parseCgroupMounts(strings.NewReader(test.mountinfo))
		if err != nil || strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, %v; want %s", name, got, err, test.want)
		}
	}
}

func TestRemoveTree(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "ll-x")
	if err := removeTree(root); err != nil {
		t.Errorf("a tree that is not there: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "n1", "crio", "crio-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

// sleeper starts a process of a cluster in the folder keep.
func sleeper(t *testing.T, keep string) Process {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.Env = environment(keep, nil)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProcessEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p := sleeper(t, t.TempDir())
	if !p.Alive() {
		t.Fatal("not alive")
	}
	// A record of an earlier process with the same id.
	reused := Process{PID: p.PID, Started: p.Started - 1}
	if reused.Alive() {
		t.Error("a reused id passes for the process recorded")
	}
	if err := reused.Kill(); err == nil {
		t.Error("killed another process than the one recorded")
	}
	if !p.Alive() {
		t.Fatal("ended by the wrong record")
	}
	waiting, stop := context.WithCancel(ctx)
	stop()
	if err := p.Gone(waiting); err == nil {
		t.Error("waiting does not end with its context")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	// Nobody has reaped it: a zombie is gone too.
	if err := p.Gone(ctx); err != nil {
		t.Error(err)
	}
	if (Process{}).Alive() {
		t.Error("no process is alive")
	}
}

// headless is the variable with which the test binary ends its first thread, and goes on with the others.
const headless = "MACHINE_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) != "" {
		runtime.LockOSThread() // the first thread runs init
		go func() {
			time.Sleep(time.Minute)
			os.Exit(0)
		}()
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	}
}

// What shows as a zombie is alive as long as one of its threads is: a component that was killed keeps its
// ports until the last one has ended.
func TestZombieWithThreads(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{headless + "=1"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for {
		s, err := readStat(p.PID)
		if err != nil || ctx.Err() != nil {
			t.Fatal("its first thread has not ended", err)
		}
		if s.state == 'Z' {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !p.Alive() {
		t.Error("its other threads count for nothing")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Gone(ctx); err != nil { // nobody has reaped it
		t.Error(err)
	}
}

// A process may end, and be waited for, at any moment of a signal to it.
func TestSignalToAProcessThatEnds(t *testing.T) {
	t.Parallel()
	for range 50 {
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p, err := Identify(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = cmd.Wait() }()
		for err == nil {
			err = p.Signal(0)
		}
		if !errors.Is(err, os.ErrProcessDone) {
			t.Fatalf("error %v, want that the process is done", err)
		}
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	ours, others := t.TempDir(), t.TempDir()
	a := sleeper(t, ours)
	b := sleeper(t, ours)
	sleeper(t, others)
	sleeper(t, ours+"/n1")
	// The process has the program's environment only after exec, a moment after
	// the start.
	var found []Process
	for range 6000 { // a minute, if nothing is there
		var err error
		if found, err = Leftovers(ours); err != nil {
			t.Fatal(err)
		}
		if len(found) == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(found) != 2 || !slices.Contains(found, a) || !slices.Contains(found, b) {
		t.Errorf("found %v, want %v and %v", found, a, b)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example")
	for _, variable := range environment("/c", []string{"A=b"}) {
		if strings.HasPrefix(variable, "HTTPS_PROXY") {
			t.Error("the caller's proxy reaches the cluster")
		}
	}
	if !slices.Contains(environment("/c", []string{"A=b"}), "A=b") {
		t.Error("a variable that was asked for is missing")
	}
}

func TestCheckInotify(t *testing.T) {
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	// More instances than the limit are never available, no matter what runs here.
	if err := CheckInotify(limit + 1); err == nil || !strings.Contains(err.Error(), "sysctl -w fs.inotify.max_user_instances=") {
		t.Errorf("error %v, want one with what to do", err)
	}
	if err := CheckInotify(0); err != nil {
		t.Error(err)
	}
}

func TestFreeSubnet(t *testing.T) {
	t.Parallel()
	prefixes := func(list ...string) []netip.Prefix {
		var all []netip.Prefix
		for _, p := range list {
			all = append(all, netip.MustParsePrefix(p))
		}
		return all
	}
	for name, test := range map[string]struct {
		used []netip.Prefix
		want string
	}{
		"nothing used":           {nil, "198.51.100.0/24"},
		"other networks used":    {prefixes("10.0.0.0/8", "192.168.1.7/32"), "198.51.100.0/24"},
		"an address in the way":  {prefixes("198.51.100.77/32"), "198.18.0.0/24"},
		"a route over all of it": {prefixes("192.0.0.0/4"), ""},
		"two clusters":           {prefixes("198.51.100.0/24", "198.18.0.0/24"), "198.18.1.0/24"},
		"over the byte's edge":   {prefixes("198.51.100.0/24", "198.18.0.0/16"), "198.19.0.0/24"},
		"all used":               {prefixes("198.51.100.0/24", "198.18.0.0/15"), ""},
	} {
		got, err := freeSubnet(test.used)
		switch {
		case test.want == "" && err == nil:
			t.Errorf("%s: %s, want an error", name, got)
		case test.want != "" && (err != nil || got.String() != test.want):
			t.Errorf("%s: %s, %v; want %s", name, got, err, test.want)
		}
	}
}
