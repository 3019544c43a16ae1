package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LayerLocalityArgs holds the arguments of the LayerLocality plugin. The v1
// type documents every field; here all of them have a value.
type LayerLocalityArgs struct {
	metav1.TypeMeta

	MinImageBytes         int64
	UnknownImageBytes     int64
	LoadPenalty           int32
	NoRequestPenalty      int32
	LinkPenalty           int32
	MaxWaitingPods        int32
	JoinsDownloads        bool
	LayerReuse            string
	NodeLayers            bool
	ArrivalTimeout        metav1.Duration
	ReportTimeout         metav1.Duration
	NodeStatusMaxImages   int32
	UnlistedTimeout       metav1.Duration
	WaitForManifest       metav1.Duration
	ShortNames            []ShortName
	UnqualifiedRegistries []string
	Mirrors               []Mirror
}

// The values of LayerReuse: a node uses a layer again for another image whatever is below
// it, or only above the same layers.
const (
	ReuseByDigest = "Digest"
	ReuseInChains = "Chain"
)

// ShortName is an alias for a repository.
type ShortName struct {
	Name       string
	Repository string
}

// Mirror has the other names under which the images below a prefix may be found.
type Mirror struct {
	Prefix    string
	Locations []string
}
