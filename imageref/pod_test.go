package imageref

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestOfPod(t *testing.T) {
	volume := func(reference string, policy v1.PullPolicy) v1.Volume {
		return v1.Volume{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: reference, PullPolicy: policy}}}
	}
	got := OfPod(&v1.PodSpec{
		InitContainers: []v1.Container{{Image: "init"}, {Image: "eager", ImagePullPolicy: v1.PullIfNotPresent}},
		Containers: []v1.Container{
			{Image: "app", ImagePullPolicy: v1.PullNever}, {Image: "eager", ImagePullPolicy: v1.PullAlways}, {Image: ""},
			{Image: "never", ImagePullPolicy: v1.PullNever}, {Image: "app"}, {Image: "eager", ImagePullPolicy: v1.PullNever},
		},
		EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Image: "debug"}}},
		Volumes:             []v1.Volume{{}, volume("", v1.PullAlways), volume("data", v1.PullAlways), volume("never", v1.PullNever)},
	})
	want := []PodImage{{"init", ""}, {"eager", v1.PullAlways}, {"app", ""}, {"never", v1.PullNever}, {"data", v1.PullAlways}}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := OfPod(&v1.PodSpec{}); len(got) != 0 {
		t.Errorf("an empty pod has %v", got)
	}
}

func TestOfPodIsBounded(t *testing.T) {
	var spec v1.PodSpec
	for i := range MaxImages + 10 {
		spec.Containers = append(spec.Containers, v1.Container{Image: fmt.Sprint("image-", i)})
	}
	spec.Containers = append(spec.Containers, v1.Container{Image: "image-0", ImagePullPolicy: v1.PullAlways})
	got := OfPod(&spec)
	if len(got) != MaxImages || got[0].PullPolicy != v1.PullAlways || got[MaxImages-1].Name != fmt.Sprint("image-", MaxImages-1) {
		t.Errorf("%d images, first %v", len(got), got[0])
	}
}

// The longest names: as many count as MaxNames has room for; shorter ones that come later may find room.
func TestNamesOfPodAreBounded(t *testing.T) {
	var spec v1.PodSpec
	for i := range 100 {
		spec.Containers = append(spec.Containers, v1.Container{Image: fmt.Sprintf("%0*d", MaxLength, i)})
	}
	spec.Containers = append(spec.Containers, v1.Container{Image: "more" + strings.Repeat("x", 1<<20)})
	if got := OfPod(&spec); len(got) != MaxNames/MaxLength {
		t.Errorf("%d names of %d characters count, want %d", len(got), MaxLength, MaxNames/MaxLength)
	}
	slices.Reverse(spec.Containers)
	if got := OfPod(&spec); len(got) < MaxNames/MaxLength-1 {
		t.Errorf("one with an endless name leaves room for %d, want at least %d with it", len(got), MaxNames/MaxLength-1)
	}
}
