package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/imagelocality"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/prototype"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// withLayers gives every image n layers: small ones are added or taken away.
func withLayers(images []dataset.Image, n int) []dataset.Image {
	for i := range images {
		layers := images[i].Layers
		for len(layers) > n {
			smallest := 0
			for j := range layers {
				if layers[j].Size < layers[smallest].Size {
					smallest = j
				}
			}
			layers = slices.Delete(layers, smallest, smallest+1)
		}
		for len(layers) < n {
			layers = append(layers, dataset.Layer{
				Digest: digest.FromString(fmt.Sprint(images[i].Image, len(layers))).String(), Size: 1000,
			})
		}
		images[i].Layers = layers
	}
	return images
}

func decode(wire []byte) (*v1.Node, error) {
	node := &v1.Node{}
	return node, node.Unmarshal(wire)
}

// cluster is what plugins see of a cluster: an informer with all Nodes, a
// snapshot of those, and a framework for each plugin.
type cluster struct {
	stop     context.CancelFunc
	informer *informer
	// nodes are the nodes of the snapshot, in its order.
	nodes   []fwk.NodeInfo
	plugins []*plugin
}

// plugin is one of the compared plugins.
type plugin struct {
	name string
	// preFilter and preScore are nil if the plugin does not implement them.
	preFilter fwk.PreFilterPlugin
	preScore  fwk.PreScorePlugin
	score     fwk.ScorePlugin
	// reserve is nil if the plugin does not implement it.
	reserve   fwk.ReservePlugin
	framework framework.Framework
}

// informer records what the plugin registers with it.
type informer struct {
	cache.SharedIndexInformer
	transform cache.TransformFunc
	handlers  []cache.ResourceEventHandler
}

func (i *informer) SetTransform(f cache.TransformFunc) error {
	i.transform = f
	return i.SharedIndexInformer.SetTransform(f)
}

func (i *informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	return i.SharedIndexInformer.AddEventHandler(h)
}

// startCluster starts a cluster of Nodes as the apiserver sends them, and of NodeLayers, if there
// are any.
func startCluster(ctx context.Context, wire [][]byte, reports *nodeReports) (*cluster, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &cluster{stop: stop}
	client := fake.NewClientset()
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		list := &v1.NodeList{Items: make([]v1.Node, len(wire))}
		for i := range wire {
			if err := list.Items[i].Unmarshal(wire[i]); err != nil {
				return true, nil, err
			}
		}
		return true, list, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.InformerFor(&v1.Node{}, func(client clientset.Interface, resync time.Duration) cache.SharedIndexInformer {
		c.informer = &informer{SharedIndexInformer: coreinformers.NewNodeInformer(client, resync, cache.Indexers{})}
		return c.informer
	})
	// The plugin comes first: the snapshot and the prototype are made from the
	// Nodes that its informer keeps.
	snapshot := schedulercache.NewEmptySnapshot()
	images := nodestatus.Images
	var options []layerlocality.Option
	agents := nodelayers.NewFed()
	if reports != nil {
		images = func(node *v1.Node) []index.Image { return reports.images[node.Name] }
		options = append(options, layerlocality.WithNodeSource(func(context.Context, fwk.Handle) (locality.NodeSource, error) { return agents, nil }))
	}
	if err := c.add(ctx, factory, snapshot, layerlocality.Name, layerlocality.NewFactory(options...).New); err != nil {
		stop()
		return nil, err
	}
	if reports != nil {
		for _, object := range reports.objects {
			if err := agents.Set(object, time.Now()); err != nil {
				stop()
				return nil, err
			}
		}
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)

	var nodes []*v1.Node
	for _, object := range c.informer.GetStore().List() {
		nodes = append(nodes, object.(*v1.Node))
	}
	if len(nodes) != len(wire) {
		stop()
		return nil, fmt.Errorf("the informer has %d of %d nodes", len(nodes), len(wire))
	}
	slices.SortFunc(nodes, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	*snapshot = *schedulercache.NewSnapshot(running(nodes), nodes)
	var err error
	if c.nodes, err = snapshot.NodeInfos().List(); err != nil {
		stop()
		return nil, err
	}
	for name, factoryOf := range map[string]frameworkruntime.PluginFactory{
		imagelocality.Name: imagelocality.New,
		prototype.Name: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			pl := prototype.New(images)
			for _, node := range nodes {
				pl.Set(node)
			}
			return pl, nil
		},
	} {
		if err := c.add(ctx, factory, snapshot, name, factoryOf); err != nil {
			stop()
			return nil, err
		}
	}
	order := []string{layerlocality.Name, imagelocality.Name, prototype.Name}
	slices.SortFunc(c.plugins, func(a, b *plugin) int { return slices.Index(order, a.name) - slices.Index(order, b.name) })
	return c, nil
}

// running returns pods that request some of the nodes' CPU.
func running(nodes []*v1.Node) []*v1.Pod {
	var pods []*v1.Pod
	for i, node := range nodes {
		for range i % 4 {
			pod := podOf("registry.example/running:v1")
			pod.Spec.NodeName = node.Name
			pods = append(pods, pod)
		}
	}
	return pods
}

func podOf(images ...string) *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "pod", "default", "pod"
	for i, image := range images {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{
			Name: fmt.Sprint("c", i), Image: image,
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}},
		})
	}
	return pod
}

// profile scores with one plugin, with default arguments.
const profile = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: %s
  plugins:
    multiPoint:
      enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: %s}]
      disabled: [{name: "*"}]
`

// add makes a framework that scores with one plugin.
func (c *cluster) add(ctx context.Context, factory informers.SharedInformerFactory, snapshot fwk.SharedLister, name string, newPlugin frameworkruntime.PluginFactory) error {
	pl := &plugin{name: name}
	registry := frameworkruntime.Registry{
		queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New,
		name: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			made, err := newPlugin(ctx, args, handle)
			if err != nil {
				return nil, err
			}
			pl.score = made.(fwk.ScorePlugin)
			pl.preFilter, _ = made.(fwk.PreFilterPlugin)
			pl.preScore, _ = made.(fwk.PreScorePlugin)
			pl.reserve, _ = made.(fwk.ReservePlugin)
			return made, nil
		},
	}
	configuration := fmt.Sprintf(profile, name, name)
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration), nil, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", configuration, err)
	}
	pl.framework, err = frameworkruntime.NewFramework(ctx, registry, &object.(*config.KubeSchedulerConfiguration).Profiles[0],
		frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithSnapshotSharedLister(snapshot))
	if err != nil {
		return fmt.Errorf("a framework with %s: %w", name, err)
	}
	c.plugins = append(c.plugins, pl)
	return nil
}
