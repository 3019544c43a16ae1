package layerlocality

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// gate keeps pods with unknown images out of the scheduling queue while an
// answer may still come, as long as its budget lasts.
//
// The queue calls check under its own lock. For a pod that is gated, it calls
// check again only when the pod is activated (Activate). A loop activates a pod
// once it may pass, and repeats that until check has let the pod through. So it
// does not matter when exactly the queue processes the result of check.
type gate struct {
	ctx context.Context //nolint:containedctx // of the scheduler: it ends the loop
	// unknown returns the images of a pod of which nothing is known yet, and awaits reports
	// whether an image is one of them; answered reports whether a source has an answer.
	unknown  func(*v1.Pod) []string
	awaits   func(image string) bool
	answered func(image string) bool
	pods     corelisters.PodLister
	activate func(klog.Logger, map[string]*v1.Pod)
	metrics  *pluginMetrics
	// answers has an element after there were new answers, so that the loop looks at once.
	answers chan struct{}

	mu     sync.Mutex
	budget *waitBudget
	// entries has the pods that were gated, until they are placed or gone,
	// because a pod that comes back to the queue is not gated again. The loop
	// runs while one of them is gated.
	entries map[types.UID]*entry
	running bool
}

// entry is a pod that is or was gated.
type entry struct {
	namespace, name string
	// deadline is on the clock of this process, so that clocks of other
	// machines do not matter, nor how long before the scheduler saw it a pod
	// was created.
	deadline time.Time
	// image is the one that the pod is gated for; empty once the pod was let
	// through.
	image string
	// since and until are when it was gated.
	since, until time.Time
}

const (
	// tick is the interval at which the loop checks whether gated pods may pass.
	tick = 100 * time.Millisecond
	// After an answer it does so at once, but no sooner than this after the last time: many
	// answers may come one after another, and many pods be gated.
	leastTick = 10 * time.Millisecond
)

// wake has the loop look for answers, if it runs.
func (g *gate) wake() {
	select {
	case g.answers <- struct{}{}:
	default: // it is about to
	}
}

// check returns why a pod has to wait, or nil if it may pass.
func (g *gate) check(pod *v1.Pod) *fwk.Status {
	images := g.unknown(pod)
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[pod.UID]
	if len(images) == 0 {
		g.passLocked(e, "known")
		return nil
	}
	if e == nil {
		e = &entry{namespace: pod.Namespace, name: pod.Name, deadline: g.budget.until(images, groupOf(pod)), since: g.now()}
		g.startLocked() // also to see whether an answer comes that nobody waits for
		if !g.now().Before(e.deadline) {
			return nil
		}
		g.entries[pod.UID] = e
	} else if !g.now().Before(e.deadline) {
		g.passLocked(e, "timeout")
		return nil
	}
	e.image = images[0]
	g.startLocked()
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, g.message(e.image))
}

func (g *gate) now() time.Time { return g.budget.clock.Now() }

// startLocked starts the loop unless it runs.
func (g *gate) startLocked() {
	if !g.running {
		g.running = true
		go g.run()
	}
}

// passLocked notes that a pod is let through.
func (g *gate) passLocked(e *entry, how string) {
	if e != nil && e.image != "" {
		e.image, e.until = "", g.now()
		g.metrics.released(how)
	}
}

// placed forgets a pod that was let through and has a node now. If it comes back to the
// queue, the memory of its images keeps it from being gated again. It returns how long the pod
// was gated.
func (g *gate) placed(pod types.UID) (gated time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[pod]
	if e == nil || e.image != "" {
		return 0
	}
	delete(g.entries, pod)
	return max(0, e.until.Sub(e.since))
}

func (g *gate) message(image string) string {
	return fmt.Sprintf("waiting up to %s for the layers of image %s", g.budget.wait, image)
}

// reason returns why a pod is gated at the moment; empty if it is not.
func (g *gate) reason(pod types.UID) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.entries[pod]; e != nil && e.image != "" {
		return g.message(e.image)
	}
	return ""
}

// run wakes pods that may pass, until none is gated and no answer is awaited.
func (g *gate) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-ticker.C:
		case <-g.answers:
		}
		if !g.look() {
			return
		}
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(leastTick):
		}
	}
}

// look wakes pods that may pass. It reports whether the loop has to go on.
func (g *gate) look() (more bool) {
	now := g.now()
	gated, more := g.gatedPods()
	maps.DeleteFunc(gated, func(_ string, w waiting) bool { return now.Before(w.deadline) && len(g.unknown(w.pod)) > 0 })
	if len(gated) == 0 {
		return more
	}
	pods := make(map[string]*v1.Pod, len(gated))
	for key, w := range gated {
		pods[key] = w.pod
	}
	g.activate(klog.FromContext(g.ctx), pods)
	return more
}

type waiting struct {
	pod      *v1.Pod
	deadline time.Time
}

// gatedPods forgets pods that are placed or gone. It returns the pods that are gated,
// by namespace and name. Without more the loop must end.
func (g *gate) gatedPods() (gated map[string]waiting, more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gated = map[string]waiting{}
	for uid, e := range g.entries {
		pod, err := g.pods.Pods(e.namespace).Get(e.name)
		if err != nil || pod.UID != uid || pod.Spec.NodeName != "" {
			g.passLocked(e, "gone")
			delete(g.entries, uid)
		} else if e.image != "" {
			gated[e.namespace+"/"+e.name] = waiting{pod, e.deadline}
		}
	}
	before := g.budget.paused
	g.running = g.budget.look(g.awaits, g.answered) || len(gated) > 0
	if paused := g.budget.paused; paused.After(before) {
		klog.FromContext(g.ctx).Info("No answer about the layers of images came in time: pods are not held for a while", "plugin", Name, "images", g.budget.late, "until", paused)
	}
	return gated, g.running
}
