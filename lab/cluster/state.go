package cluster

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// state is the content of a folder's cluster.json. The file is written before
// anything else is made: a folder may be removed if it has this file, and only
// then.
type state struct {
	Config Config `json:"config"`
	// Owner is the process that the cluster belongs to. It is empty once the
	// cluster is detached.
	Owner machine.Process `json:"owner"`
	// Ready is set when the start has succeeded.
	Ready  bool         `json:"ready"`
	Subnet netip.Prefix `json:"subnet"`
}

// record is what is known about a running process or machine.
type record struct {
	machine.Process
	Settings Component `json:"settings"`
}

func statePath(dir string) string { return filepath.Join(dir, "cluster.json") }

func readState(dir string) (*state, error) {
	s := new(state)
	if err := readJSON(statePath(dir), s); err != nil {
		return nil, err
	}
	// A folder that does not belong to this cluster must not be removed.
	if s.Config.Dir != dir {
		return nil, fmt.Errorf("%s was not written for a cluster in %s", statePath(dir), dir)
	}
	return s, nil
}

// recordPath returns the path of the record of a machine, or of a process
// "machine.name". These files are the only record of what runs: every handle
// reads them.
func recordPath(dir, name string) string {
	return filepath.Join(dir, "state", name+".json")
}

func readRecord(dir, name string) (record, error) {
	var r record
	err := readJSON(recordPath(dir, name), &r)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // never started
	}
	return r, err
}

func writeRecord(dir, name string, r record) error {
	return writeJSON(recordPath(dir, name), r)
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file as a whole: a reader never sees a partial file.
func writeJSON(path string, from any) error {
	data, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(data, '\n'))
}

func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Identifier returns the name for everything that the cluster in a folder makes
// outside of that folder: its link on the host (at most 15 bytes) and its
// cgroup. It is derived from the folder's absolute path, so it is known even if
// nothing was recorded.
func Identifier(dir string) string {
	return fmt.Sprintf("ll-%x", sha256.Sum256([]byte(dir)))[:11]
}

// cgroup returns the parent of all cgroups of the cluster.
func cgroup(dir string) string { return "/" + Identifier(dir) }

const lockPatience = 5 * time.Second

// lock creates dir and locks it until unlock is called. It creates no folders
// above dir, since nobody would remove them again. The default parent is an
// exception: the last cluster removes it.
//
// It waits a moment for another process: of one that was killed, a child that has not begun its
// own program yet still has the lock.
func lock(dir string) (unlock func(), err error) {
	for deadline := time.Now().Add(lockPatience); ; {
		if filepath.Dir(dir) == defaultParent {
			if err := os.MkdirAll(defaultParent, 0o755); err != nil {
				return nil, err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		unlock = func() { unix.Close(fd) }
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			unlock()
			if errors.Is(err, unix.EWOULDBLOCK) {
				if time.Now().Before(deadline) {
					time.Sleep(50 * time.Millisecond)
					continue
				}
				return nil, fmt.Errorf("%s: another process is starting or stopping this cluster", dir)
			}
			return nil, &fs.PathError{Op: "flock", Path: dir, Err: err}
		}
		// The previous holder of the lock may have removed the folder.
		var locked, there unix.Stat_t
		if unix.Fstat(fd, &locked) == nil && unix.Stat(dir, &there) == nil && locked.Ino == there.Ino {
			return unlock, nil
		}
		unlock()
	}
}

// reserved holds address ranges that no real network should use: one of those
// for examples (RFC 5737) and those for benchmarks (RFC 2544). The other two of
// RFC 5737 are left alone: a private network may use them behind its default
// route, and a cluster with the same addresses would cut it off.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
}

// freeSubnet finds a /24 that overlaps with nothing in use.
func freeSubnet(used []netip.Prefix) (netip.Prefix, error) {
	for _, network := range reserved {
		for candidate := netip.PrefixFrom(network.Addr(), 24); network.Contains(candidate.Addr()); candidate = following(candidate) {
			if !slices.ContainsFunc(used, candidate.Overlaps) {
				return candidate, nil
			}
		}
	}
	return netip.Prefix{}, errors.New("no free network: every reserved range is in use; stop another cluster first")
}

// following returns the /24 after a /24.
func following(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	if a[2]++; a[2] == 0 {
		a[1]++
	}
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}

// host returns address n of a /24, with the prefix length of the network.
func host(subnet netip.Prefix, n int) netip.Prefix {
	a := subnet.Addr().As4()
	a[3] = byte(n)
	return netip.PrefixFrom(netip.AddrFrom4(a), subnet.Bits())
}
