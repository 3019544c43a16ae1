package imageref

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// A pod is untrusted input: its author is anyone who may create pods. So these bound which of its
// images count.
const (
	MaxImages = 256
	// MaxNames bounds the bytes of their names together. A hundred names of usual length have less;
	// controllers keep the names of every pod and template in memory.
	MaxNames = 16 << 10
)

// PodImage is an image as a pod names it.
type PodImage struct {
	Name string
	// PullPolicy is the most eager one of the containers that use the image:
	// Always if any has it, Never only if all have it.
	PullPolicy v1.PullPolicy
}

// Append adds an image, unless there are MaxImages or their names have MaxNames. A name that is there
// stays once, with the more eager policy. Empty names do not count; pod templates may contain them.
func Append(images []PodImage, name string, policy v1.PullPolicy) []PodImage {
	total := nameBytes(name)
	i := slices.IndexFunc(images, func(known PodImage) bool {
		total += nameBytes(known.Name)
		return known.Name == name
	})
	switch {
	case name == "":
	case i < 0 && len(images) < MaxImages && total <= MaxNames:
		images = append(images, PodImage{name, policy})
	case i >= 0 && eagerness(policy) > eagerness(images[i].PullPolicy):
		images[i].PullPolicy = policy
	}
	return images
}

// nameBytes is how many bytes a name counts. A longer name than is valid is read no further.
func nameBytes(name string) int { return min(len(name), MaxLength+1) }

// OfPod returns the images of init containers, containers and image volumes, each
// name once, in this order and as many as Append adds. Ephemeral containers do not
// count, because they are added to a pod that already has a node.
func OfPod(spec *v1.PodSpec) []PodImage {
	images := make([]PodImage, 0, len(spec.InitContainers)+len(spec.Containers))
	add := func(name string, policy v1.PullPolicy) { images = Append(images, name, policy) }
	for i := range spec.InitContainers {
		add(spec.InitContainers[i].Image, spec.InitContainers[i].ImagePullPolicy)
	}
	for i := range spec.Containers {
		add(spec.Containers[i].Image, spec.Containers[i].ImagePullPolicy)
	}
	for i := range spec.Volumes {
		if volume := spec.Volumes[i].Image; volume != nil {
			add(volume.Reference, volume.PullPolicy)
		}
	}
	return images
}

// PulledByPod returns the images of OfPod that a node may pull. The names of others are no registry's concern.
func PulledByPod(spec *v1.PodSpec) []PodImage {
	return slices.DeleteFunc(OfPod(spec), func(image PodImage) bool { return image.PullPolicy == v1.PullNever })
}

func eagerness(policy v1.PullPolicy) int {
	switch policy {
	case v1.PullAlways:
		return 2
	case v1.PullNever:
		return 0
	}
	return 1
}
