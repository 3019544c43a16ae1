//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestFormats pulls every kind of image to n1, compares what CRI-O and the Node
// report with the registry's manifests, and then changes the kubelet's limits.
func TestFormats(t *testing.T) {
	t.Parallel()
	node := c.Node("n1")
	pulled := map[string]string{"pod": runPod(t, node)}

	other := v1.Platform{OS: "linux", Architecture: "arm64"}
	if runtime.GOARCH == other.Architecture {
		other.Architecture = "amd64"
	}
	index := func(prefix string, format images.Format) v1.ImageIndex {
		made, err := images.Index(
			build(t, images.Image{Format: format, Platform: other, Layers: layers(prefix+"-other", 70_000)}),
			build(t, images.Image{Format: format, Layers: layers(prefix, 40_000, 1<<20)}))
		must(t, err)
		return made
	}
	base := images.Layer{Name: "base", Size: 3 << 20}
	for name, image := range map[string]images.Image{
		"oci":          {Layers: layers("oci", 2<<20, 1<<20, 900, 0)},
		"docker":       {Format: images.Docker, Layers: layers("docker", 1500, 1<<20, 30)},
		"zstd":         {Compression: images.Zstd, Layers: layers("zstd", 1<<20, 5000)},
		"uncompressed": {Compression: images.Uncompressed, Layers: layers("uncompressed", 60_000, 6000)},
		"shared-1":     {Layers: append([]images.Layer{base}, layers("shared-1", 200_000)...)},
		"shared-2":     {Layers: append([]images.Layer{base}, layers("shared-2", 300_000, 3000)...)},
		"repeated":     {Layers: []images.Layer{{Name: "same", Size: 900}, {Name: "between", Size: 800}, {Name: "same", Size: 900}}},
		"200-layers":   {Layers: layers("200", slices.Repeat([]int64{300}, 200)...)},
	} {
		pulled[name] = push(t, "formats/"+name+":v1", build(t, image)).Reference
	}
	pulled["index by tag"] = push(t, "formats/index-tag:v1", index("index-tag", images.OCI)).Reference
	pulled["index by digest"] = push(t, "formats/index-digest:v1", index("index-digest", images.OCI)).ByDigest
	pulled["docker list by tag"] = push(t, "formats/list:v1",
		mutate.IndexMediaType(index("list", images.Docker), types.DockerManifestList)).Reference
	pulled["manifest by digest"] = push(t, "formats/digest:v1",
		build(t, images.Image{Layers: layers("digest", 123_456)})).ByDigest
	pull(t, node, slices.Collect(maps.Values(pulled))...)

	for _, name := range slices.Sorted(maps.Keys(pulled)) {
		t.Run(name, func(t *testing.T) { checkCRI(t, node, pulled[name]) })
	}
	t.Run("sharing", func(t *testing.T) {
		all := registryLayers(t, pulled["shared-1"], pulled["shared-2"])
		shared := 0
		for digest := range all[pulled["shared-1"]] {
			if _, both := all[pulled["shared-2"]][digest]; both {
				shared++
			}
		}
		if shared != 1 {
			t.Fatalf("the two images share %d layers: the test is wrong", shared)
		}
	})
	t.Run("200 layers, all reported", func(t *testing.T) {
		if n := len(registryLayers(t, pulled["200-layers"])[pulled["200-layers"]]); n != 200 {
			t.Fatalf("the image has %d different layers: the test is wrong", n)
		}
	})
	t.Run("recompressed", func(t *testing.T) { pulled["recompressed"] = testRecompressed(t, node) })
	t.Run("spoofed", func(t *testing.T) { pulled["spoofed"] = testSpoofed(t, node) })
	var confidential string
	var visible livetest.Layers
	t.Run("encrypted", func(t *testing.T) { confidential, visible = testEncrypted(t, node) })
	t.Run("artifact", func(t *testing.T) { pulled["artifact"] = testArtifact(t, node) })
	if t.Failed() {
		return // the rest depends on all of it
	}

	// What the Node reports, with the limits off: the cap in bytes counts every image on it.
	want := registryLayers(t, slices.Collect(maps.Values(pulled))...)
	want[confidential] = visible
	t.Run("node", func(t *testing.T) {
		waitNode(t, node, want)
		checkManagedFields(t, node.Name)
	})
	t.Run("limits", func(t *testing.T) { testLimits(t, node, want) })
}

// testRecompressed pulls one config with two compressions under one tag: the
// image ID stays, the layers must not.
func testRecompressed(t *testing.T, node *cluster.Node) string {
	const name = "formats/recompressed:v1"
	content := layers("recompressed", 80_000, 1<<20)
	pid := node.Runtime().PID()
	var id string
	seen := map[string]images.Compression{}
	for _, compression := range []images.Compression{images.Gzip, images.Zstd, images.Gzip} {
		pushed := push(t, name, build(t, images.Image{Compression: compression, Layers: content}))
		pull(t, node, pushed.Reference)
		checkCRI(t, node, pushed.Reference) // this fills CRI-O's cache
		for digest := range registryLayers(t, pushed.Reference)[pushed.Reference] {
			if first, known := seen[digest]; known && first != compression {
				t.Fatalf("layer %s comes with both compressions: the test is wrong", digest)
			}
			seen[digest] = compression
		}
		status := statusOf(t, node, pushed.Reference)
		if id = cmp.Or(id, status.GetId()); status.GetId() != id {
			t.Fatalf("the image has the IDs %s and %s: the test is wrong", id, status.GetId())
		}
	}
	if node.Runtime().PID() != pid {
		t.Errorf("CRI-O was restarted meanwhile")
	}
	// Leave the second one in place.
	pushed := push(t, name, build(t, images.Image{Compression: images.Zstd, Layers: content}))
	pull(t, node, pushed.Reference)
	checkCRI(t, node, pushed.Reference)
	return pushed.Reference
}

// testSpoofed pulls an image whose author claims layers for it.
func testSpoofed(t *testing.T, node *cluster.Node) string {
	const false1, false2 = "sha256:1111111111111111111111111111111111111111111111111111111111111111",
		"sha256:2222222222222222222222222222222222222222222222222222222222222222"
	image := build(t, images.Image{Layers: layers("spoofed", 50_000, 7000)})
	manifest, err := image.Manifest()
	must(t, err)
	honest := map[string]string{
		"org.opencontainers.image.title": "kept",
		"imageLayers.sha256":             "kept too: the prefix ends with a full stop",
		"imageLayer":                     "so is this one",
		"x-imageLayer.sha256":            "and this one",
	}
	annotations := map[string]string{
		livetest.AnnotationPrefix + false1: "1073741824",
		"IMAGELAYER." + false1:             "1",
		"imagelayer." + false2:             "2",
		"ImageLayer." + false2:             "3",
		"\u0131mageLayer." + false2:        "4", // upper case: I
		"imageLayer.":                      "",
		"imageLayer.anything":              "else",
		livetest.AnnotationPrefix + manifest.Layers[0].Digest.String(): "7",
	}
	maps.Copy(annotations, honest)
	pushed := push(t, "formats/spoofed:v1", mutate.Annotations(image, annotations))
	pull(t, node, pushed.Reference)
	checkCRI(t, node, pushed.Reference)
	_, others, err := livetest.FromCRI(statusOf(t, node, pushed.Reference))
	must(t, err)
	if !maps.Equal(others, honest) {
		t.Errorf("ImageStatus has the annotations %v besides layers, want those of the author without the reserved prefix: %v", others, honest)
	}
	return pushed.Reference
}

// testArtifact pulls an OCI artifact, whose blobs are its layers.
func testArtifact(t *testing.T, node *cluster.Node) string {
	artifact, err := images.Model(images.Layer{Name: "weights", Size: 90_000}, images.Layer{Name: "settings", Size: 9000})
	must(t, err)
	pushed := push(t, "formats/artifact:v1", artifact)
	pull(t, node, pushed.Reference)
	checkCRI(t, node, pushed.Reference)
	return pushed.Reference
}

// testLimits restarts the kubelet with other limits. They only change which
// layers the Node reports.
func testLimits(t *testing.T, node *cluster.Node, all map[string]livetest.Layers) {
	original, err := node.Kubelet().Settings()
	must(t, err)
	const minBytes, maxPerImage, maxNodeBytes = "nodeStatusImageLayersMinBytes", "nodeStatusImageLayersMaxPerImage", "nodeStatusImageLayersMaxNodeBytes"
	with := func(limits map[string]any) func(*cluster.Component) {
		return func(kubelet *cluster.Component) {
			kubelet.Config = maps.Clone(original.Config)
			for _, field := range []string{minBytes, maxPerImage, maxNodeBytes} {
				delete(kubelet.Config, field)
			}
			maps.Copy(kubelet.Config, limits)
		}
	}
	// largest keeps the n largest layers of each image that are large enough.
	largest := func(n int, atLeast int64) map[string]livetest.Layers {
		want := map[string]livetest.Layers{}
		for reference, layers := range all {
			order := bySize(layers)
			order = slices.DeleteFunc(order, func(digest string) bool { return layers[digest] < atLeast })
			want[reference] = livetest.Layers{}
			for _, digest := range order[max(0, len(order)-n):] {
				want[reference][digest] = layers[digest]
			}
		}
		return want
	}
	for _, test := range []struct {
		name   string
		limits map[string]any
		want   map[string]livetest.Layers
	}{
		// In an order in which each result differs from the one before.
		{"default", nil, largest(64, 1<<20)},
		{"MinBytes", map[string]any{minBytes: 50_000}, largest(64, 50_000)},
		{"MaxPerImage 0", map[string]any{minBytes: 0, maxPerImage: 0}, largest(0, 0)},
		{"MaxPerImage", map[string]any{minBytes: 0, maxPerImage: 3}, largest(3, 0)},
		{"MaxNodeBytes 0", map[string]any{minBytes: 0, maxNodeBytes: 0}, largest(0, 0)},
	} {
		t.Run(test.name, func(t *testing.T) {
			must(t, node.Kubelet().Restart(t.Context(), with(test.limits)))
			waitNode(t, node, test.want)
		})
	}
	t.Run("MaxNodeBytes", func(t *testing.T) {
		const limit = 3000
		must(t, node.Kubelet().Restart(t.Context(), with(map[string]any{minBytes: 0, maxPerImage: 512, maxNodeBytes: limit})))
		waitCapped(t, node, limit, all)
	})

	for field, values := range map[string][]any{
		minBytes:     {-1, "1Mi"},
		maxPerImage:  {-1, 513},
		maxNodeBytes: {-1, 256<<10 + 1},
	} {
		for _, value := range values {
			t.Run(fmt.Sprintf("invalid %s=%v", field, value), func(t *testing.T) {
				err := node.Kubelet().Restart(t.Context(), with(map[string]any{field: value}))
				if err == nil {
					t.Fatal("the kubelet serves with it")
				}
				if !strings.Contains(err.Error(), "ended early") || !strings.Contains(err.Error(), field) {
					t.Errorf("the end of the kubelet's log does not name %s: %v", field, err)
				}
			})
		}
	}
	// None of this has lost anything.
	must(t, node.Kubelet().Restart(t.Context(), func(kubelet *cluster.Component) { *kubelet = original }))
	waitNode(t, node, all)
}

// bySize orders digests from the smallest layer to the largest.
func bySize(layers livetest.Layers) []string {
	return slices.SortedFunc(maps.Keys(layers), func(a, b string) int {
		return cmp.Or(cmp.Compare(layers[a], layers[b]), cmp.Compare(a, b))
	})
}

// waitCapped waits until the Node reports the layers of these images as the cap
// in bytes allows: not more bytes, no layer smaller than one that is left out,
// and so many that one more would exceed the cap.
func waitCapped(t *testing.T, node *cluster.Node, limit int, all map[string]livetest.Layers) {
	union, images := livetest.Layers{}, map[string]int{}
	for _, layers := range all {
		for digest, size := range layers {
			union[digest] = size
			images[digest]++
		}
	}
	order := bySize(union)
	livetest.Eventually(t, settled, fmt.Sprintf("layers of Node %s take at most %d bytes", node.Name, limit), func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, client, node.Name)
		if err != nil {
			return err
		}
		stated := livetest.Layers{}
		for _, image := range list {
			layers, err := livetest.FromNode(image)
			if err != nil {
				return err
			}
			maps.Copy(stated, layers)
		}
		if len(stated) == 0 || len(stated) == len(union) {
			return fmt.Errorf("the Node states %d of %d layers", len(stated), len(union))
		}
		kept := order[len(order)-len(stated):]
		want := map[string]livetest.Layers{}
		for reference, layers := range all {
			want[reference] = livetest.Layers{}
			for _, digest := range kept {
				if size, has := layers[digest]; has {
					want[reference][digest] = size
				}
			}
		}
		if err := nodeHas(list, want); err != nil {
			return fmt.Errorf("not the %d largest layers: %w", len(kept), err)
		}
		growth, err := livetest.Growth(ctx, client, node.Name)
		if err != nil {
			return err
		}
		if growth > limit {
			return fmt.Errorf("layers take %d bytes, more than %d", growth, limit)
		}
		// A layer takes 84 to 88 bytes in each image, and the kubelet counts a
		// few bytes in advance for every image that has layers.
		next := order[len(order)-len(stated)-1]
		if most := growth + images[next]*88 + 3*len(list) + 8; most <= limit {
			return errors.New("the next smaller layer would fit too: " + next)
		}
		t.Logf("%s: %d of %d layers, %d bytes of %d", node.Name, len(stated), len(union), growth, limit)
		return nil
	})
}
