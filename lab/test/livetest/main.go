package livetest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// cleanup is how long the removal of a cluster may take. That much of the time
// limit of "go test" is reserved for it.
const cleanup = 90 * time.Second

// Main starts a cluster, passes it to use, runs the tests of the package and
// removes the cluster. It also removes the cluster after a failure, on a
// signal, and before the time limit of "go test" would end the process. It
// returns the exit code, which is not 0 if the cluster left anything behind.
//
// After a failure, the logs of the components are in the repository, in
// _out/test/logs/<name>.
func Main(m *testing.M, config cluster.Config, use func(*cluster.Cluster)) (code int) {
	flag.Parse()
	if list := flag.Lookup("test.list"); list != nil && list.Value.String() != "" {
		return m.Run()
	}
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, config.Name+": "+format+"\n", args...) }

	if config.Logf == nil {
		config.Logf = say
	}
	ctx := untilEnd()
	c, err := cluster.Start(ctx, config)
	if err != nil {
		say("%v", err) // the error names the logs and their place
		return 1
	}
	trace, err := traceOf(c)
	if err != nil {
		say("%v", err)
		code = 1
	}
	use(c)

	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	select {
	case result := <-ended:
		code = max(code, result)
	case <-ctx.Done():
		say("stopped early (%v); what was going on:", context.Cause(ctx))
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		code = 1
	}
	if code != 0 {
		keepLogs(c, say)
	}
	stop, cancel := context.WithTimeout(context.Background(), cleanup)
	defer cancel()
	if err := errors.Join(c.Stop(stop), trace.gone()); err != nil {
		say("the cluster was not removed cleanly: %v", err)
		code = max(code, 1)
	}
	return code
}

// untilEnd returns a context that ends with a signal that asks the process to end, and early enough to remove a
// cluster before the time limit of "go test" ends the process.
var untilEnd = sync.OnceValue(func() context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	var limit <-chan time.Time
	if d, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); ok && d > 2*cleanup {
		limit = time.After(d - cleanup)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case s := <-signals:
			end(fmt.Errorf("signal %v", s))
		case <-limit:
			end(errors.New("the time limit of go test is near"))
		}
	}()
	return ctx
})

// keepLogs copies the logs of the components out of the cluster's folder, and
// prints the path of the copies.
func keepLogs(c *cluster.Cluster, say func(string, ...any)) {
	root, err := repository()
	dir := filepath.Join(root, "_out", "test", "logs", c.Name())
	if err == nil {
		err = os.RemoveAll(dir) // the logs of an earlier run
	}
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(c.LogDir()))
	}
	if err != nil {
		say("FAILED; its logs are lost: %v", err)
		return
	}
	say("FAILED; the logs of all components:")
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		say("  %s", filepath.Join(dir, entry.Name()))
	}
}

// repository is the repository around the working directory.
func repository() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "versions.env")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the working directory is not in the repository")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// trace is what a cluster creates on the host and must not leave behind.
type trace struct {
	dir string
	// link is the cluster's network link; its cgroups have the same name.
	link string
}

func traceOf(c *cluster.Cluster) (trace, error) {
	registry, err := netip.ParseAddrPort(c.Registry().Address)
	if err != nil {
		return trace{}, err
	}
	links, err := net.Interfaces()
	if err != nil {
		return trace{}, err
	}
	for _, link := range links {
		addresses, err := link.Addrs()
		if err != nil {
			continue // another cluster's link, which vanished meanwhile
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && network.Contains(registry.Addr().AsSlice()) {
				return trace{dir: c.Dir(), link: link.Name}, nil
			}
		}
	}
	return trace{dir: c.Dir()}, fmt.Errorf("no network link leads to the registry %s", registry)
}

// gone checks that no folder, link, cgroup, mount or process is left.
func (t trace) gone() error {
	var errs []error
	if _, err := os.Lstat(t.dir); err == nil {
		errs = append(errs, fmt.Errorf("folder %s is left", t.dir))
	} else if !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	if t.link != "" {
		if _, err := net.InterfaceByName(t.link); err == nil {
			errs = append(errs, fmt.Errorf("network link %s is left", t.link))
		}
		err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() == t.link {
				errs = append(errs, fmt.Errorf("cgroup %s is left", path))
			}
			return nil // cgroups of others come and go while we look
		})
		errs = append(errs, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	errs = append(errs, err)
	if bytes.Contains(mounts, []byte(t.dir+"/")) {
		errs = append(errs, fmt.Errorf("mounts below %s are left", t.dir))
	}
	processes, err := os.ReadDir("/proc")
	errs = append(errs, err)
	for _, process := range processes {
		pid, err := strconv.Atoi(process.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The command line is empty if the process has ended meanwhile.
		command, _ := os.ReadFile(filepath.Join("/proc", process.Name(), "cmdline"))
		arguments := bytes.Split(bytes.TrimRight(command, "\x00"), []byte{0})
		if slices.ContainsFunc(arguments, func(a []byte) bool { return bytes.Contains(a, []byte(t.dir+"/")) }) {
			errs = append(errs, fmt.Errorf("process %d is left: %s", pid, bytes.Join(arguments, []byte(" "))))
		}
	}
	return errors.Join(errs...)
}
