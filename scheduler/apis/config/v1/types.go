package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:defaulter-gen=true

// LayerLocalityArgs holds the arguments of the LayerLocality plugin.
type LayerLocalityArgs struct {
	metav1.TypeMeta `json:",inline"`

	// MinImageBytes is the size, in compressed bytes, below which the images of
	// a pod lose influence: a node that holds all of a pod's images gets 100
	// points from this size on, and proportionally fewer below it. It keeps
	// small images from overruling balance. Default 100000000 (100 MB).
	// +optional
	MinImageBytes *int64 `json:"minImageBytes,omitempty"`

	// UnknownImageBytes is the size, in compressed bytes, that an image is taken
	// to have while nothing is known about it. It matters only if pods with that
	// image were placed already: their nodes are pulling it.
	// Default 100000000 (100 MB).
	// +optional
	UnknownImageBytes *int64 `json:"unknownImageBytes,omitempty"`

	// LoadPenalty is how many points a node loses for each percent by which its
	// load exceeds the mean of the feasible nodes. Load is what is requested of CPU or
	// of memory, whichever is more, or the number of pods in percent of those that the
	// node can hold. The points are for a pod that requests as much as
	// their pods do on average: one that requests more or less (again, of CPU or of
	// memory) costs in proportion, from a quarter to four times. It keeps locality
	// from unbalancing the cluster. 0 switches it off; at most 100. Default 3.
	// +optional
	LoadPenalty *int32 `json:"loadPenalty,omitempty"`

	// NoRequestPenalty is how many points a node loses for each container without
	// a CPU request that it has more than the mean of the feasible nodes:
	// LoadPenalty does not see them, and they must not all go to one node either.
	// 0 switches it off; at most 100. Default 2.
	// +optional
	NoRequestPenalty *int32 `json:"noRequestPenalty,omitempty"`

	// LinkPenalty is the weight, in percent, of a byte that the pod has to wait
	// for because a node's link is busy with other pulls, relative to a byte that
	// has to be pulled. Only waiting longer than a pull of all of the pod's
	// images over an idle link counts. 0 switches it off; at most 1000.
	// Default 100.
	// +optional
	LinkPenalty *int32 `json:"linkPenalty,omitempty"`

	// MaxWaitingPods is how many pods may wait on one node for a layer that is
	// being pulled there: as long as there are fewer, the layer counts as if it
	// were present for the next pod. 0 makes layers count only once they have
	// arrived. More than the kubelets' registryBurst makes pods wait for the next
	// attempt. Default 10.
	// +optional
	MaxWaitingPods *int32 `json:"maxWaitingPods,omitempty"`

	// JoinsDownloads means that nodes download a layer once although two images that are
	// pulled at the same time need it. Then a layer that any placed pod brings to a node
	// counts as arriving there; otherwise it counts for pods with the same image only. It
	// is for nodes that do not state it themselves: nodes with the label
	// layerlocality.io/joins-downloads (true or false) do, and so do nodes with containerd,
	// which joins downloads. Upstream's CRI-O does not; that of this project does where
	// images have a common base; with serializeImagePulls there is nothing to join.
	// Default false.
	// +optional
	JoinsDownloads *bool `json:"joinsDownloads,omitempty"`

	// LayerReuse is when nodes that state no layers, and whose images are known from
	// ImageManifests, use a layer again for another image. Digest: whatever is below it.
	// Chain: only above the same layers, from the first one on, as containerd does with
	// discard_unpacked_layers. Nodes with a layer-agent state it themselves. The value of the
	// first profile counts. Default Digest.
	// +optional
	LayerReuse *string `json:"layerReuse,omitempty"`

	// NodeLayers is whether the report of layer-agent counts in place of a node's
	// NodeStatus. Nothing changes where none is installed. The value of the first profile
	// counts. Default true.
	// +optional
	NodeLayers *bool `json:"nodeLayers,omitempty"`

	// ArrivalTimeout is how long the layers of a placed pod count as arriving while
	// its kubelet does not pull: it has not taken the pod yet, or waits for a volume, a
	// network or an init container. Default 10m.
	// +optional
	ArrivalTimeout *metav1.Duration `json:"arrivalTimeout,omitempty"`

	// ReportTimeout is how long the layers of a pod that started count as present
	// without a report of the node. It bridges the time to the node's next status
	// update. Default 2m.
	// +optional
	ReportTimeout *metav1.Duration `json:"reportTimeout,omitempty"`

	// NodeStatusMaxImages is how many images the kubelets list in NodeStatus at most:
	// their nodeStatusMaxImages. A node that lists as many may have others, which are no
	// larger. 0 means that nodes list all. Default 50.
	// +optional
	NodeStatusMaxImages *int32 `json:"nodeStatusMaxImages,omitempty"`

	// UnlistedTimeout is how long an image counts as present, after its last use, that a
	// node has and may leave out of its status (nodeStatusMaxImages), unless there are
	// signs that the kubelet removes images. 0 means that only what nodes list counts.
	// Default 24h.
	// +optional
	UnlistedTimeout *metav1.Duration `json:"unlistedTimeout,omitempty"`

	// WaitForManifest is how long a pod is kept out of the scheduling queue at most,
	// once, while nothing is known about one of its images and a resolver may still
	// find out. An image is waited for once in ten minutes, and none for a while when
	// the answers about three in a row did not come. 0 holds no pod; at most 1m.
	// Default 1s.
	// +optional
	WaitForManifest *metav1.Duration `json:"waitForManifest,omitempty"`

	// ShortNames are aliases of repositories, as in the [aliases] table of the
	// nodes' registries.conf.
	// +optional
	// +listType=map
	// +listMapKey=name
	ShortNames []ShortName `json:"shortNames,omitempty"`

	// UnqualifiedRegistries are the registries that a name without registry may
	// belong to, as unqualified-search-registries in the nodes' registries.conf.
	// The first under which the image is known counts. Default ["docker.io"].
	// +optional
	// +listType=atomic
	UnqualifiedRegistries []string `json:"unqualifiedRegistries,omitempty"`

	// Mirrors are other names under which nodes may report the same images.
	// +optional
	// +listType=map
	// +listMapKey=prefix
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// ShortName is an alias for a repository.
type ShortName struct {
	// Name is the alias as pods use it, without tag and digest: "fedora".
	Name string `json:"name"`
	// Repository is what it stands for: "registry.fedoraproject.org/fedora".
	Repository string `json:"repository"`
}

// Mirror has the other names under which the images below a prefix may be found.
type Mirror struct {
	// Prefix is a registry, or the beginning of a repository up to a slash:
	// "docker.io", "quay.io/team".
	Prefix string `json:"prefix"`
	// Locations replace the prefix, one after the other:
	// "mirror.example.com/docker-hub".
	Locations []string `json:"locations"`
}
