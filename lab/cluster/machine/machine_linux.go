package machine

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

var (
	//go:embed init.sh
	initScript string
	//go:embed join.sh
	joinScript string
)

// marker is in the environment of every process started by this package, with
// the cluster's folder as its value. By it, the processes of a run are found
// even if the run was killed before it could record them.
const marker = "LAYER_LOCALITY_CLUSTER_DIR"

// Boot creates the namespaces of a machine and waits until its file system view
// is ready. Its network namespace is still empty.
func Boot(ctx context.Context, spec Spec) (*Machine, error) {
	title := "layer-locality-" + spec.Name
	// PID 1 joins its cgroup first, so that the cgroup namespace begins there.
	cmd := exec.Command("/bin/sh", "-c", joinScript, title, spec.Cgroup,
		"unshare", "--cgroup",
		"/bin/sh", "-c", initScript, title, spec.State, spec.Keep, joinScript)
	cmd.Dir = "/"
	cmd.Env = environment(spec.Keep, nil)
	cmd.Stderr = spec.Log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("machine %s: %w", spec.Name, err)
	}
	m := &Machine{Keep: spec.Keep}
	m.Process, err = Identify(cmd.Process.Pid)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = m.Kill() })
		line, readErr := bufio.NewReader(out).ReadString('\n')
		stop()
		switch {
		case readErr != nil:
			_ = cmd.Wait()
			err = fmt.Errorf("its start script ended early (%s)", cmd.ProcessState)
		case line != "ready\n":
			err = fmt.Errorf("its start script printed %q", line)
		}
	}
	if err == nil {
		err = m.do(func() error { return unix.Sethostname([]byte(spec.Name)) })
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("machine %s: %w", spec.Name, errors.Join(ctx.Err(), err))
	}
	// Reap it when it ends, as long as this process lives.
	go func() { _ = cmd.Wait() }()
	return m, nil
}

// Start starts cmd inside the machine. The command gets a minimal environment
// plus cmd.Env. The caller has to wait for the command.
func (m *Machine) Start(cmd *exec.Cmd) error {
	cmd.Args = append([]string{"/bin/sh", "/run/join", "/system", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = cmd.Args[0]
	cmd.Env = environment(m.Keep, cmd.Env)
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// Ctrl-C in a terminal must only reach the command that runs the cluster,
	// which then stops the components in order.
	cmd.SysProcAttr.Setsid = true
	return m.do(cmd.Start)
}

// do runs f on a thread that has joined the machine. A process that f starts
// is a child of this process and lives inside the machine.
func (m *Machine) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot be thrown away, and /proc/self describes it. It
			// waits here, so that another thread does the work.
			defer runtime.UnlockOSThread()
			done <- m.do(f)
			return
		}
		// Never unlocked: the thread ends with this goroutine, and nothing
		// else ever runs inside the machine's namespaces.
		done <- m.join(f)
	}()
	return <-done
}

// join moves the calling thread into the machine for good, and calls f.
func (m *Machine) join(f func() error) error {
	fd, err := unix.PidfdOpen(m.PID, 0)
	if err != nil {
		return fmt.Errorf("the machine is down: %w", err)
	}
	defer unix.Close(fd)
	if !m.Alive() {
		return errors.New("the machine is down")
	}
	// Threads share root and working directory; a thread that does so cannot join.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	if err := unix.Setns(fd, all); err != nil {
		return fmt.Errorf("join the machine's namespaces: %w", err)
	}
	return f()
}

// environment returns the environment of a process of the cluster. It has
// nothing of the caller's (proxies, tokens, locale), since components read many
// settings from there.
func environment(keep string, extra []string) []string {
	return append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/run",
		"LC_ALL=C.UTF-8",
		marker + "=" + keep,
	}, extra...)
}

// Self identifies the calling process.
func Self() (Process, error) { return Identify(os.Getpid()) }

// Identify returns the identity of a running process. Unless the process is a
// child of the caller, it may be a different one than meant: ids are reused.
func Identify(pid int) (Process, error) {
	s, err := readStat(pid)
	return Process{PID: pid, Started: s.started}, err
}

// Alive reports whether the process still runs; a zombie does not. A killed process with several threads
// may show as a zombie while some of them have still to end, and until then its ports are taken.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	s, err := readStat(p.PID)
	return err == nil && s.started == p.Started && (s.state != 'Z' && s.state != 'X' || s.threads > 1)
}

// Signal sends sig to the process if it is still the one recorded.
func (p Process) Signal(sig syscall.Signal) error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	// The descriptor refers to one process for good. Check that it is ours.
	if !p.Alive() {
		return os.ErrProcessDone
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrProcessDone // it has ended since then
	}
	return err
}

// Kill ends the process with SIGKILL. Killing a machine's PID 1 ends every
// process in the machine.
func (p Process) Kill() error { return p.Signal(unix.SIGKILL) }

// Gone waits until the process has ended.
func (p Process) Gone(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) { return !p.Alive(), nil })
	if err != nil {
		return fmt.Errorf("process %d has not ended: %w", p.PID, err)
	}
	return nil
}

// MayLowerOOMScore reports whether this process has CAP_SYS_RESOURCE, which
// root usually has.
func MayLowerOOMScore() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// CheckInotify returns an error if this user cannot create that many more
// inotify instances: it tries to. A component that gets none fails with "too
// many open files", which points to the wrong limit.
func CheckInotify(need int) error {
	for range need {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("this cluster needs %d inotify instances, and the kernel gives root no more so many (%w): "+
				"stop another cluster, or run 'sysctl -w fs.inotify.max_user_instances=1024'", need, err)
		}
		defer unix.Close(fd)
	}
	return nil
}

// stat is a part of /proc/PID/stat: the state and the start of a process, or rather of its
// first thread, and the number of threads.
type stat struct {
	state   byte
	threads int
	started uint64
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(data))
}

// parseStat reads fields 3, 20 and 22 (proc_pid_stat(5)). The second field is the command's name in
// brackets, which may contain spaces and brackets itself.
func parseStat(line string) (s stat, err error) {
	_, rest, ok := cutLast(line, ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return s, fmt.Errorf("not the content of a /proc/PID/stat file: %q", line)
	}
	s.state = fields[0][0]
	if s.threads, err = strconv.Atoi(fields[17]); err == nil {
		s.started, err = strconv.ParseUint(fields[19], 10, 64)
	}
	return s, err
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// Leftovers returns the processes that this or any earlier process started for
// the cluster in folder keep. Processes inside containers are left out: they
// end with their machine.
func Leftovers(keep string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	want := []byte(marker + "=" + keep)
	var found []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process may end at any time: then it is not a leftover.
		p, err := Identify(pid)
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil {
			continue
		}
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(variable, want) {
				found = append(found, p)
				break
			}
		}
	}
	return found, nil
}

// RemoveCgroups removes the cgroup path and all below it in every hierarchy of
// the host. They must not hold processes any longer. The kernel needs a moment
// for that, so RemoveCgroups tries until ctx ends.
func RemoveCgroups(ctx context.Context, path string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		root := filepath.Join(mount, path)
		var busy error
		err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
			busy = removeTree(root)
			return busy == nil, nil
		})
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w: %w", root, err, busy)
		}
	}
	return nil
}

// removeTree removes a cgroup and its children, children first. In a cgroup
// file system only folders can be removed; their files go with them.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		if err = unix.Rmdir(dirs[i]); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

func cgroupMounts() ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseCgroupMounts(file)
}

func parseCgroupMounts(r io.Reader) ([]string, error) {
	var found []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// ID parent device root MOUNT options... - TYPE source options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if ok && len(fields) > 4 && fields[3] == "/" && strings.HasPrefix(after, "cgroup") {
			found = append(found, fields[4])
		}
	}
	return found, lines.Err()
}
