// Package folder has what can be done with the folder of a cluster, whatever is in it: lock it, read and write its
// files, and remove it with all that the cluster made elsewhere.
package folder

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// parent is where clusters are by default.
const parent = "/var/lib/layer-locality"

// State is the name of the file that makes a folder one of a cluster: a folder may be removed if it has
// this file, and only then.
const State = "cluster.json"

// Default returns the default folder of the cluster with that name.
func Default(name string) string { return filepath.Join(parent, name) }

// Resolve makes path absolute and follows the symbolic links in the part of it
// that exists: the folder must have the same path inside a machine.
func Resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		parent, err := Resolve(filepath.Dir(path))
		return filepath.Join(parent, filepath.Base(path)), err
	}
	return real, err
}

// ReadJSON reads a file.
func ReadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// WriteJSON replaces a file as a whole: a reader never sees a partial file.
func WriteJSON(path string, from any) error {
	data, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'))
}

// WriteFile replaces a file as a whole.
func WriteFile(path string, data []byte) error {
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

// Cgroup returns the parent of all cgroups of the cluster.
func Cgroup(dir string) string { return "/" + Identifier(dir) }

const lockPatience = 5 * time.Second

// Lock creates dir and locks it until unlock is called. It creates no folders
// above dir, since nobody would remove them again. The default parent is an
// exception: the last cluster removes it.
//
// It waits a moment for another process: of one that was killed, a child that has not begun its
// own program yet still has the lock.
func Lock(dir string) (unlock func(), err error) {
	for deadline := time.Now().Add(lockPatience); ; {
		if filepath.Dir(dir) == parent {
			if err := os.MkdirAll(parent, 0o755); err != nil {
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
