package layercache

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
)

const (
	// Folder is where the layers are, below the root of the store.
	Folder = "layer-peers"

	// mostBytes and mostPart bound them: a number, and a part of the file system.
	mostBytes, mostPart = 32 << 30, 10

	// freePart of the file system stays free. The kubelet deletes images when less than 15 %
	// are free, and evicts pods.
	freePart = 4

	// lookInterval is how often that is looked at.
	lookInterval = 10 * time.Second

	// mostUnchecked is how many files wait to be checked. What comes beyond is not kept.
	mostUnchecked = 64

	// temporary begins the names of files that are not checked yet.
	temporary = "new-"
)

// Cache keeps layers as they came from a registry. The nil Cache keeps nothing.
type Cache struct {
	folder    string
	unchecked chan unchecked
	// allowed returns how many bytes there may be if there are that many now.
	allowed func(kept int64) (int64, error)

	lock   sync.Mutex // held by who adds or removes layers
	failed atomic.Bool

	rates rates
}

type unchecked struct {
	path   string
	digest digest.Digest
}

// Open returns the cache of the store with that root. It looks after itself until the process ends.
func Open(root string) (*Cache, error) {
	c, err := open(filepath.Join(root, Folder))
	if err != nil {
		return nil, err
	}

	go func() {
		for u := range c.unchecked {
			c.check(u)
		}
	}()
	go func() {
		for ; ; time.Sleep(lookInterval) {
			c.Trim()
		}
	}()

	return c, nil
}

// Remove removes what a process kept that had it turned on.
func Remove(root string) error {
	folder := filepath.Join(root, Folder)

	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	for _, entry := range entries { // not the folder: layer-agent may have it mounted
		if strings.HasPrefix(entry.Name(), temporary) || canKeep(digest.NewDigestFromEncoded(digest.SHA256, entry.Name())) {
			if gone := os.Remove(filepath.Join(folder, entry.Name())); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}

	if err != nil {
		return fmt.Errorf("layers kept for neighbours: %w", err)
	}

	return nil
}

// open makes the folder, and removes what a process before left unchecked.
func open(folder string) (*Cache, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("folder for the layers of neighbours: %w", err)
	}

	// The kubelet may have made it for layer-agent.
	if err := os.Chmod(folder, 0o700); err != nil { //nolint:gosec // a folder
		return nil, fmt.Errorf("folder for the layers of neighbours: %w", err)
	}

	left, err := filepath.Glob(filepath.Join(folder, temporary+"*"))
	if err != nil {
		return nil, fmt.Errorf("layers that were not checked: %w", err)
	}

	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("layer that was not checked: %w", err)
		}
	}

	c := &Cache{folder: folder, unchecked: make(chan unchecked, mostUnchecked)}
	c.allowed = c.allowedOnDisk

	return c, nil
}

// Keep keeps a file that a pull downloaded from a registry.
func (c *Cache) Keep(file *os.File, layer digest.Digest) {
	if c != nil {
		c.rates.see(file)
		c.keep(file, layer)
	}
}

// keep keeps a file. It is checked later, as pulls do not wait for that.
func (c *Cache) keep(file *os.File, layer digest.Digest) {
	if !canKeep(layer) || c.has(layer) {
		return
	}

	if info, err := file.Stat(); err != nil || !c.room(info.Size()) {
		return
	}

	path, err := c.link(file)
	if err != nil {
		c.fail(err)

		return
	}

	select {
	case c.unchecked <- unchecked{path, layer}:
	default:
		c.remove(path)
	}
}

// link gives a file another name in the folder.
func (c *Cache) link(file *os.File) (string, error) {
	path := filepath.Join(c.folder, temporary+rand.Text())
	if err := os.Link(file.Name(), path); err != nil {
		return "", fmt.Errorf("is big_files_temporary_dir in another file system than the store? %w", err)
	}

	// The name may lead elsewhere by now.
	mine, err := file.Stat()
	if err == nil {
		var linked os.FileInfo

		linked, err = os.Lstat(path)
		if err == nil && (!os.SameFile(mine, linked) || !linked.Mode().IsRegular()) {
			err = fmt.Errorf("%s is no longer the file that was read", file.Name())
		}
	}

	if err != nil {
		c.remove(path)

		return "", err
	}

	return path, nil
}

// check gives a file its name if it is the layer.
func (c *Cache) check(u unchecked) {
	defer c.remove(u.path)

	file, err := os.Open(u.path)
	if err != nil {
		c.fail(err)

		return
	}
	defer file.Close()

	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		c.fail(err)

		return
	}

	// Not so if the store made the file from what it had unpacked.
	if hex.EncodeToString(sum.Sum(nil)) != u.digest.Encoded() {
		return
	}

	err = file.Sync() // what has a name is whole, also after a loss of power
	if err == nil {
		c.lock.Lock()
		err = os.Rename(u.path, c.path(u.digest))
		c.lock.Unlock()
	}

	if err != nil {
		c.fail(err)
	}

	c.Trim()
}

// Trim removes the oldest layers until no more are left than may be.
func (c *Cache) Trim() {
	c.lock.Lock()
	defer c.lock.Unlock()

	entries, err := os.ReadDir(c.folder)
	if err != nil {
		logrus.Warnf("Layers for neighbours: %v", err)

		return
	}

	var (
		files []os.FileInfo
		sum   int64
	)

	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}

		// What is not checked yet takes space as well, and is the youngest.
		sum += info.Size()

		if canKeep(digest.NewDigestFromEncoded(digest.SHA256, entry.Name())) {
			files = append(files, info)
		}
	}

	slices.SortFunc(files, func(a, b os.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})

	for _, file := range files {
		// Asked anew each time: what has another link, or is being sent, takes space until that ends.
		allowed, err := c.allowed(sum)
		if err != nil {
			logrus.Warnf("Layers for neighbours: %v", err)
		}

		if err == nil && sum <= allowed {
			return
		}

		c.remove(filepath.Join(c.folder, file.Name()))

		sum -= file.Size()
	}
}

// allowedOnDisk returns how many bytes there may be so that enough is free.
func (c *Cache) allowedOnDisk(kept int64) (int64, error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(c.folder, &disk); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", c.folder, err)
	}

	return allowedOf(int64(disk.Blocks)*disk.Bsize, int64(disk.Bavail)*disk.Bsize, kept), nil //nolint:gosec // no disk is that large
}

func allowedOf(size, free, kept int64) int64 {
	return min(mostBytes, size/mostPart, kept+free-size/freePart)
}

// room reports whether a layer of that size may come.
func (c *Cache) room(size int64) bool {
	allowed, err := c.allowed(0)

	return err == nil && size <= allowed
}

func (c *Cache) has(layer digest.Digest) bool {
	_, err := os.Lstat(c.path(layer))

	return err == nil
}

func (c *Cache) path(layer digest.Digest) string { return filepath.Join(c.folder, layer.Encoded()) }

func canKeep(layer digest.Digest) bool {
	return layer.Validate() == nil && layer.Algorithm() == digest.SHA256
}

func (c *Cache) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.fail(err)
	}
}

// fail logs the first failure: the others will be the same.
func (c *Cache) fail(err error) {
	level := logrus.DebugLevel

	if c.failed.CompareAndSwap(false, true) {
		level = logrus.WarnLevel
	}

	logrus.StandardLogger().Logf(level, "Layers are not kept for neighbours: %v", err)
}
