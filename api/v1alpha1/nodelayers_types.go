package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeLayers lists the images that a node holds and the layers of each. It is named
// after the Node and owned by it. The agent on that node alone writes it, whenever the
// images change and otherwise every RenewSeconds: readers use it only while RenewTime moves.
//
// Layers and images are texts, not structures: an apiserver keeps a text in a third of the
// memory.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodelayers,singular=nodelayers,scope=Cluster,shortName=nl,categories=layerlocality
// +kubebuilder:printcolumn:name="Images",type=integer,JSONPath=`.spec.totalImages`
// +kubebuilder:printcolumn:name="Layers",type=integer,JSONPath=`.spec.totalLayers`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.spec.totalBytes`,description="compressed bytes of all layers, each once"
// +kubebuilder:printcolumn:name="Runtime",type=string,JSONPath=`.spec.runtime`
// +kubebuilder:printcolumn:name="Reuse",type=string,JSONPath=`.spec.reuse`
// +kubebuilder:printcolumn:name="Renewed",type=date,JSONPath=`.spec.renewTime`
// +kubebuilder:printcolumn:name="Renews",type=integer,priority=1,JSONPath=`.spec.renewSeconds`,description="every so many seconds, if nothing changes"
type NodeLayers struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeLayersSpec `json:"spec"`
}

// LayerReuse is when a node uses a layer that it has for another image.
//
// +kubebuilder:validation:Enum=Digest;Chain
type LayerReuse string

const (
	// ReuseByDigest means whatever is below it.
	ReuseByDigest LayerReuse = "Digest"
	// ReuseInChains means only above the same layers, from the first one on, as containerd does
	// with discard_unpacked_layers.
	ReuseInChains LayerReuse = "Chain"
)

// NodePeer is where a node serves layers to other nodes (package agent/peers).
type NodePeer struct {
	// Address is an IP address and a port: "10.1.2.3:9451".
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(\[[0-9a-f:.]+\]|[0-9.]+):[0-9]{1,5}$`
	Address string `json:"address"`
	// Keys are the SHA-256 of the public keys that the node has, as it asks and as it serves, in
	// hexadecimal digits.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[0-9a-f]{64}$`
	Keys []string `json:"keys"`
	// Zone is that of the node, its label topology.kubernetes.io/zone. Missing if it has none, and before Kubernetes 1.35.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z]([0-9A-Za-z_.-]*[0-9A-Za-z])?$`
	Zone string `json:"zone,omitempty"`
}

// NodeLayersSpec is what a node holds.
//
// +kubebuilder:validation:XValidation:rule="(has(self.layers) ? self.layers.map(l, size(l) + 3).sum() : 0) + (has(self.images) ? self.images.map(i, size(i) + 3).sum() : 0) <= 131072",message="both lists may take 128 KiB as JSON"
type NodeLayersSpec struct {
	// Runtime is the container runtime and its version: "cri-o", "containerd 2.3.1".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	Runtime string `json:"runtime,omitempty"`
	// Reuse is Digest or Chain. With Chain, Layers has all layers of its images.
	Reuse LayerReuse `json:"reuse"`
	// JoinsDownloads reports whether the node downloads a layer once although two images
	// that are pulled at the same time need it. Missing if the agent cannot find out.
	// +optional
	JoinsDownloads *bool `json:"joinsDownloads,omitempty"`
	// Peer is where the node serves layers to other nodes. Missing if it does not.
	// +optional
	Peer *NodePeer `json:"peer,omitempty"`
	// MinLayerBytes is the size in compressed bytes from which on layers are listed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1099511627776
	MinLayerBytes int64 `json:"minLayerBytes,omitempty"`
	// RenewSeconds is how often RenewTime changes at least while the agent works.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	RenewSeconds int32 `json:"renewSeconds"`
	// RenewTime is when the agent last wrote the object, on the clock of the node.
	RenewTime metav1.Time `json:"renewTime"`
	// TotalImages, TotalLayers and TotalBytes are what the node holds: images; layers, each
	// once; their compressed bytes. The lists have less if an object would be too large or
	// layers are smaller than MinLayerBytes.
	// +kubebuilder:validation:Minimum=0
	TotalImages int32 `json:"totalImages"`
	// +kubebuilder:validation:Minimum=0
	TotalLayers int32 `json:"totalLayers"`
	// +kubebuilder:validation:Minimum=0
	TotalBytes int64 `json:"totalBytes"`
	// Layers that the node holds, each once, sorted: "<digest> <compressed bytes>".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=149
	// +kubebuilder:validation:items:Pattern=`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}) [0-9]{1,13}$`
	Layers []string `json:"layers,omitempty"`
	// Images: "<places in Layers> <names>". The places are those of the image's layers in
	// the order of its manifest, the base first, separated by commas; "-" if no layer of the
	// image is listed. The names, separated by spaces, are tags, and digests of its manifest
	// and of the index that led there: "0,4,2 docker.io/library/busybox:1.36 sha256:...". They
	// have printable ASCII characters only, without those that take more than a byte in JSON.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=8192
	// +kubebuilder:validation:items:Pattern=`^(-|[0-9]{1,4}(,[0-9]{1,4})*)( [!#-%'-;=?-\[\]-~]+){1,16}$`
	Images []string `json:"images,omitempty"`
}

// NodeLayersList is a list of NodeLayers.
//
// +kubebuilder:object:root=true
type NodeLayersList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeLayers `json:"items"`
}

// What NodeLayers hold at most; the schema enforces the same, but for the length of a name.
const (
	// MaxNodeListBytes is what both lists take as JSON, each text with its quotes and a comma.
	MaxNodeListBytes = 128 << 10
	// MaxNodeImages in the list.
	MaxNodeImages = 1024
	// MaxNodeLayers in the list.
	MaxNodeLayers = 4096
	// MaxNodeImageLength is the length of an image in the list.
	MaxNodeImageLength = 8192
	// MaxNodeImageNames is how many names an image in the list has, MaxNodeNameLength how long each is.
	// All of them, and the places of a few layers, are an image that can be listed.
	MaxNodeImageNames = 16
	MaxNodeNameLength = 400
	// MaxRuntimeLength is the length of the runtime's name and version.
	MaxRuntimeLength = 64
	// MaxPeerAddress is the length of the address of a peer, MaxPeerZone that of its zone, MaxPeerKeys
	// how many keys it has.
	MaxPeerAddress = 64
	MaxPeerZone    = 63
	MaxPeerKeys    = 2
	// MaxLayerBytes is the size of a layer, 1 TiB.
	MaxLayerBytes = 1 << 40
	// MaxRenewSeconds is a day.
	MaxRenewSeconds = 24 * 60 * 60
)
