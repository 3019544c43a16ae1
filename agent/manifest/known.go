package manifest

import "errors"

// MaxTotal is how many layers and manifests those that are kept name together. Each takes some 100
// bytes for as long as the image is there: all of them a quarter of what the container that reads has.
const MaxTotal = 1 << 18

// errTotal: the layers of an image are not kept.
var errTotal = errors.New("the images of this node have too many layers together")

// Known are manifests and indexes by their digest, so that each is read once. A nil one is none that can
// be used.
type Known struct {
	now, before map[string]*Manifest
	// total is what those of now name.
	total int
}

// Next returns what is known when all images are read again: what nobody gets of it is forgotten then.
func (k *Known) Next() *Known {
	next := &Known{now: map[string]*Manifest{}}
	if k != nil {
		next.before = k.now
	}
	return next
}

// Done forgets what was known before, and not got since.
func (k *Known) Done() { k.before = nil }

// Len returns how many are known.
func (k *Known) Len() int { return len(k.now) }

// Get returns what is known of a digest. One that had no room is not known if there is room.
func (k *Known) Get(digest string) (m *Manifest, ok bool) {
	if m, ok = k.now[digest]; ok {
		return m, true
	}
	if m, ok = k.before[digest]; !ok || m != nil && m.left > 0 && k.total+m.left <= MaxTotal {
		return nil, false
	}
	return k.Put(digest, m), true
}

// Put keeps what was read, and returns it as it is kept: without its lists if there is no room. Without a
// digest it is not known later, and takes room all the same.
func (k *Known) Put(digest string, m *Manifest) *Manifest {
	if m != nil {
		size := len(m.Layers) + len(m.Manifests)
		if k.total+size > MaxTotal {
			m, size = &Manifest{Config: m.Config, Unknown: errTotal, left: size}, 0
		}
		k.total += size
	}
	if digest != "" {
		k.now[digest] = m
	}
	return m
}
