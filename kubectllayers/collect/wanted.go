package collect

import (
	"bytes"
	"context"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// wanted is what of NodeLayers matters to the images of some pods; nil for all.
type wanted struct {
	// layers by digest, names of images and digests of manifests as runtimes list them.
	layers, names map[string]bool
}

// wantedBy returns what matters to pods and to those that placed pods wait for: these are on their way. It
// returns nil if the ImageManifests lack one of these images for a node's platform, as its layers are then those that
// any node reports. Nodes, pods and ImageManifests have to be there.
func (c *Cluster) wantedBy(ctx context.Context, pods []*v1.Pod) *wanted {
	known, err := c.snapshotOf(ctx, locality.Moment{})
	if err != nil {
		return nil // Snapshot returns it
	}
	pods = slices.Clone(pods)
	for _, pod := range c.Pods {
		if waits(pod) {
			pods = append(pods, pod)
		}
	}
	platforms := map[index.Platform]bool{}
	for _, node := range c.Nodes {
		platforms[nodestatus.Platform(node)] = true
	}
	w := &wanted{layers: map[string]bool{}, names: map[string]bool{}}
	for _, image := range known.Wanted(pods...) {
		for platform := range platforms {
			if !slices.ContainsFunc(image.Manifests, func(m index.Manifest) bool { return m.Platform == platform || m.Platform == index.Platform{} }) {
				return nil
			}
		}
		for _, name := range image.Names {
			w.names[string(name)] = true
		}
		for _, manifest := range image.Manifests {
			for _, layer := range manifest.Layers {
				w.layers[layer.Digest] = true
			}
		}
	}
	return w
}

// waits reports whether a pod may wait for an image: one of its containers has no status, or has not started.
func waits(pod *v1.Pod) bool {
	waiting := func(containers []v1.Container, statuses []v1.ContainerStatus) bool {
		return len(statuses) < len(containers) || slices.ContainsFunc(statuses, func(s v1.ContainerStatus) bool { return s.State.Waiting != nil })
	}
	return pod.Status.Phase != v1.PodRunning || waiting(pod.Spec.InitContainers, pod.Status.InitContainerStatuses) || waiting(pod.Spec.Containers, pod.Status.ContainerStatuses)
}

// lines reports which of a NodeLayers' layers and images matter, by their texts; nil if all do. An image matters if it has
// a name that does, or a layer, which has to be the first one if layers are used in chains. Of one with such a name, all
// layers matter: without any, its name would stand for those of its manifest. One that cannot be read is kept: it counts as
// not valid.
func (w *wanted) lines(reuse v1alpha1.LayerReuse, layers, images [][]byte) (keptLayers, keptImages []bool) {
	if w == nil {
		return nil, nil
	}
	has := make([]bool, len(layers))
	for i, text := range layers {
		digest, _, _ := bytes.Cut(text, []byte(" "))
		has[i] = w.layers[string(digest)]
	}
	keptLayers, keptImages = slices.Clone(has), make([]bool, len(images))
	for i, text := range images {
		list, names, _ := bytes.Cut(text, []byte(" "))
		places, ok := placesIn(list, len(layers))
		named := !ok
		for name := range bytes.SplitSeq(names, []byte(" ")) {
			named = named || w.names[string(name)]
		}
		if named {
			for _, place := range places {
				keptLayers[place] = true
			}
		} else if reuse == v1alpha1.ReuseInChains {
			places = places[:1]
		}
		keptImages[i] = named || slices.ContainsFunc(places, func(place int) bool { return has[place] })
	}
	return keptLayers, keptImages
}

// placesIn reads places below n that are separated by commas. ok is false if these are none.
func placesIn(list []byte, n int) (places []int, ok bool) {
	for text := range bytes.SplitSeq(list, []byte(",")) {
		place, err := strconv.Atoi(string(text))
		if err != nil || place < 0 || place >= n {
			return nil, false
		}
		places = append(places, place)
	}
	return places, true
}
