package layerlocality

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
)

// queue stands for kube-scheduler's queue: it asks the gate under its lock, and
// again when a pod that is gated is activated.
type queue struct {
	mu          sync.Mutex
	gate        *gate
	gated       map[types.UID]*v1.Pod
	passed      map[types.UID]time.Duration
	start       time.Time
	activations int
	// late drops the first activations, as if the gate had sent them before the
	// queue processed the gate's answer.
	late int
}

func (q *queue) add(pod *v1.Pod) *fwk.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ask(pod)
}

func (q *queue) ask(pod *v1.Pod) *fwk.Status {
	status := q.gate.check(pod)
	if status.IsSuccess() {
		delete(q.gated, pod.UID)
		q.passed[pod.UID] = time.Since(q.start)
	} else {
		q.gated[pod.UID] = pod
	}
	return status
}

func (q *queue) activate(_ klog.Logger, pods map[string]*v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.activations++
	if q.late > 0 {
		q.late--
		return
	}
	for _, pod := range pods {
		if gated := q.gated[pod.UID]; gated != nil {
			q.ask(gated)
		}
	}
}

// state returns when pods passed, how often pods were activated, and which pods
// the gate remembers.
func (q *queue) state() (passed map[types.UID]time.Duration, activations int, remembered []types.UID, running bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	return maps.Clone(q.passed), q.activations, slices.Sorted(maps.Keys(q.gate.entries)), q.gate.running
}

// newGate returns a gate for pods whose images are unknown as long as the map
// has them.
func newGate(ctx context.Context, wait time.Duration, unknown *sync.Map) (*gate, *queue, cache.Store) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	q := &queue{gated: map[types.UID]*v1.Pod{}, passed: map[types.UID]time.Duration{}, start: time.Now()}
	q.gate = &gate{
		ctx: ctx, budget: newWaitBudget(wait, clock.RealClock{}), pods: corelisters.NewPodLister(store), activate: q.activate,
		unknown: func(pod *v1.Pod) (images []string) {
			for i := range pod.Spec.Containers {
				if image := pod.Spec.Containers[i].Image; stored(unknown, image) {
					images = append(images, image)
				}
			}
			return images
		},
		awaits:   func(image string) bool { return stored(unknown, image) },
		answered: func(image string) bool { return !stored(unknown, image) },
		metrics:  registerMetrics(index.New().Stats), entries: map[types.UID]*entry{}, answers: make(chan struct{}, 1),
	}
	q.gate.budget.atOnce = mostAtOnce
	return q.gate, q, store
}

func stored(m *sync.Map, key string) bool {
	_, ok := m.Load(key)
	return ok
}

func released(t *testing.T) func(ended string) int {
	t.Helper()
	count := func(ended string) int {
		n, err := testutil.GetCounterMetricValue(processMetrics.gated.WithLabelValues(ended))
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	registerMetrics(index.New().Stats)
	before := map[string]int{}
	for _, ended := range []string{"known", "timeout", "gone"} {
		before[ended] = count(ended)
	}
	return func(ended string) int { return count(ended) - before[ended] }
}

func TestGate(t *testing.T) {
	const wait = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		counted := released(t)
		unknown := &sync.Map{}
		gate, queue, store := newGate(ctx, wait, unknown)
		for _, image := range []string{"never", "soon", "deleted", "placed", "late"} {
			unknown.Store(image, true)
		}
		pods := map[string]*v1.Pod{}
		for _, image := range []string{"known", "never", "soon", "deleted", "placed"} {
			pods[image] = pod(image, image)
			pods[image].CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) // does not matter
			if err := store.Add(pods[image]); err != nil {
				t.Fatal(err)
			}
			status := queue.add(pods[image])
			if gated := !status.IsSuccess(); gated != (image != "known") {
				t.Errorf("%s: %v", image, status)
			}
			if want := "waiting up to 5s for the layers of image " + image; image != "known" && (status.Message() != want || gate.reason(pods[image].UID) != want) {
				t.Errorf("%q, %q", status.Message(), gate.reason(pods[image].UID))
			}
		}
		queue.mu.Lock()
		queue.late = 3
		queue.mu.Unlock()

		time.Sleep(2*time.Second + time.Millisecond)
		unknown.Delete("soon")
		if err := store.Delete(pods["deleted"]); err != nil {
			t.Fatal(err)
		}
		placed := pods["placed"].DeepCopy()
		placed.Spec.NodeName = "n1"
		if err := store.Update(placed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		passed, activations, remembered, _ := queue.state()
		if got := passed["soon"]; got < 2*time.Second || got > 3*time.Second {
			t.Errorf("passed after %s, known after 2s", got)
		}
		if gate.reason("soon") != "" || counted("known") != 1 || counted("gone") != 2 || counted("timeout") != 0 || !slices.Equal(remembered, []types.UID{"never", "soon"}) {
			t.Errorf("%d known, %d gone, %d over, remembered %v", counted("known"), counted("gone"), counted("timeout"), remembered)
		}
		if activations != 4 { // three of which were lost; no other pod is activated in vain
			t.Errorf("activated %d times", activations)
		}

		time.Sleep(time.Minute)
		synctest.Wait()
		passed, _, _, running := queue.state()
		if got := passed["never"]; got < wait || got > wait+2*tick {
			t.Errorf("passed after %s, gated for %s", got, wait)
		}
		if counted("timeout") != 1 || running {
			t.Errorf("%d over, running %t", counted("timeout"), running)
		}

		// A pod that comes back to the queue is not gated again.
		if status := queue.add(pods["never"]); !status.IsSuccess() {
			t.Errorf("gated again: %v", status)
		}
		// It is forgotten once it has a node, a pod that is gated is not.
		gate.placed("never")
		if _, _, remembered, _ := queue.state(); !slices.Equal(remembered, []types.UID{"soon"}) {
			t.Errorf("remembered %v", remembered)
		}
		// Nor is another pod of that image, for ten minutes.
		again := pod("never", "never")
		again.UID = "again"
		if err := store.Update(again); err != nil {
			t.Fatal(err)
		}
		if status := queue.add(again); !status.IsSuccess() {
			t.Errorf("gated for an image that was waited for a minute ago: %v", status)
		}
		time.Sleep(10 * time.Minute)
		if status := queue.add(again); status.IsSuccess() {
			t.Error("not gated for an image that was waited for long ago")
		}
		time.Sleep(2 * tick)
		synctest.Wait()
		// The old pod of that name is forgotten.
		if _, _, remembered, _ := queue.state(); !slices.Equal(remembered, []types.UID{"again", "soon"}) {
			t.Errorf("remembered %v", remembered)
		}

		// The loop ends with the scheduler: synctest fails if it does not.
		cancel()
	})
}

// A pod passes as soon as there is an answer, and not at the next tick.
func TestGateWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unknown := &sync.Map{}
		gate, queue, store := newGate(t.Context(), 5*time.Second, unknown)
		for _, image := range []string{"first", "second", "refused"} {
			unknown.Store(image, true)
			p := pod(image, image)
			if err := store.Add(p); err != nil {
				t.Fatal(err)
			}
			queue.add(p)
		}
		answer := func(image string) {
			unknown.Delete(image)
			gate.wake()
			synctest.Wait()
		}
		time.Sleep(30 * time.Millisecond)
		answer("first")
		answer("second") // so soon after the first that it has to wait
		time.Sleep(2 * leastTick)
		answer("refused")
		time.Sleep(time.Second)
		synctest.Wait()
		passed, activations, _, running := queue.state()
		want := map[types.UID]time.Duration{"first": 30 * time.Millisecond, "second": 40 * time.Millisecond, "refused": 50 * time.Millisecond}
		if !maps.Equal(passed, want) {
			t.Errorf("passed after %v, want %v", passed, want)
		}
		if activations != 3 || running {
			t.Errorf("activated %d times, running %t", activations, running)
		}
	})
}

// An image becomes unknown again after the gate let its pod through and had nothing to do.
func TestGateHoldsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unknown := &sync.Map{}
		unknown.Store("x", true)
		_, queue, store := newGate(t.Context(), 5*time.Second, unknown)
		p := pod("p", "x")
		if err := store.Add(p); err != nil {
			t.Fatal(err)
		}
		queue.add(p)
		unknown.Delete("x")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if passed, _, _, running := queue.state(); len(passed) != 1 || running {
			t.Fatalf("known: passed after %v, running %t", passed, running)
		}
		unknown.Store("x", true)
		if queue.add(p).IsSuccess() {
			t.Error("not gated")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if passed, _, _, _ := queue.state(); passed["p"] < 5*time.Second {
			t.Errorf("passed after %s, gated for 5s at most", passed["p"])
		}
	})
}

// The log shows when pods are not held for a while, and only then.
func TestGateLogsThatItPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		_, queue, store := newGate(klog.NewContext(t.Context(), logger), time.Second, &sync.Map{})
		queue.gate.unknown = func(p *v1.Pod) []string { return []string{p.Name} }
		queue.gate.awaits = func(string) bool { return true }
		for i, lines := range []int{0, 0, 1, 1} {
			p := pod(fmt.Sprint("p", i), "x")
			if err := store.Add(p); err != nil {
				t.Fatal(err)
			}
			queue.add(p)
			time.Sleep(3 * time.Second)
			synctest.Wait()
			log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if n := strings.Count(log, "pods are not held for a while"); n != lines {
				t.Errorf("%d lines after %d pods, want %d:\n%s", n, i+1, lines, log)
			}
		}
	})
}

// Many pods are gated and released while the source changes.
func TestGateRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unknown := &sync.Map{}
		_, queue, store := newGate(t.Context(), 3*time.Second, unknown)
		var group sync.WaitGroup
		for i := range 200 {
			group.Go(func() {
				image := fmt.Sprint("image", i%20)
				unknown.Store(image, true)
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				p := pod(fmt.Sprint("p", i), image)
				if err := store.Add(p); err != nil {
					t.Error(err)
				}
				queue.add(p)
				time.Sleep(time.Duration(i%13) * 400 * time.Millisecond)
				unknown.Delete(image)
			})
		}
		group.Wait()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if passed, _, _, running := queue.state(); len(passed) != 200 || running {
			t.Errorf("%d passed, running %t", len(passed), running)
		}
	})
}

// Which pods are gated.
func TestPreEnqueue(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.WaitForManifest = &metav1.Duration{Duration: time.Minute} }), nodes("n1"))
	s.awaited.Images = fixture.Images{"quay.io/source:1": manifest()}
	s.awaited.Refused = map[imageref.Canonical]bool{"quay.io/refused:1": true}
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/reported:1", layers{"a": 100})})
	expect := func(p *v1.Pod, gated bool) {
		t.Helper()
		enabled := s.framework.PreEnqueuePlugins()
		if len(enabled) != 1 {
			t.Fatalf("enabled: %v", enabled)
		}
		if got := enabled[0].PreEnqueue(s.ctx, p); got.IsSuccess() == gated {
			t.Errorf("%s: %v", p.Name, got)
		}
	}
	with := func(name string, change func(*v1.Pod)) *v1.Pod {
		p := pod(name, "quay.io/unknown:1")
		change(p)
		return p
	}
	expect(pod("source cannot be watched", "quay.io/unknown:1"), false)
	s.awaited.Ready.Store(true)
	s.awaited.Answer()
	if n := len(s.plugin.gate.answers); n != 1 { // nothing takes it yet: no pod is gated
		t.Errorf("the gate was woken %d times by an answer, want once", n)
	}
	expect(pod("unknown", "quay.io/unknown:1"), true)
	expect(pod("reported", "quay.io/reported:1"), false)
	expect(pod("in the source", "quay.io/source:1"), false)
	expect(pod("refused", "quay.io/refused:1"), false)
	expect(pod("one of two", "quay.io/source:1", "quay.io/unknown:1"), true)
	expect(pod("invalid", "quay.io/UNKNOWN:1"), false)
	expect(with("never pulled", func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = v1.PullNever }), false)
	expect(with("scheduling gate", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "a"}} }), false)
	owner := func(kind string, controller bool) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Controller: ptr.To(controller)}}
		}
	}
	expect(with("of a DaemonSet", owner("DaemonSet", true)), false)
	expect(with("of a Job", owner("Job", true)), true)
	expect(with("mentions a DaemonSet", owner("DaemonSet", false)), true)
	expect(with("image volume", func(p *v1.Pod) {
		p.Spec.Containers[0].Image = "quay.io/source:1"
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "quay.io/unknown:1"}}}}
	}), true)

	// Without a time no pod is gated, even if its images are unknown.
	s = newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.WaitForManifest = &metav1.Duration{} }), nodes("n1"))
	s.awaited.Ready.Store(true)
	expect(pod("without waitForManifest", "quay.io/unknown:1"), false)
	if events, err := s.plugin.EventsToRegister(s.ctx); err != nil || len(events) > 0 {
		t.Errorf("events %v, %v", events, err)
	}
}

// A pod that was gated is forgotten once it has a node.
func TestReserveForgetsHeldPods(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.WaitForManifest = &metav1.Duration{Duration: time.Minute} }), nodes("n1"))
	p := pod("p", "quay.io/a:1")
	s.plugin.gate.entries[p.UID] = &entry{namespace: p.Namespace, name: p.Name} // it was let through
	s.plugin.Reserve(s.ctx, framework.NewCycleState(), p, "n1")
	s.plugin.gate.mu.Lock()
	defer s.plugin.gate.mu.Unlock()
	if n := len(s.plugin.gate.entries); n != 0 {
		t.Errorf("%d pods are remembered", n)
	}
}

// The debug endpoint shows which source has an image, and why a pod is gated.
func TestDebugFrom(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.WaitForManifest = &metav1.Duration{Duration: time.Minute} }),
		nodes("n1"), pod("p", "quay.io/source:1", "quay.io/reported:1", "quay.io/unknown:1"))
	s.awaited.Images = fixture.Images{"quay.io/source:1": manifest()}
	s.awaited.Ready.Store(true)
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/reported:1", layers{"a": 100})})
	p, err := s.plugin.pods.Pods("ns").Get("p")
	if err != nil {
		t.Fatal(err)
	}
	s.plugin.PreEnqueue(s.ctx, p)
	recorder := httptest.NewRecorder()
	s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?pod=ns/p", nil))
	code, body := recorder.Code, recorder.Body.String()
	for _, want := range []string{`"from": "source"`, `"from": "nodes"`, `"held": "waiting up to 1m0s for the layers of image quay.io/unknown:1"`} {
		if code != 200 || strings.Count(body, want) != 1 {
			t.Errorf("%d, not %s in %s", code, want, body)
		}
	}
}
