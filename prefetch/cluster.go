package prefetch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/layer-locality/layer-locality/imageref"
	schedulerconfig "github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// Cluster is what is known of nodes, of the layers there, and of pods that are not finished.
type Cluster struct {
	informers informers.SharedInformerFactory
	tracker   *locality.Tracker
	profile   *locality.Profile
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
}

// unfinished selects the pods that may need something of their node.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// newCluster returns a Cluster that is empty before Start.
func newCluster(config *rest.Config) (*Cluster, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	manifests, err := imagemanifests.NewSource(config)
	if err != nil {
		return nil, err
	}
	layers, err := nodelayers.NewSource(config)
	if err != nil {
		return nil, err
	}
	var args schedulerconfig.LayerLocalityArgs
	var defaults configv1.LayerLocalityArgs
	configv1.SetDefaults_LayerLocalityArgs(&defaults)
	if err := configv1.Convert_v1_LayerLocalityArgs_To_config_LayerLocalityArgs(&defaults, &args, nil); err != nil {
		return nil, fmt.Errorf("arguments of LayerLocality: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			func(options *metav1.ListOptions) { options.FieldSelector = unfinished })
	})
	core := factory.Core().V1()
	tracker := locality.NewTracker(locality.Config{
		Nodes: core.Nodes(), Pods: core.Pods(), Images: []locality.ManifestSource{manifests.RequireSync()}, Layers: []locality.NodeSource{layers.RequireSync()},
	})
	return &Cluster{factory, tracker, tracker.NewProfile(corev1.DefaultSchedulerName, &args), core.Nodes().Lister(), core.Pods().Lister()}, nil
}

// Start follows the cluster until the context is done.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.tracker.Start(ctx); err != nil {
		return err
	}
	c.informers.Start(ctx.Done())
	<-ctx.Done()
	c.informers.Shutdown()
	return nil
}

// NeedLeaderElection returns false: the next leader knows the cluster before it leads.
func (*Cluster) NeedLeaderElection() bool { return false }

// HasSynced reports whether what was there at the start is known.
func (c *Cluster) HasSynced() bool {
	return c.informers.Core().V1().Pods().Informer().HasSynced() && c.tracker.HasSynced() // the tracker has nothing to wait for before Start
}

// unknownImage is what an image of which nothing is known counts as, in compressed bytes: rather too much than too little.
const unknownImage = 1 << 30

// known is what is known about images on nodes at one moment.
type known struct {
	measurement index.Measurement
	// unknown are the assumed bytes of images of which nothing is known, awaited that a source
	// may still get the layers of one.
	unknown int64
	awaited bool
}

// measure returns what nodes have of the images.
func (c *Cluster) measure(images []imageref.PodImage) *known {
	k := &known{}
	wanted := c.profile.Wanted(podOf(images))
	c.profile.Measure(wanted, &k.measurement)
	for _, is := range k.measurement.Images {
		if is == index.Unknown {
			k.unknown += unknownImage
		}
	}
	for _, image := range images {
		k.awaited = k.awaited || c.profile.Awaits(image.Name)
	}
	return k
}

// podOf returns a pod with the images as volumes and nothing else.
func podOf(images []imageref.PodImage) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Volumes: volumes(images)}}
}

// onNode is what a node has of images, in compressed bytes.
type onNode struct {
	// missing is what it would have to pull, coming what other pods bring, pending all that its
	// link has to pull.
	missing, coming, pending int64
}

// has reports whether all is there.
func (n onNode) has() bool { return n.missing == 0 && n.coming == 0 }

// on returns what a node has; ok is false if it is not known.
func (k *known) on(node string) (n onNode, ok bool) {
	bytes, ok := k.measurement.Node(node)
	return onNode{bytes.Missing() + k.unknown, bytes.Arriving + bytes.Crowded, bytes.Pending}, ok
}

// total returns the bytes of the images on a node's platform, as far as they are known.
func (k *known) total(node string) int64 {
	bytes, _ := k.measurement.Node(node)
	return bytes.Total
}

// lists reports whether a node has reported all of the images.
func (c *Cluster) lists(node string, images []imageref.PodImage) bool {
	for _, image := range images {
		if from := c.tracker.Provenance(node, c.profile.Names(image.Name)); from == "" || from == locality.FromUse {
			return false
		}
	}
	return true
}

// podsOf returns the pods of a namespace that a selector selects and that have a node.
func (c *Cluster) podsOf(namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	all, err := c.pods.Pods(namespace).List(selector)
	if err != nil {
		return nil, err
	}
	placed := all[:0:0]
	for _, pod := range all {
		if pod.Spec.NodeName != "" {
			placed = append(placed, pod)
		}
	}
	return placed, nil
}
