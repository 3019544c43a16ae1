package collect

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/inspect"
)

const platform = "linux/amd64"

var base = strings.Repeat("base", 250) // 1,000 bytes

func newClient(t *testing.T, r *registrytest.Registry) *inspect.Client {
	t.Helper()
	client, err := inspect.NewClient(inspect.Options{RegistriesConf: r.Conf})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestLimited: a registry that answers that there are too many requests is not
// asked again.
func TestLimited(t *testing.T) {
	r := registrytest.New(t)
	r.Limit()
	var found inspect.Inventory
	for i := range 10 * inspect.Concurrency {
		found.Images = append(found.Images, fmt.Sprintf("%s/app:%d", r.Host, i))
	}
	result := Images(t.Context(), Config{Client: newClient(t, r), Platform: platform}, found)
	if len(result.Errs) != len(found.Images) || len(result.Images) > 0 {
		t.Errorf("%d errors for %d images, and the images %v", len(result.Errs), len(found.Images), result.Images)
	}
	// Only requests that had already started.
	if asked := len(r.Questions()); asked < 1 || asked > inspect.Concurrency {
		t.Errorf("%d of %d images were asked", asked, len(found.Images))
	}
	notAsked := 0
	for _, err := range result.Errs {
		if strings.Contains(err.Error(), ": not asked: registry "+r.Host+" limits the rate") {
			notAsked++
		}
	}
	if notAsked < len(found.Images)-inspect.Concurrency {
		t.Errorf("%d of %d images were not asked: %v", notAsked, len(found.Images), result.Errs)
	}
}

// TestKnown: images that the cluster lists are not looked up, and one request
// is enough for all names of an image.
func TestKnown(t *testing.T) {
	r := registrytest.New(t)
	known, fresh := r.Image(base, "known"), r.Image(base, "fresh")
	knownDigest := registrytest.Digest(t, known)
	r.Push("fresh:1", fresh)
	r.Push("node:1", r.Image(base, "moved")) // not the image on the node
	onNode := r.Image(base, "node")
	r.Push("node:old", onNode)
	_, index := r.PushIndex("multi:1", map[string]v1.Image{"linux/amd64": r.Image(base, "amd")})
	repository := func(name string) string { return r.Host + "/" + name }

	spec := v1alpha1.ImageManifestSpec{Digest: knownDigest, Platform: platform, Layers: []v1alpha1.ImageLayer{{Digest: registrytest.Layer(t, base), Size: 1000}}}
	otherPlatform := v1alpha1.ImageManifestSpec{Digest: registrytest.Digest(t, fresh), Platform: "linux/arm64", Layers: spec.Layers}
	references := func(names ...string) v1alpha1.ImageManifestStatus {
		var status v1alpha1.ImageManifestStatus
		for _, name := range names {
			status.References = append(status.References, v1alpha1.ImageReference{Name: repository(name), Digest: "sha256:" + strings.Repeat("1", 64)})
		}
		return status
	}
	found := inspect.Inventory{
		Images: []string{repository("known:1"), repository("fresh:1"), "fresh:1", repository("multi:1")},
		Nodes: [][]string{
			{repository("known@" + knownDigest), repository("known:1"), repository("known:node")},
			{repository("known@sha256:" + strings.Repeat("1", 64))}, // the index that led to the manifest
			{repository("node@" + registrytest.Digest(t, onNode)), repository("node:1")},
			{repository("node@" + registrytest.Digest(t, onNode)), repository("node:other")},
			{repository("multi@" + index), repository("multi:1")},
			{"<none>@<none>"}, {},
		},
		Manifests: []v1alpha1.ImageManifest{
			{Spec: spec, Status: references("known:1", "known:unused")},
			{Spec: otherPlatform, Status: references("fresh:1")},
			{Status: references("multi:1")}, // unresolved
		},
	}
	var progress []int
	result := Images(t.Context(), Config{Client: newClient(t, r), Platform: platform, Progress: func(done, all int) { progress = append(progress, done, all) }}, found)

	type line struct {
		image   string
		aliases []string
		digest  string
	}
	var got []line
	for _, image := range result.Images {
		got = append(got, line{image.Image, image.Aliases, image.Digest})
	}
	none := []string{}
	if want := []line{
		{repository("fresh:1"), none, registrytest.Digest(t, fresh)},
		{repository("known:1"), []string{repository("known:node")}, knownDigest},
		{repository("multi:1"), none, registrytest.Digest(t, r.Image(base, "amd"))},
		{repository("node:1"), []string{repository("node:other")}, registrytest.Digest(t, onNode)},
	}; !reflect.DeepEqual(got, want) || len(result.Errs) > 0 {
		t.Errorf("errors %v\ngot  %v\nwant %v", result.Errs, got, want)
	}
	if want := map[string]int{
		"fresh 1": 1, "multi 1": 1, "multi " + registrytest.Digest(t, r.Image(base, "amd")): 1, "node " + registrytest.Digest(t, onNode): 1,
	}; !reflect.DeepEqual(r.Questions(), want) || result.Asked != 3 {
		t.Errorf("asked about %d: %v, want %v", result.Asked, r.Questions(), want)
	}
	if want := []int{1, 7, 2, 7, 3, 7, 4, 7, 5, 7, 6, 7, 7, 7}; !slices.Equal(progress, want) {
		t.Errorf("progress %d", progress)
	}
}
