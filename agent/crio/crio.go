// Package crio reads what a node with CRI-O holds from the files of its containers-storage,
// without locks and without asking CRI-O: a reader that takes the store's lock, even a shared
// one, holds up pulls. The store replaces files as a whole.
package crio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/manifest"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// Folder is where a store has its images, below its root.
	Folder = "overlay-images"
	// listFile is the list of images in it.
	listFile = "images.json"
	// maxList bounds the list: 10,000 images take some 15 MB. maxEntry bounds what it has of an image.
	maxList  = 64 << 20
	maxEntry = 4 << 20
	// maxImages bounds how many images are looked at.
	maxImages = 16_384
	// manifestKey is the data of an image that is its manifest; others of that prefix are
	// the same under their digests, and that of the index that led there.
	manifestKey = "manifest"
	// comes is for how long a manifest is waited for that is not there; some milliseconds are
	// usual. Then the image counts as one without.
	comes = 5 * time.Second
)

// Reader reads stores.
type Reader struct {
	// roots of the stores, the main one first.
	roots []string
	known *manifest.Known
	// missing are images without a manifest, by their ID, and since when they are.
	missing map[string]time.Time
}

// NewReader returns a reader of the store with a root, and of additional image stores.
func NewReader(roots ...string) *Reader { return &Reader{roots: roots} }

// Name implements read.Runtime.
func (*Reader) Name() string { return "cri-o" }

// image is an entry of the list.
type image struct {
	ID             string            `json:"id"`
	Digest         string            `json:"digest"`
	Names          []string          `json:"names"`
	TopLayer       string            `json:"layer"`
	BigDataDigests map[string]string `json:"big-data-digests"`
}

// Read implements read.Runtime.
func (r *Reader) Read(ctx context.Context) (*read.Result, error) {
	result := &read.Result{Contents: contents.Contents{Runtime: r.Name()}}
	now := &reading{Result: result, began: time.Now(), seen: map[string]bool{}, known: r.known.Next(), missing: map[string]time.Time{}}
	for i, root := range r.roots {
		if err := r.readStore(ctx, root, now); err != nil {
			if i > 0 && errors.Is(err, fs.ErrNotExist) {
				continue // an additional store need not be there
			}
			return nil, fmt.Errorf("store %s: %w", root, err)
		}
	}
	if err := r.readArtifacts(ctx, now); err != nil {
		return nil, err
	}
	r.known, r.missing = now.known, now.missing
	r.known.Done()
	return result, nil
}

// reading is one reading of all stores.
type reading struct {
	*read.Result
	began time.Time
	// seen are IDs of images; known and missing are those of the Reader for the next time.
	seen    map[string]bool
	known   *manifest.Known
	missing map[string]time.Time
}

func (r *Reader) readStore(ctx context.Context, path string, now *reading) error {
	// What is in the folder cannot lead out of it.
	root, err := os.OpenRoot(filepath.Join(path, Folder))
	if err != nil {
		return err
	}
	defer root.Close()
	if gone(root) {
		return read.ErrGone
	}
	images := 0
	err = list(root, listFile, "", func(found *image) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if images++; images > maxImages {
			now.Skip(handover.TooManyImages, 1)
			return nil
		}
		r.readImage(root, found, now)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no image was ever pulled
	}
	return err
}

// readImage reads what an entry of the list means.
func (r *Reader) readImage(root *os.Root, found *image, now *reading) {
	if now.seen[found.ID] || !isID(found.ID) || found.TopLayer == "" { // or an artifact
		return
	}
	now.seen[found.ID] = true
	// Not by the image's ID: an image that is pulled again may get another manifest.
	digest := found.BigDataDigests[manifestKey]
	if !v1alpha1.IsDigest(digest) {
		digest = ""
	}
	r.add(root, found.ID, filepath.Join(found.ID, manifestKey), digest, found.names(), now)
}

// add adds an image of a store with what its manifest has, which is in a file and has a digest, if that is known.
func (r *Reader) add(root *os.Root, id, file, digest string, names []string, now *reading) {
	m, err := r.manifest(root, file, digest, now.known)
	if errors.Is(err, fs.ErrNotExist) && !r.waitedFor(id, now) {
		now.Incomplete = true // listed before its manifest is there, or removed meanwhile
		return
	}
	if err != nil {
		now.Skip(handover.NoManifest, 1)
		now.Incomplete = now.Incomplete || unread(err)
	}
	listed := contents.Image{Names: names}
	if m != nil {
		switch listed.Layers = m.Layers; {
		case m.Unknown != nil:
			now.Skip(handover.NoLayers, 1)
		case m.Config == "":
			now.Skip(handover.NoManifest, 1) // it is an index
		}
	}
	now.Contents.Add(listed)
}

// list calls each with the entries of a list, one after another: all of it may be larger than the memory there is. The
// list is the file, or what an object there has under a key.
func list[T any](root *os.Root, name, key string, each func(*T) error) error {
	file, err := open(root, name)
	if err != nil {
		return err
	}
	defer file.Close()
	from := &bounded{from: file, list: maxList, entry: maxEntry}
	decoder := json.NewDecoder(from)
	if key == "" {
		err = elements(decoder, from, each)
	} else {
		err = object(decoder, func(found string) error {
			if found == key {
				return elements(decoder, from, each)
			}
			return decoder.Decode(&json.RawMessage{})
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// object calls each with the keys of an object, to read what they have.
func object(decoder *json.Decoder, each func(key string) error) error {
	token, err := decoder.Token()
	if err == nil && token != json.Delim('{') {
		err = errors.New("not an object")
	}
	for err == nil && decoder.More() {
		if token, err = decoder.Token(); err == nil {
			key, _ := token.(string)
			err = each(key)
		}
	}
	if err == nil {
		_, err = decoder.Token() // the end: it is whole
	}
	return err
}

// elements calls each with the elements of a list; null has none.
func elements[T any](decoder *json.Decoder, from *bounded, each func(*T) error) error {
	token, err := decoder.Token()
	if err == nil && token == nil {
		return nil
	}
	if err == nil && token != json.Delim('[') {
		err = errors.New("not a list")
	}
	for err == nil && decoder.More() {
		var next T
		if err = decoder.Decode(&next); err == nil {
			from.entry = maxEntry
			err = each(&next)
		}
	}
	if err == nil {
		_, err = decoder.Token() // the end of the list: it is whole
	}
	return err
}

// bounded reads a list of so many bytes, and so many in an entry.
type bounded struct {
	from        io.Reader
	list, entry int
}

// ahead is how much is read at once.
const ahead = 32 << 10

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.from.Read(p[:min(len(p), ahead)])
	b.list, b.entry = b.list-n, b.entry-n
	switch {
	case b.list < 0:
		err = fmt.Errorf("more than %d MiB: remove images that nobody needs (crictl rmi --prune)", maxList>>20)
	case b.entry < 0:
		err = fmt.Errorf("an image takes more than %d MiB there: remove it, it has too many names (crictl images, crictl rmi)", maxEntry>>20)
	}
	return n, err
}

// waitedFor reports whether the manifest of an image, which is not there, has been waited for
// long enough.
func (r *Reader) waitedFor(id string, now *reading) bool {
	since, known := r.missing[id]
	if !known {
		since = now.began
	}
	now.missing[id] = since
	return now.began.Sub(since) >= comes
}

// isID reports whether a text can be the ID of an image, which is also the name of a folder.
func isID(text string) bool {
	return len(text) > 0 && len(text) <= 128 && strings.Trim(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// errUnusable is the error of a manifest that was looked at before.
var errUnusable = errors.New("not a manifest that can be used")

// manifest returns the manifest in a file, an error if it is none that can be used.
func (r *Reader) manifest(root *os.Root, file, digest string, known *manifest.Known) (*manifest.Manifest, error) {
	if m, ok := known.Get(digest); ok {
		if m == nil {
			return nil, errUnusable
		}
		return m, nil
	}
	text, err := readFile(root, file, manifest.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) || unread(err) {
		return nil, err
	}
	var m *manifest.Manifest
	if err == nil {
		m, err = manifest.Parse(text)
	}
	return known.Put(digest, m), err
}

// unread reports whether it is the file system that failed, which it may do for a while: what it
// has may be usable.
func unread(err error) bool {
	failure := &fs.PathError{}
	return errors.As(err, &failure) && !errors.Is(err, fs.ErrNotExist)
}

// names returns the tags and digests of an image, some of them twice.
func (i *image) names() []string {
	names := []string{i.Digest}
	for _, name := range i.Names {
		// A digest names the same content in every repository.
		if _, digest, ok := strings.Cut(name, "@"); ok {
			name = digest
		}
		names = append(names, name)
	}
	for key, digest := range i.BigDataDigests {
		if key == manifestKey || strings.HasPrefix(key, manifestKey+"-") {
			names = append(names, digest)
		}
	}
	return names
}

// open opens a regular file.
func open(root *os.Root, name string) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// readFile reads a regular file that has at most so many bytes.
func readFile(root *os.Root, name string, most int64) ([]byte, error) {
	file, err := open(root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}

// gone reports whether a folder has been removed. Who made it again made another one, which a
// container does not see.
func gone(root *os.Root) bool {
	info, err := root.Stat(".")
	if err != nil {
		return true
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

// raise begins the way out where a limit of inotify is reached.
const raise = "; raise the limit on the node, also in /etc/sysctl.d: sysctl -w fs.inotify."

// unwatched adds to an error of inotify what to do. The limits are those of the node, for all
// processes of a user together.
func unwatched(what string, err error) error {
	wayOut := ""
	switch {
	case errors.Is(err, syscall.EMFILE):
		wayOut = raise + "max_user_instances=8192"
	case errors.Is(err, syscall.ENOSPC):
		wayOut = raise + "max_user_watches=524288"
	}
	return fmt.Errorf("watching %s: %w: changes are seen some seconds later, when it is read again%s", what, err, wayOut)
}

// Watch implements read.Runtime.
func (r *Reader) Watch(ctx context.Context, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return unwatched("the store", err)
	}
	defer watcher.Close()
	for i, root := range r.roots {
		if err := watcher.Add(filepath.Join(root, Folder)); err != nil && (i == 0 || !errors.Is(err, fs.ErrNotExist)) {
			return unwatched(filepath.Join(root, Folder), err)
		}
		// Without it, its changes are seen some seconds later: it need not be there, nor readable.
		_ = watcher.Add(filepath.Join(root, artifactFolder))
	}
	changed() // there may have been changes before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-watcher.Events:
			switch {
			case !ok:
				return errors.New("the watch of the store ended")
			case (filepath.Base(event.Name) == listFile || filepath.Base(event.Name) == indexFile) && event.Op != fsnotify.Chmod:
				changed()
			case filepath.Base(event.Name) == Folder && event.Has(fsnotify.Remove|fsnotify.Rename):
				changed()
				return errors.New("the folder of the store was removed")
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return errors.New("the watch of the store ended")
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				changed()
				continue
			}
			return fmt.Errorf("watching the store: %w", err)
		}
	}
}
