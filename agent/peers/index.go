package peers

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// maxNodes is how many nodes are known: of each of the others, nothing is.
const maxNodes = 2000

// digest is half of a SHA-256: others are not asked for.
type digest [16]byte

// digestOf returns the digest in a text, which may go on behind it.
func digestOf(text string) (d digest, ok bool) {
	encoded, ok := strings.CutPrefix(text, "sha256:")
	if !ok || len(encoded) < 64 {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(encoded[:2*len(d)]))
	return d, err == nil
}

// peer is a node that serves layers.
type peer struct {
	name, address, zone string
	keys                []string
	layers              []digest
	// renewed is when its NodeLayers changed last, on the clock of this node; silent for three times
	// every, it does not count.
	renewed time.Time
	every   time.Duration
	there   time.Time // RenewTime
}

// Index has the peers, from NodeLayers. It is a cache.ReflectorStore.
type Index struct {
	self, zone string
	now        func() time.Time

	mu      sync.RWMutex
	peers   map[string]*peer
	keys    map[string]*peer
	holders map[digest]map[*peer]struct{}
}

// NewIndex returns the index of the node with that name, in that zone; "" for none.
func NewIndex(self, zone string) *Index {
	return &Index{
		self: self, zone: zone, now: time.Now, peers: map[string]*peer{}, keys: map[string]*peer{}, holders: map[digest]map[*peer]struct{}{},
	}
}

// Run follows NodeLayers until the context is done.
func (i *Index) Run(ctx context.Context, base *rest.Config) error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	config := rest.CopyConfig(base)
	config.APIPath, config.GroupVersion = "/apis", &v1alpha1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return err
	}
	source := cache.NewListWatchFromClient(client, v1alpha1.NodeLayersResource.Resource, "", fields.Everything())
	cache.NewReflectorWithOptions(source, &v1alpha1.NodeLayers{}, i, cache.ReflectorOptions{}).RunWithContext(ctx)
	return nil
}

// Add is Update.
func (i *Index) Add(object any) error { return i.Update(object) }

// Update takes NodeLayers over.
func (i *Index) Update(object any) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.set(object.(*v1alpha1.NodeLayers))
	return nil
}

// Delete forgets them.
func (i *Index) Delete(object any) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.remove(object.(*v1alpha1.NodeLayers).Name)
	return nil
}

// Replace takes over a list.
func (i *Index) Replace(list []any, _ string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	listed := map[string]bool{}
	for _, object := range list {
		listed[object.(*v1alpha1.NodeLayers).Name] = true
	}
	for name := range i.peers {
		if !listed[name] {
			i.remove(name)
		}
	}
	for _, object := range list {
		i.set(object.(*v1alpha1.NodeLayers))
	}
	return nil
}

// Resync does nothing.
func (i *Index) Resync() error { return nil }

func (i *Index) set(object *v1alpha1.NodeLayers) {
	old := i.peers[object.Name]
	i.remove(object.Name)
	spec := &object.Spec
	// What the apiserver has not checked, because of an older schema, does not count either.
	if spec.Peer == nil || object.Name == i.self || len(i.peers) >= maxNodes || len(object.Validate()) > 0 {
		return
	}
	p := &peer{
		name: object.Name, address: spec.Peer.Address, zone: spec.Peer.Zone, keys: spec.Peer.Keys,
		renewed: i.now(), every: time.Duration(spec.RenewSeconds) * time.Second, there: spec.RenewTime.Time,
	}
	if old != nil && old.there.Equal(p.there) {
		p.renewed = old.renewed
	}
	i.peers[p.name] = p
	for _, k := range p.keys {
		if i.keys[k] == nil { // nobody takes over another's
			i.keys[k] = p
		}
	}
	for _, text := range spec.Layers {
		d, ok := digestOf(text)
		if !ok {
			continue
		}
		if i.holders[d] == nil {
			i.holders[d] = map[*peer]struct{}{}
		}
		i.holders[d][p] = struct{}{}
		p.layers = append(p.layers, d)
	}
}

func (i *Index) remove(name string) {
	p := i.peers[name]
	if p == nil {
		return
	}
	delete(i.peers, name)
	for _, k := range p.keys {
		if i.keys[k] == p {
			delete(i.keys, k)
		}
	}
	for _, d := range p.layers {
		if delete(i.holders[d], p); len(i.holders[d]) == 0 {
			delete(i.holders, d)
		}
	}
}

func (i *Index) fresh(p *peer) bool { return i.now().Sub(p.renewed) < 3*p.every }

// nodeOf returns which node has a key; "" if none has.
func (i *Index) nodeOf(key string) string {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if p := i.keys[key]; p != nil && i.fresh(p) {
		return p.name
	}
	return ""
}

// of returns the peers that have a layer, those of the zone of this node first.
func (i *Index) of(layer string) (found []*peer) {
	d, ok := digestOf(layer)
	if !ok {
		return nil
	}
	i.mu.RLock()
	defer i.mu.RUnlock()
	for p := range i.holders[d] {
		if i.fresh(p) {
			found = append(found, p)
		}
	}
	rand.Shuffle(len(found), func(a, b int) { found[a], found[b] = found[b], found[a] })
	slices.SortStableFunc(found, func(a, b *peer) int { return i.far(a) - i.far(b) })
	return found
}

func (i *Index) far(p *peer) int {
	if p.zone == i.zone {
		return 0
	}
	return 1
}
