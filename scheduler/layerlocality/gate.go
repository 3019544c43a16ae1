package layerlocality

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/imageref"
)

// gate keeps pods of images that nothing is known about out of the scheduling
// queue while an answer may still come, each for a limited time in its life.
//
// The queue asks check, under its lock. What it holds it asks again only when
// told to (Activate): a loop does so once a pod may pass, and again until check
// has let it, so it does not matter when exactly the queue takes note of what
// check said.
type gate struct {
	ctx      context.Context //nolint:containedctx // of the scheduler: it ends the loop
	wait     time.Duration
	unknown  func(*v1.Pod) string
	pods     corelisters.PodLister
	activate func(klog.Logger, map[string]*v1.Pod)
	metrics  *pluginMetrics

	mu sync.Mutex
	// entries are the pods that were held, until they are placed or gone: a pod
	// that comes back to the queue has had its time. The loop runs while one of
	// them is held.
	entries map[types.UID]*entry
	running bool
}

// entry is a pod that is or was held.
type entry struct {
	namespace, name string
	// deadline is on the clock of this process: clocks of other machines, and
	// pods that were created long before a scheduler saw them, do not matter.
	deadline time.Time
	// image that the pod is held for; empty once it was let through.
	image string
}

// tick is how often it is looked whether pods that are held may pass.
const tick = 100 * time.Millisecond

// check returns why a pod has to wait, nil if it does not.
func (g *gate) check(pod *v1.Pod) *fwk.Status {
	image := g.unknown(pod)
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[pod.UID]
	now := time.Now()
	switch {
	case image == "":
		g.pass(e, "known")
		return nil
	case e == nil:
		e = &entry{namespace: pod.Namespace, name: pod.Name, deadline: now.Add(g.wait)}
		g.entries[pod.UID] = e
	case !now.Before(e.deadline):
		g.pass(e, "timeout")
		return nil
	}
	e.image = image
	if !g.running {
		g.running = true
		go g.run()
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, g.message(image))
}

// pass notes that a pod is let through.
func (g *gate) pass(e *entry, how string) {
	if e != nil && e.image != "" {
		e.image = ""
		g.metrics.released(how)
	}
}

func (g *gate) message(image string) string {
	return fmt.Sprintf("waiting up to %s for the layers of image %s", g.wait, image)
}

// holds returns why a pod is held at the moment; empty if it is not.
func (g *gate) holds(pod types.UID) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.entries[pod]; e != nil && e.image != "" {
		return g.message(e.image)
	}
	return ""
}

// run wakes pods that may pass, until none is held.
func (g *gate) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case now := <-ticker.C:
			held := g.held()
			if held == nil {
				return
			}
			maps.DeleteFunc(held, func(_ string, w waiting) bool { return now.Before(w.deadline) && g.unknown(w.pod) != "" })
			if len(held) == 0 {
				continue
			}
			pods := make(map[string]*v1.Pod, len(held))
			for key, w := range held {
				pods[key] = w.pod
			}
			g.activate(klog.FromContext(g.ctx), pods)
		}
	}
}

type waiting struct {
	pod      *v1.Pod
	deadline time.Time
}

// held forgets pods that are placed or gone, and returns those that are held by
// namespace and name. If there are none it returns nil, and the loop has ended.
func (g *gate) held() map[string]waiting {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := map[string]waiting{}
	for uid, e := range g.entries {
		pod, err := g.pods.Pods(e.namespace).Get(e.name)
		if err != nil || pod.UID != uid || pod.Spec.NodeName != "" {
			g.pass(e, "gone")
			delete(g.entries, uid)
		} else if e.image != "" {
			held[e.namespace+"/"+e.name] = waiting{pod, e.deadline}
		}
	}
	if len(held) == 0 {
		g.running = false
		return nil
	}
	return held
}

// unknownImage returns the first image of a pod about which a source may still
// learn what it consists of; empty if there is none, or if it would not help:
// a pod of a DaemonSet has no choice of nodes, an image that must not be pulled
// is where it is, and a pod with scheduling gates waits anyway.
func (pl *LayerLocality) unknownImage(pod *v1.Pod) (unknown string) {
	if owner := metav1.GetControllerOfNoCopy(pod); len(pod.Spec.SchedulingGates) > 0 || owner != nil && owner.Kind == "DaemonSet" {
		return ""
	}
	looked := 0
	forEachImage(pod, func(image string, policy v1.PullPolicy) {
		if unknown != "" || policy == v1.PullNever || looked == maxImages {
			return
		}
		looked++
		if names := pl.table.Candidates(image); len(names) > 0 && !pl.index.Reported(names) &&
			manifestsOf(names, pl.sources) == nil && pl.awaits(names) {
			unknown = image
		}
	})
	return unknown
}

func (pl *LayerLocality) awaits(names []imageref.Canonical) bool {
	return slices.ContainsFunc(pl.sources, func(source ImageSource) bool {
		awaited, ok := source.(AwaitedSource)
		return ok && awaited.Awaits(names)
	})
}
