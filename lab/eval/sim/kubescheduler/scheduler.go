// Package kubescheduler runs the real kube-scheduler in virtual time, without an apiserver.
package kubescheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// Scheduler is the real kube-scheduler with one profile, set up as in its
// program, with two differences. The caller delivers events to its handlers
// and replaces its queue and its workers, so that the same seed gives the same
// result. And there is no apiserver.
type Scheduler struct {
	ctx       context.Context //nolint:containedctx // of the run: it ends what New started
	Made      *scheduler.Scheduler
	Snapshot  *schedulercache.Snapshot
	Framework framework.Framework
	Nodes     *Informer
	Pods      *Informer
	Sets      cache.Indexer // ReplicaSets
	random    *rand.Rand
	// next is the first node to look at, as in kube-scheduler.
	next int
	// Choose, if set, replaces the scores.
	Choose func(pod *v1.Pod, nodes []fwk.NodeInfo) int
}

// Informer is an informer that this package feeds.
type Informer struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

// synced is the registration of a handler that has seen all objects, because
// there were none.
type synced struct {
	cache.ResourceEventHandlerRegistration
}

func (synced) HasSynced() bool { return true }

// AddEventHandler has a handler get what Set and Drop deliver.
func (i *Informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	registration, err := i.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	return synced{registration}, err
}

// Set delivers that an object was added, or has changed from old.
func (i *Informer) Set(old, object runtime.Object) error {
	if err := i.GetIndexer().Update(object); err != nil {
		return err
	}
	for _, h := range i.handlers {
		if old == nil {
			h.OnAdd(object, false)
		} else {
			h.OnUpdate(old, object)
		}
	}
	return nil
}

// Drop delivers that an object was deleted.
func (i *Informer) Drop(object runtime.Object) error {
	if err := i.GetIndexer().Delete(object); err != nil {
		return err
	}
	for _, h := range i.handlers {
		h.OnDelete(object)
	}
	return nil
}

// Start makes a kube-scheduler from a KubeSchedulerConfiguration with
// one profile.
func Start(ctx context.Context, configuration string, plugins frameworkruntime.Registry, random *rand.Rand) (*Scheduler, error) {
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration), nil, nil)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", configuration, err)
	}
	c, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok || len(c.Profiles) != 1 {
		return nil, fmt.Errorf("configuration %s: want a KubeSchedulerConfiguration with one profile", configuration)
	}
	s := &Scheduler{ctx: ctx, random: random}
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.InformerFor(&v1.Node{}, func(client clientset.Interface, resync time.Duration) cache.SharedIndexInformer {
		s.Nodes = &Informer{SharedIndexInformer: coreinformers.NewNodeInformer(client, resync, cache.Indexers{})}
		return s.Nodes
	})
	factory.InformerFor(&v1.Pod{}, func(client clientset.Interface, resync time.Duration) cache.SharedIndexInformer {
		s.Pods = &Informer{SharedIndexInformer: coreinformers.NewPodInformer(client, v1.NamespaceAll, resync,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
		return s.Pods
	})
	s.Sets = factory.Apps().V1().ReplicaSets().Informer().GetIndexer()

	recorders := profile.RecorderFactory(func(string) events.EventRecorderLogger { return &events.FakeRecorder{} })
	made, err := scheduler.New(ctx, client, factory, nil, recorders,
		scheduler.WithProfiles(c.Profiles...),
		scheduler.WithPercentageOfNodesToScore(c.PercentageOfNodesToScore),
		scheduler.WithFrameworkOutOfTreeRegistry(plugins),
		scheduler.WithParallelism(1), // in order; seeds run side by side
	)
	if err != nil {
		return nil, err
	}
	s.Made = made
	s.Framework = made.Profiles[c.Profiles[0].SchedulerName]
	if s.Snapshot, ok = s.Framework.SnapshotSharedLister().(*schedulercache.Snapshot); !ok {
		return nil, errors.New("the framework has no snapshot of kube-scheduler's")
	}
	return s, nil
}

// Schedule places a pod: node is empty if none fits.
func (s *Scheduler) Schedule(pod *v1.Pod) (node string, err error) {
	logger := klog.FromContext(s.ctx)
	if err := s.Made.Cache.UpdateSnapshot(logger, s.Snapshot); err != nil {
		return "", err
	}
	all, err := s.Snapshot.NodeInfos().List()
	if err != nil || len(all) == 0 {
		return "", err
	}
	state := framework.NewCycleState()
	feasible, err := s.Filter(state, pod, all)
	if err != nil || len(feasible) == 0 {
		return "", err
	}
	best, err := s.best(state, pod, feasible)
	if err != nil {
		return "", err
	}
	node = feasible[best].Node().Name
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = node
	return node, s.assume(state, assumed)
}

// assume notes that a pod was placed.
func (s *Scheduler) assume(state fwk.CycleState, pod *v1.Pod) error {
	if err := s.Made.Cache.AssumePod(klog.FromContext(s.ctx), pod); err != nil {
		return err
	}
	if status := s.Framework.RunReservePluginsReserve(s.ctx, state, pod, pod.Spec.NodeName); !status.IsSuccess() {
		return status.AsError()
	}
	return nil
}

// Filter returns nodes on which a pod fits, as many as kube-scheduler looks
// for.
func (s *Scheduler) Filter(state fwk.CycleState, pod *v1.Pod, all []fwk.NodeInfo) ([]fwk.NodeInfo, error) {
	result, status, _ := s.Framework.RunPreFilterPlugins(s.ctx, state, pod)
	if !status.IsSuccess() {
		if status.IsRejected() {
			return nil, nil
		}
		return nil, status.AsError()
	}
	wanted := s.Enough(len(all))
	feasible := make([]fwk.NodeInfo, 0, wanted)
	seen := map[fwk.NodeInfo]bool{}
	look := func(n fwk.NodeInfo) error {
		if seen[n] || !result.AllNodes() && !result.NodeNames.Has(n.Node().Name) {
			return nil
		}
		switch status := s.Framework.RunFilterPlugins(s.ctx, state, pod, n); {
		case status.IsSuccess():
			feasible = append(feasible, n)
		case !status.IsRejected():
			return status.AsError()
		}
		return nil
	}
	if wanted < len(all) {
		for _, n := range s.preferred(state) {
			if err := look(n); err != nil {
				return nil, err
			}
			seen[n] = true
		}
	}
	looked := 0
	for ; looked < len(all) && len(feasible) < wanted; looked++ {
		if err := look(all[(s.next+looked)%len(all)]); err != nil {
			return nil, err
		}
	}
	s.next = (s.next + looked) % len(all)
	return feasible, nil
}

// preferred returns the nodes that a plugin wants to be looked at first, as the patched
// kube-scheduler does: see pkg/scheduler/preferred_nodes.go there.
func (s *Scheduler) preferred(state fwk.CycleState) (nodes []fwk.NodeInfo) {
	data, err := state.Read("layerlocality.io/preferred-nodes")
	if err != nil {
		return nil
	}
	for _, name := range data.(interface{ PreferredNodes() []string }).PreferredNodes() {
		if n, err := s.Snapshot.NodeInfos().Get(name); err == nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Enough is the number of feasible nodes at which kube-scheduler stops looking:
// see numFeasibleNodesToFind in k8s.io/kubernetes/pkg/scheduler/schedule_one.go.
func (s *Scheduler) Enough(nodes int) int {
	const least, leastPercent = 100, 5
	percent := 0
	if p := s.Framework.PercentageOfNodesToScore(); p != nil {
		percent = int(*p)
	}
	if percent == 0 {
		percent = max(leastPercent, 50-nodes/125)
	}
	return min(nodes, max(least, nodes*percent/100))
}

// best returns the index of the node with the highest score. In a tie, chance
// decides.
func (s *Scheduler) best(state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (int, error) {
	if len(nodes) == 1 {
		return 0, nil
	}
	if s.Choose != nil {
		return s.Choose(pod, nodes), nil
	}
	if status := s.Framework.RunPreScorePlugins(s.ctx, state, pod, nodes); !status.IsSuccess() {
		return 0, status.AsError()
	}
	scores, status := s.Framework.RunScorePlugins(s.ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return 0, status.AsError()
	}
	return choose(s.random, len(scores), func(i int) int64 { return scores[i].TotalScore }), nil
}
