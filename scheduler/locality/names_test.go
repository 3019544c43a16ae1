package locality

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// TestCanonical: what is no name is left out, and what means the same is there once.
func TestCanonical(t *testing.T) {
	got := canonical("quay.io/a:1", "NO NAME", "docker.io/library/b:1", "b:1", "quay.io/a@"+digestA, "quay.io/other@"+digestA)
	if want := []imageref.Canonical{"quay.io/a:1", "docker.io/library/b:1", digestA}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestDigestsOf: of names that are known, only digests are yielded; whoever has enough gets no
// more.
func TestDigestsOf(t *testing.T) {
	names := []string{"quay.io/a:1", "quay.io/a@" + digestA}
	more := []imageref.Canonical{"quay.io/b:1", digestB}
	want := []imageref.Canonical{digestA, digestB}
	for most := 1; most <= len(want); most++ {
		var got []imageref.Canonical
		for name := range digestsOf(names, more) {
			if got = append(got, name); len(got) == most {
				break
			}
		}
		if !slices.Equal(got, want[:most]) {
			t.Errorf("%d of them: %q, want %q", most, got, want[:most])
		}
	}
	if got := slices.Collect(digestsOf(names, more)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestImagesInUse: a container has its image by digest; by name only if it has none, and not at
// all before the runtime has the image.
func TestImagesInUse(t *testing.T) {
	status := func(image, id string) v1.ContainerStatus { return v1.ContainerStatus{Image: image, ImageID: id} }
	pod := &v1.Pod{}
	pod.Status.ContainerStatuses = []v1.ContainerStatus{
		status("quay.io/a:1", "quay.io/a@"+digestA), status("quay.io/waits:1", ""), status("quay.io/b:1", "NO NAME"), status("NO NAME", "NO NAME"),
	}
	pod.Status.InitContainerStatuses = []v1.ContainerStatus{status("quay.io/c:1", "quay.io/c@"+digestB)}
	var got []imageref.Canonical
	for _, names := range imagesInUse(pod) {
		if len(names) != 1 {
			t.Errorf("names %q", names)
		}
		got = append(got, names...)
	}
	if want := []imageref.Canonical{digestA, "quay.io/b:1", digestB}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	n := 0
	for range statuses(pod) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d containers after the second was enough", n)
	}
}

// TestProvenanceRank: better provenance comes first, and what is no provenance last.
func TestProvenanceRank(t *testing.T) {
	for i, e := range []Provenance{FromLayers, FromManifest, FromUse, FromName, "nothing"} {
		if got := e.rank(); got != i {
			t.Errorf("%s has rank %d, want %d", e, got, i)
		}
	}
}
