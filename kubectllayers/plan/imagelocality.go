package plan

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
)

// In bytes, of what the container runtime states as an image's size: uncompressed on
// CRI-O, compressed on containerd.
const (
	// sumThreshold is the sum up to which a node gets nothing.
	sumThreshold = 23 << 20
	// containerLimit is the sum for each container beyond which a node gets no more.
	containerLimit = 1000 << 20
)

// ImageLocalityRating is what kube-scheduler's in-tree plugin ImageLocality makes of one node.
type ImageLocalityRating struct {
	Node string
	// Points before the weight of the plugin, 0 to 100.
	Points int64
	// Renamed are the points if the node had the images under the names in the pod.
	Renamed int64
	// Why has a sentence for each image that the node has, and one for the sum.
	Why string
}

// ImageLocality returns the points that kube-scheduler's in-tree plugin ImageLocality gives the
// nodes of a cluster for a pod, and why, in the order given. All nodes count, also those on which
// the pod cannot run. It uses what the plugin uses: the names and sizes of images in Node objects.
//
// The formula is that of k8s.io/kubernetes/pkg/scheduler/framework/plugins/imagelocality
// of Kubernetes 1.36; the test compares with the plugin itself. For a pod with n containers,
// those that initialize included,
//
//	points = 100 (sum - 23 MiB) / (n 1000 MiB - 23 MiB)
//
// in whole numbers, with sum held between 23 MiB and n 1000 MiB. For each container and each
// image volume (which does not count in n) whose image a node has, sum grows by the size of
// the image, times the nodes that have it, divided by all nodes. The plugin compares names as
// text, after it has added ":latest" to those without a tag.
func ImageLocality(pod *v1.PodSpec, nodes []v1.Node) []ImageLocalityRating {
	containers := int64(len(pod.InitContainers) + len(pod.Containers))
	var images []image
	for _, name := range imageNames(pod) {
		images = append(images, find(name, nodes))
	}
	ratings := make([]ImageLocalityRating, len(nodes))
	for i := range nodes {
		node := &nodes[i]
		var named, meant int64
		var why []string
		for _, image := range images {
			scaled := image.scaled(image.named, node.Name, len(nodes))
			right := image.scaled(image.meant, node.Name, len(nodes))
			named, meant = named+scaled, meant+right
			if sentence := image.why(node.Name, len(nodes)); !slices.Contains(why, sentence) {
				why = append(why, sentence)
			}
		}
		rating := ImageLocalityRating{Node: node.Name, Points: points(named, containers), Renamed: points(meant, containers)}
		if named != meant {
			why = append(why, fmt.Sprintf("under the right name %d: %s", rating.Renamed, total(meant, containers)))
		} else if named > 0 {
			why = append(why, total(named, containers))
		}
		rating.Why = strings.Join(why, "; ")
		ratings[i] = rating
	}
	return ratings
}

// points is the plugin's formula for the sum of a pod with so many containers.
func points(sum, containers int64) int64 {
	limit := containers * containerLimit
	if limit <= sumThreshold {
		return 0 // no containers; the apiserver refuses such a pod
	}
	return 100 * (min(max(sum, sumThreshold), limit) - sumThreshold) / (limit - sumThreshold)
}

// total states how a sum relates to the bounds of the formula.
func total(sum, containers int64) string {
	text := "sum " + megabytes(sum)
	first := sumThreshold + (containers*containerLimit-sumThreshold+99)/100
	switch {
	case sum < sumThreshold:
		return text + ", below the threshold of " + megabytes(sumThreshold)
	case sum < first:
		return text + ", and the first point takes " + megabytes(first)
	case sum > containers*containerLimit:
		return text + ", above the limit of " + megabytes(containers*containerLimit)
	}
	return text
}

// imageNames returns the images of a pod in the order in which the plugin adds them up, one
// for each container: a name may be there more than once.
func imageNames(pod *v1.PodSpec) []string {
	var all []string
	for i := range pod.InitContainers {
		all = append(all, pod.InitContainers[i].Image)
	}
	for i := range pod.Containers {
		all = append(all, pod.Containers[i].Image)
	}
	for i := range pod.Volumes {
		if volume := pod.Volumes[i].Image; volume != nil {
			all = append(all, volume.Reference)
		}
	}
	return all
}

// image is an image of the pod.
type image struct {
	// wanted is the text that the plugin looks for.
	wanted string
	// named holds the nodes with an image of exactly that name, meant those with the image
	// that the pod means.
	named, meant holders
}

// holders are nodes that have an image.
type holders struct {
	// size in bytes, of the first node that has it: so does kube-scheduler's cache, which
	// keeps one size for a name.
	size  int64
	names map[string][]string // all names of the image, by node
}

func find(name string, nodes []v1.Node) image {
	found := image{wanted: name}
	// A colon before the last slash is that of a port.
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		found.wanted += ":latest"
	}
	means, err := imageref.Parse(name)
	for i := range nodes {
		for _, held := range nodes[i].Status.Images {
			if slices.Contains(held.Names, found.wanted) {
				found.named.add(nodes[i].Name, held)
			}
			if err == nil && slices.ContainsFunc(held.Names, func(name string) bool {
				parsed, err := imageref.Parse(name)
				return err == nil && parsed == means
			}) {
				found.meant.add(nodes[i].Name, held)
			}
		}
	}
	// A name that is no image reference still equals itself.
	if len(found.meant.names) < len(found.named.names) {
		found.meant = found.named
	}
	return found
}

func (h *holders) add(node string, image v1.ContainerImage) {
	if h.names == nil {
		h.names, h.size = map[string][]string{}, image.SizeBytes
	}
	if _, ok := h.names[node]; !ok {
		h.names[node] = image.Names
	}
}

// scaled is what a node gets for an image, in bytes.
func (image) scaled(h holders, node string, all int) int64 {
	if _, ok := h.names[node]; !ok {
		return 0
	}
	// In this order, as the plugin rounds.
	return int64(float64(h.size) * (float64(len(h.names)) / float64(all)))
}

func (i image) why(node string, all int) string {
	share := func(h holders) string {
		return fmt.Sprintf("%s x %d of %d nodes = %s", megabytes(h.size), len(h.names), all, megabytes(i.scaled(h, node, all)))
	}
	if _, ok := i.named.names[node]; ok {
		return i.wanted + ": " + share(i.named)
	}
	if held, ok := i.meant.names[node]; ok {
		return fmt.Sprintf("%q is none of its names %s: %s", i.wanted, strings.Join(shorten(held), ", "), share(i.meant))
	}
	return i.wanted + ": not there"
}

// shorten shortens digests to what a reader needs.
func shorten(names []string) []string {
	short := slices.Clone(names)
	for i, name := range short {
		if repository, digest, ok := strings.Cut(name, "@sha256:"); ok && len(digest) > 8 {
			short[i] = repository + "@sha256:" + digest[:8] + "…"
		}
	}
	return short
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
