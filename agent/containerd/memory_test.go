package containerd

import (
	"fmt"
	"os"
	"testing"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/internal/limit"
	"github.com/layer-locality/layer-locality/agent/manifest"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// socketKey is where the child of TestMemory finds the socket of the daemon.
const socketKey = "TEST_CONTAINERD_SOCKET"

// many are images, each with an index, three records, and so many layers.
type many struct {
	images, shared, own int
	// dropped: the blobs of layers are not there any more.
	dropped bool
	// unknown is of how many images the layers have no room, beside the two that the index names.
	unknown int
}

// Many images, and those of many layers, which anybody may have pulled, are read and handed over in the
// memory that the DaemonSet gives. The child is what reads, without the daemon.
func TestMemory(t *testing.T) {
	if os.Getenv("FULL") == "" && os.Getenv(socketKey) == "" {
		t.Skip("takes a minute of a processor: FULL=1, as make test-all sets it")
	}
	for name, m := range map[string]many{
		"10,000 images":                   {images: 10_000, shared: 5, own: 5},
		"1,500 images of 127 layers":      {images: 1_500, own: 127},
		"16,384 images, each of a layer":  {images: maxImages, own: 1},
		"2,000 images of 512 layers each": {images: 2_000, own: 512, dropped: true, unknown: 2_000 - manifest.MaxTotal/(512+2)},
	} {
		t.Run(name, func(t *testing.T) {
			if socket := os.Getenv(socketKey); socket != "" {
				readsMany(t, socket, m)
				return
			}
			testMemory(t, m)
		})
	}
}

func testMemory(t *testing.T, m many) {
	d := start(t)
	for i := range m.images {
		name, layers := fmt.Sprint("image-", i), []string{}
		for l := range m.shared {
			layers = append(layers, fmt.Sprintf("base-%d-%d", i%100, l))
		}
		for l := range m.own {
			layers = append(layers, fmt.Sprintf("own-%d-%d", i, l))
		}
		if !m.dropped {
			d.fetched(layers...)
		}
		target := d.index("index-"+name, "other/other "+digest("never-"+name), d.manifest(name, layers...))
		d.unpacked(name, "overlayfs")
		repository := "registry.example.com/a-team/" + name
		d.record(target, repository+":v1", repository+"@"+target, digest("config of "+name))
	}
	limit.Child(t, socketKey+"="+d.socket)
}

// readsMany is the child.
func readsMany(t *testing.T, socket string, m many) {
	r, err := NewReader(socket, "k8s.io")
	must(t, err)
	defer r.Close()
	writer := handover.NewWriter(t.TempDir())
	for range 3 {
		r.relist.Store(true)
		result, err := r.Read(t.Context())
		must(t, err)
		spec := result.Contents.Spec(0, v1alpha1.MaxNodeListBytes)
		if layers := m.shared*100 + m.own*(m.images-m.unknown); int(spec.TotalImages) != m.images || int(spec.TotalLayers) != layers || result.Skipped[handover.NoLayers]+result.Skipped[handover.NoManifest] != m.unknown || result.Incomplete {
			t.Fatalf("%d images, %d layers, skipped %v; want %d, %d, %d", spec.TotalImages, spec.TotalLayers, result.Skipped, m.images, layers, m.unknown)
		}
		must(t, writer.WriteReport(&handover.Report{Spec: spec}))
	}
	limit.Peak(t)
}
