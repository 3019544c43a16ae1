package imagelayers

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// What is encrypted in a registry is decrypted by the pull, which stores a
// manifest with the digests of the plain layers. These must not be reported:
// who reads them could test a guess at what a confidential layer holds. The
// stored manifest does not show it, so it has to be noted when the image is pulled.

// EncryptedKey returns the name under which the store keeps, as data of an
// image, which layers of the manifest were encrypted in the registry. One image
// can have several manifests, and come encrypted with one and plain with
// another.
func EncryptedKey(manifestDigest digest.Digest) string {
	return "encrypted-layers-" + manifestDigest.String()
}

// CopyWatch learns from the progress reports of one copy of an image which of
// its layers are encrypted at the source.
type CopyWatch struct {
	reports chan types.ProgressProperties
	idle    chan struct{} // can be received from while no report is being looked at
	end     func()        // closes reports, and waits until all have been looked at

	encrypted bool
	// plain are the blobs, config and layers, that are not.
	plain map[digest.Digest]struct{}
}

// WatchCopy returns the watch of one copy, which has to send its reports to
// Reports. The observers get each of them, one at a time. Then they are passed on
// to forward, unless that is nil. The caller has to call Close.
func WatchCopy(forward chan<- types.ProgressProperties, observers ...func(*types.ProgressProperties)) *CopyWatch {
	w := &CopyWatch{
		reports: make(chan types.ProgressProperties),
		idle:    make(chan struct{}),
		plain:   map[digest.Digest]struct{}{},
	}
	w.end = sync.OnceFunc(func() {
		close(w.reports)
		<-w.idle
	})

	go func() {
		defer close(w.idle)

		for {
			select {
			case report, open := <-w.reports:
				if !open {
					return
				}

				w.observe(&report)

				for _, observe := range observers {
					observe(&report)
				}

				if forward != nil {
					forward <- report
				}
			case w.idle <- struct{}{}:
			}
		}
	}()

	return w
}

// Reports returns where the copy sends its reports: at least one of each blob.
func (w *CopyWatch) Reports() chan types.ProgressProperties { return w.reports }

func (w *CopyWatch) observe(report *types.ProgressProperties) {
	blob := &report.Artifact
	if strings.HasSuffix(blob.MediaType, encryptedSuffix) {
		if !w.encrypted {
			w.encrypted = true

			decrypting.add(w.plain)
		}

		return
	}

	if _, known := w.plain[blob.Digest]; known {
		return
	}

	w.plain[blob.Digest] = struct{}{}
	if w.encrypted {
		decrypting.add(map[digest.Digest]struct{}{blob.Digest: {}})
	}
}

// Encrypted returns, for EncryptedKey, which layers of the manifest that the
// copy made were encrypted at the source: nil if none was. The copy must have
// sent its last report. A layer that it sent no report of counts as encrypted if
// another one was.
func (w *CopyWatch) Encrypted(stored []byte) ([]byte, error) {
	<-w.idle

	if !w.encrypted {
		return nil, nil
	}

	parsed, err := manifest.FromBlob(stored, manifest.GuessMIMEType(stored))
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of a decrypted image: %w", err)
	}

	var digests []byte

	for _, layer := range parsed.LayerInfos() {
		if _, plain := w.plain[layer.Digest]; !plain {
			digests = fmt.Appendln(digests, layer.Digest)
		}
	}

	return digests, nil
}

// Close ends the watch. From then on, the image is reported with the layers that
// are not stored as encrypted.
func (w *CopyWatch) Close() {
	w.end()

	if w.encrypted {
		decrypting.remove(w.plain)
	}
}

// BeingDecrypted reports whether a copy of an image with encrypted layers is going
// on that has one of the names as the digest of its config: then what was read of
// it may be from before it was noted which of its layers were encrypted. Images
// have their config as data of that name. Copies in other processes do not count.
func BeingDecrypted(names []string) bool { return decrypting.hasAny(names) }

// Without returns the layers without those that Encrypted returned.
func (l *Layers) Without(encrypted []byte) *Layers {
	keys := map[string]struct{}{}
	for line := range bytes.Lines(encrypted) {
		keys[Prefix+string(bytes.TrimSpace(line))] = struct{}{}
	}

	return l.without(keys)
}

// blobsInUse counts in how many copies that are going on each blob is.
type blobsInUse struct {
	lock   sync.Mutex
	counts map[digest.Digest]int
}

var decrypting = blobsInUse{counts: map[digest.Digest]int{}}

func (b *blobsInUse) add(digests map[digest.Digest]struct{}) {
	b.lock.Lock()
	defer b.lock.Unlock()

	for d := range digests {
		b.counts[d]++
	}
}

func (b *blobsInUse) remove(digests map[digest.Digest]struct{}) {
	b.lock.Lock()
	defer b.lock.Unlock()

	for d := range digests {
		if b.counts[d]--; b.counts[d] == 0 {
			delete(b.counts, d)
		}
	}
}

func (b *blobsInUse) hasAny(names []string) bool {
	b.lock.Lock()
	defer b.lock.Unlock()

	if len(b.counts) == 0 {
		return false
	}

	for _, name := range names {
		if b.counts[digest.Digest(name)] > 0 {
			return true
		}
	}

	return false
}
