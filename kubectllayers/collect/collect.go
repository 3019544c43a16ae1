// Package collect reads what a cluster has about nodes, pods, images and placements: once, and as
// far as the user may. Nothing is watched.
package collect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// Reader reads from an apiserver.
type Reader struct {
	// Client is for what is of Kubernetes.
	Client kubernetes.Interface
	// Config has the user's credentials.
	Config *rest.Config
	// ChunkSize is how many objects a request asks for, 0 for all; negative for what fits each kind.
	ChunkSize int64
	// paced is Config for many requests.
	paced *rest.Config
	ours  rest.Interface
	host  string
	clock *clock
}

// chunk is how many objects a request asks for. A NodeLayers may have 128 KiB, so they come in
// smaller numbers.
const (
	chunk     = 500
	ownChunks = 100
)

// New returns a Reader with a user's configuration.
func New(config *rest.Config) (*Reader, error) {
	r := &Reader{Config: config, ChunkSize: -1, host: config.Host, clock: &clock{}}
	config = rest.CopyConfig(config)
	r.paced = config
	config.Wrap(r.clock.wrap)
	// What kubectl has: lists in chunks would wait long with the default of clients.
	config.QPS, config.Burst = 50, 300
	var err error
	if r.ours, err = nodelayers.NewClient(config); err != nil {
		return nil, err
	}
	core := rest.CopyConfig(config)
	core.ContentType, core.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	r.Client, err = kubernetes.NewForConfig(core)
	return r, err
}

// Now is the time on the clock of the apiserver as soon as it has answered, before that on this machine's.
func (r *Reader) Now() time.Time { return r.clock.now() }

// Parts are what a Cluster is to have.
type Parts struct {
	// Nodes with their NodeLayers, of this name alone unless it is empty.
	Nodes bool
	Node  string
	// Pods that are placed and not finished; with Node, those there. PodsUnlessReported are these, but only if a node
	// has no NodeLayers that counts: that of the others names all images that pods use.
	Pods, PodsUnlessReported bool
	// Images are the ImageManifests.
	Images bool
	// For are pods that nodes are rated for, with all of Nodes, Pods and Images: NodeLayers then have only what matters
	// to these pods, if ImageManifests have their images. They are read last.
	For []*v1.Pod
}

// Cluster is what was read.
type Cluster struct {
	Nodes []*v1.Node
	Pods  []*v1.Pod
	// Agents has what NodeLayers state of themselves, by node.
	Agents map[string]Agent
	// Reports and Manifests are what the scheduler's index takes. They are never nil.
	Reports   *nodelayers.Static
	Manifests *imagemanifests.Source
	Records   []Record
	// AllNodes means that all nodes were asked for, not only one.
	AllNodes bool
	// Problems are what could not be read; the rest is there.
	Problems []*Problem
	// Now is when all was there.
	Now time.Time

	snapshot *locality.Snapshot
}

// Agent is what a NodeLayers has besides its images.
type Agent struct {
	Runtime   string
	Reuse     v1alpha1.LayerReuse
	RenewTime time.Time
	// Totals are before cuts; Listed what the object has. Bytes are compressed.
	TotalImages, TotalLayers, ListedImages, ListedLayers int
	TotalBytes                                           int64
	// Invalid is how many of its lines are left out, not being valid; Problem why all of it is.
	Invalid int
	Problem string
}

// Record is an ImageManifest without its layers.
type Record struct {
	Name, Digest, Platform string
	References             []v1alpha1.ImageReference
	// Reason and Message are why the image could not be resolved, or was not confirmed the last time: those
	// of a condition; empty if all is well.
	Reason, Message string
}

// ReadSome is Read for answers that are of use without nodes.
func (r *Reader) ReadSome(ctx context.Context, parts Parts) (*Cluster, error) {
	return r.read(ctx, parts, false)
}

// NodeNames reads Nodes as they are, also with the names of their images.
func (r *Reader) NodeNames(ctx context.Context) ([]v1.Node, error) {
	c := &Cluster{}
	if p := r.nodes(ctx, c, ""); p != nil {
		return nil, p
	}
	nodes := make([]v1.Node, len(c.Nodes))
	for i, node := range c.Nodes {
		nodes[i] = *node
	}
	return nodes, nil
}

// Explain makes one sentence of an error of the apiserver, about what was asked for.
func (r *Reader) Explain(what string, err error) *Problem { return r.explain(what, 0, err) }

// Read reads the parts. What the user may not read, and resources that the cluster does not
// have, are Problems of the answer; an error is returned if the apiserver does not answer, or
// if nodes are asked for and cannot be read.
func (r *Reader) Read(ctx context.Context, parts Parts) (*Cluster, error) {
	return r.read(ctx, parts, true)
}

// read is Read; needsNodes means that there is no answer without nodes.
func (r *Reader) read(ctx context.Context, parts Parts, needsNodes bool) (*Cluster, error) {
	c := &Cluster{Agents: map[string]Agent{}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(), AllNodes: parts.Nodes && parts.Node == ""}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	problems := make([]*Problem, 4)
	read := func(i int, wanted bool, f func(context.Context, *Cluster) *Problem) {
		if !wanted {
			return
		}
		wait.Go(func() {
			if problems[i] = f(ctx, c); problems[i] != nil && !problems[i].Partial() {
				cancel() // the others cannot help
			}
		})
	}
	read(0, parts.Nodes, func(ctx context.Context, c *Cluster) *Problem { return r.nodes(ctx, c, parts.Node) })
	read(2, parts.Pods, func(ctx context.Context, c *Cluster) *Problem { return r.pods(ctx, c, parts.Node) })
	read(3, parts.Images, r.imageManifests)
	var of *wanted
	if len(parts.For) > 0 {
		if wait.Wait(); !slices.ContainsFunc(problems, func(p *Problem) bool { return p != nil }) {
			of = c.wantedBy(ctx, parts.For)
		}
	}
	read(1, parts.Nodes, func(ctx context.Context, c *Cluster) *Problem { return r.nodeLayers(ctx, c, parts.Node, of) })
	wait.Wait()
	if parts.PodsUnlessReported && problems[0] == nil && !c.allReported() {
		problems[2] = r.pods(ctx, c, parts.Node)
	}
	if needsNodes && problems[0] != nil && !errors.Is(problems[0], context.Canceled) {
		return nil, problems[0]
	}
	for _, p := range problems {
		if p != nil && !p.Partial() && !errors.Is(p, context.Canceled) {
			return nil, p
		}
	}
	for _, p := range problems {
		switch {
		case p == nil:
		case !p.Partial():
			return nil, p // interrupted
		default:
			c.Problems = append(c.Problems, p)
		}
	}
	c.Now = r.Now()
	return c, nil
}

// allReported reports whether each node has a NodeLayers that stands for its NodeStatus.
func (c *Cluster) allReported() bool {
	return !slices.ContainsFunc(c.Nodes, func(node *v1.Node) bool {
		report := c.Reports.Of(node.Name)
		return report == nil || !report.Fresh || report.UID != node.UID
	})
}

// each lists in chunks and calls f with each object, from one goroutine at a time.
func (r *Reader) each(ctx context.Context, what string, list pager.ListPageFunc, f func(runtime.Object)) *Problem {
	return r.pages(ctx, what, chunk, list, func(object runtime.Object) (int, error) {
		f(object)
		return 1, nil
	})
}

// pages lists in chunks and calls f with what a chunk has, from one goroutine at a time; f returns
// how many objects that were.
func (r *Reader) pages(ctx context.Context, what string, size int64, list pager.ListPageFunc, f func(runtime.Object) (int, error)) *Problem {
	count := 0
	p := pager.New(list)
	if p.PageSize = size; r.ChunkSize >= 0 {
		p.PageSize = r.ChunkSize
	}
	p.PageBufferSize = 1 // one is read while the one before is looked at: more would only wait in memory
	err := p.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		n, err := f(object)
		count += n
		return err
	})
	if err != nil {
		return r.explain(what, count, err)
	}
	return nil
}

func (r *Reader) nodes(ctx context.Context, c *Cluster, name string) *Problem {
	// Nodes share the texts of names and digests, which are most of a Node.
	share := nodestatus.Transform(cache.NewStore(cache.MetaNamespaceKeyFunc))
	keep := func(node *v1.Node) {
		node.Annotations = nil
		if _, err := share(node); err == nil {
			c.Nodes = append(c.Nodes, node)
		}
	}
	if name != "" {
		node, err := r.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return r.explain("nodes "+name, 0, err)
		}
		keep(node)
		return nil
	}
	return r.each(ctx, "nodes", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.Client.CoreV1().Nodes().List(ctx, o)
	}, func(object runtime.Object) {
		if node, ok := object.(*v1.Node); ok {
			// The objects of a chunk are in one piece of memory: a copy lets go of it.
			n := *node
			keep(&n)
		}
	})
}

// PodsWith calls f with each pod of a namespace (of all, if it is empty) that has the labels of a
// selector, until f returns an error.
func (r *Reader) PodsWith(ctx context.Context, namespace, selector string, f func(*v1.Pod) error) error {
	where := "pods in namespace " + namespace
	if namespace == metav1.NamespaceAll {
		where = "pods in all namespaces"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var enough error
	p := r.each(ctx, where, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.LabelSelector = selector
		return r.Client.CoreV1().Pods(namespace).List(ctx, o)
	}, func(object runtime.Object) {
		if pod, ok := object.(*v1.Pod); ok && enough == nil {
			one := *pod // see nodes
			if enough = f(&one); enough != nil {
				cancel()
			}
		}
	})
	switch {
	case enough != nil:
		return enough
	case p != nil:
		return p
	}
	return nil
}

func (r *Reader) pods(ctx context.Context, c *Cluster, node string) *Problem {
	same := templates{}
	unfinished := "status.phase!=Succeeded,status.phase!=Failed"
	if node != "" {
		unfinished += ",spec.nodeName=" + node
	}
	return r.each(ctx, "pods", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = unfinished
		return r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	}, func(object runtime.Object) {
		if pod, ok := object.(*v1.Pod); ok && pod.Spec.NodeName != "" {
			kept := slim(pod)
			kept.Spec.Containers = same.shared(kept.Spec.Containers)
			c.Pods = append(c.Pods, kept)
		}
	})
}

// templates are containers of pods, by the image of the first one. Pods that were made from one
// template share them: otherwise they would be half of what pods take.
type templates map[string][][]v1.Container

// maxAlike bounds how many templates the containers of a pod are compared with.
const maxAlike = 16

// shared returns containers that are equal to the given ones: those of a pod before, if there is one.
func (t templates) shared(containers []v1.Container) []v1.Container {
	if len(containers) == 0 {
		return containers
	}
	alike := t[containers[0].Image]
	for _, other := range alike {
		if equality.Semantic.DeepEqual(containers, other) {
			return other
		}
	}
	if len(alike) < maxAlike {
		t[containers[0].Image] = append(alike, containers)
	}
	return containers
}

// slim returns the parts of a placed pod that matter to others: what it requests, which images
// it has and how far it is.
func slim(pod *v1.Pod) *v1.Pod {
	containers := func(all []v1.Container) (kept []v1.Container) {
		for i := range all {
			c := &all[i]
			kept = append(kept, v1.Container{Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
		}
		return kept
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Spec: v1.PodSpec{
			NodeName: pod.Spec.NodeName, SchedulerName: pod.Spec.SchedulerName, Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
			InitContainers: containers(pod.Spec.InitContainers), Containers: containers(pod.Spec.Containers),
		},
		Status: v1.PodStatus{Phase: pod.Status.Phase, InitContainerStatuses: pod.Status.InitContainerStatuses, ContainerStatuses: pod.Status.ContainerStatuses},
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Image != nil {
			p.Spec.Volumes = append(p.Spec.Volumes, volume)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled {
			p.Status.Conditions = []v1.PodCondition{{Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime}}
		}
	}
	return p
}

func (r *Reader) nodeLayers(ctx context.Context, c *Cluster, name string, of *wanted) *Problem {
	return r.own(ctx, v1alpha1.NodeLayersResource.Resource, "NodeLayers", name, func(text []byte) (int, error) {
		return eachNodeLayers(text, of, func(o *v1alpha1.NodeLayers) { c.agent(o, r.Now()) })
	})
}

func (c *Cluster) agent(o *v1alpha1.NodeLayers, now time.Time) {
	s := &o.Spec
	a := Agent{
		Runtime: s.Runtime, Reuse: s.Reuse, RenewTime: s.RenewTime.Time, TotalImages: int(s.TotalImages), TotalLayers: int(s.TotalLayers),
		ListedImages: len(s.Images), ListedLayers: len(s.Layers), TotalBytes: s.TotalBytes,
	}
	before := c.Reports.Refused()
	if err := c.Reports.Add(o, now); err != nil && c.Reports.Of(o.Name) == nil {
		a.Problem = err.Error()
	} else {
		a.Invalid = int(c.Reports.Refused() - before)
	}
	c.Agents[o.Name] = a
}

func (r *Reader) imageManifests(ctx context.Context, c *Cluster) *Problem {
	return r.own(ctx, v1alpha1.ImageManifestsResource.Resource, "ImageManifests", "", decoded(func(list *v1alpha1.ImageManifestList) int {
		for i := range list.Items {
			c.Records = append(c.Records, recordOf(&list.Items[i]))
			_ = c.Manifests.Add(&list.Items[i]) // one that is left out counts as missing
		}
		return len(list.Items)
	}))
}

func recordOf(m *v1alpha1.ImageManifest) Record {
	record := Record{Name: m.Name, Digest: m.Spec.Digest, Platform: m.Spec.Platform, References: m.Status.References}
	for _, kind := range []string{v1alpha1.ConditionResolved, v1alpha1.ConditionConfirmed} {
		if condition := meta.FindStatusCondition(m.Status.Conditions, kind); condition != nil && condition.Status == metav1.ConditionFalse {
			record.Reason, record.Message = condition.Reason, condition.Message
			break
		}
	}
	return record
}

// stopped is a clock that stands still.
type stopped struct{ now time.Time }

func (s stopped) Now() time.Time                  { return s.now }
func (s stopped) Since(t time.Time) time.Duration { return s.now.Sub(t) }

// Snapshot returns what the scheduler's plugin makes of the cluster if it begins now. Its
// arguments are the defaults: those of a scheduler are not in the API. It is made once, as that is
// most of the work: what was read must not change afterwards.
func (c *Cluster) Snapshot(ctx context.Context) (*locality.Snapshot, error) {
	if c.snapshot != nil {
		return c.snapshot, nil
	}
	slices.SortFunc(c.Nodes, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	var err error
	c.snapshot, err = c.snapshotOf(ctx, locality.Moment{Nodes: c.Nodes, Pods: c.Pods, Reports: c.Reports.Report})
	return c.snapshot, err
}

// snapshotOf returns a Snapshot with default arguments and the ImageManifests.
func (c *Cluster) snapshotOf(ctx context.Context, m locality.Moment) (*locality.Snapshot, error) {
	args, err := defaultArgs()
	if err != nil {
		return nil, err
	}
	m.Args, m.Images, m.Clock = args, []locality.ManifestSource{c.Manifests}, stopped{c.Now}
	return locality.NewSnapshot(ctx, "default-scheduler", m), nil
}
