package locality_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// listing is a node that lists its largest images only, as the Tracker sees it. Events are
// delivered by hand, one after another.
type listing struct {
	t                   *testing.T
	clock               *clocktesting.FakePassiveClock
	tracker             *locality.Tracker
	nodes               cache.ResourceEventHandler
	pods                cache.ResourceEventHandler
	node                *v1.Node
	nodeStore, podStore cache.Store
	images              fixture.Images
	// on has the images of the node with their uncompressed size, in MB.
	on map[string]int64
	// running has the pods by their name.
	running map[string]*v1.Pod
}

const mostListed = 4

func newListing(t *testing.T) *listing {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	core := factory.Core().V1()
	l := &listing{
		t: t, clock: clocktesting.NewFakePassiveClock(time.Now()), images: fixture.Images{},
		on: map[string]int64{}, running: map[string]*v1.Pod{}, node: fixture.Node("n1"),
	}
	l.tracker = locality.NewTracker(locality.Config{Nodes: core.Nodes(), Pods: core.Pods(), Clock: l.clock, Images: []locality.ManifestSource{l.images}})
	l.tracker.NewProfile("p", fixture.Args(func(a *configv1.LayerLocalityArgs) {
		a.NodeStatusMaxImages, a.UnlistedTimeout = ptr.To[int32](mostListed), &metav1.Duration{Duration: time.Hour}
	}))
	if err := l.tracker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.nodes, l.pods = l.tracker.Events(t.Context())
	l.nodeStore, l.podStore = l.tracker.Stores()
	must(t, l.nodeStore.Add(l.node))
	l.nodes.OnAdd(l.node, false)
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// has puts images on the node: "NAME", whose layers only the source has.
func (l *listing) has(name string, megabytes int64) {
	l.on[name] = megabytes
	l.images[imageref.Canonical(name)] = fixture.Manifest(index.Layer{Digest: fixture.Digest(name), Size: megabytes * fixture.MB})
}

// report makes the node report.
func (l *listing) report(change ...func(*v1.Node)) {
	l.t.Helper()
	old := l.node
	l.node = old.DeepCopy()
	names := slices.SortedFunc(maps.Keys(l.on), func(a, b string) int { return cmp.Or(cmp.Compare(l.on[b], l.on[a]), cmp.Compare(a, b)) })
	l.node.Status.Images = nil
	for _, name := range names[:min(len(names), mostListed)] {
		l.node.Status.Images = append(l.node.Status.Images, v1.ContainerImage{Names: []string{name}, SizeBytes: l.on[name] * fixture.MB})
	}
	for _, f := range change {
		f(l.node)
	}
	must(l.t, l.nodeStore.Update(l.node))
	l.nodes.OnUpdate(old, l.node)
}

// start runs a pod with an image of the node.
func (l *listing) start(pod, image string) {
	l.t.Helper()
	l.startAs(pod, image, image)
}

// startAs is start with the ID that the runtime states.
func (l *listing) startAs(pod, image, id string) {
	l.t.Helper()
	before := fixture.On(fixture.Pod(pod, image), "n1", "")
	after := before.DeepCopy()
	after.Status.Phase = v1.PodRunning
	after.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "c", Image: image, ImageID: id, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(l.clock.Now())}},
	}}
	must(l.t, l.podStore.Add(after))
	l.pods.OnUpdate(before, after)
	l.running[pod] = after
}

func (l *listing) stop(pod string) {
	l.t.Helper()
	must(l.t, l.podStore.Delete(l.running[pod]))
	l.pods.OnDelete(l.running[pod])
	delete(l.running, pod)
}

func (l *listing) pass(d time.Duration) { l.clock.SetTime(l.clock.Now().Add(d)) }

// present reports whether the image of a pod counts as present.
func (l *listing) present(image string) bool {
	var m index.Measurement
	p := l.tracker.ProfileOf(&v1.Pod{})
	p.Measure(p.Wanted(fixture.Pod("q", image)), &m)
	bytes, _ := m.Node("n1")
	return bytes.Present > 0
}

func (l *listing) expect(what string, images map[string]bool) {
	l.t.Helper()
	for image, want := range images {
		if got := l.present(image); got != want {
			l.t.Errorf("%s: %s present %t, want %t", what, image, got, want)
		}
	}
}

// The images of TestUnlisted.
const a, b, c, d, e, f = "quay.io/a:1", "quay.io/b:1", "quay.io/c:1", "quay.io/d:1", "quay.io/e:1", "quay.io/f:1"

func TestUnlisted(t *testing.T) {
	full := func(t *testing.T) *listing {
		l := newListing(t)
		for i, name := range []string{a, b, c, d} {
			l.has(name, int64(500-100*i))
		}
		l.report()
		return l
	}
	t.Run("a larger image comes", func(t *testing.T) {
		l := full(t)
		l.has(e, 600)
		l.report()
		l.expect("d is the smallest", map[string]bool{a: true, d: true, e: true})
		l.pass(59 * time.Minute)
		l.report(func(n *v1.Node) { n.Labels = map[string]string{"heart": "beat"} })
		l.expect("for an hour", map[string]bool{d: true})
		l.pass(2 * time.Minute)
		l.report()
		l.expect("after an hour", map[string]bool{a: true, d: false})
	})
	t.Run("its pods run", func(t *testing.T) {
		l := full(t)
		l.has(e, 600)
		l.has(f, 50)
		l.report()
		l.start("small", f)     // was never listed
		l.pass(3 * time.Minute) // longer than a pod that started counts without a report
		l.expect("before the next report", map[string]bool{f: true})
		l.start("old", d)
		l.pass(3 * time.Hour)
		l.report()
		l.expect("after hours", map[string]bool{d: true, f: true})
		l.stop("small")
		l.pass(59 * time.Minute)
		l.report()
		l.expect("an hour after its last pod", map[string]bool{d: true, f: true})
		l.pass(2 * time.Minute)
		l.report()
		l.expect("more than an hour after its last pod", map[string]bool{d: true, f: false})
	})
	t.Run("the kubelet removes images", func(t *testing.T) {
		l := full(t)
		l.has(e, 50)
		l.has(f, 60)
		for i, name := range []string{e, a, f} { // in this order
			l.start(name, name)
			l.pass(time.Minute)
			l.stop(name)
			l.expect("used", map[string]bool{name: true})
			l.pass(time.Duration(i) * time.Minute)
		}
		l.start("runs", "quay.io/none:1") // nothing is known about its layers
		delete(l.on, a)
		delete(l.on, e)
		l.has("quay.io/g:1", 250)
		l.report()
		l.expect("what was used before a is gone, too", map[string]bool{a: false, e: false, f: true, b: true, d: true})
	})
	t.Run("the disk is full", func(t *testing.T) {
		l := full(t)
		l.has(e, 50)
		l.start("p", e)
		l.has(f, 60)
		l.start("q", f)
		l.stop("q")
		l.report(func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{
				{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse}, {Type: v1.NodeMemoryPressure, Status: v1.ConditionTrue},
			}
		})
		l.expect("before", map[string]bool{e: true, f: true})
		l.report(func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}}
		})
		l.expect("only pods keep images", map[string]bool{e: true, f: false, a: true})
	})
	t.Run("the image of a pod that must not pull is absent", func(t *testing.T) {
		l := full(t)
		l.has(e, 50)
		l.start("p", e)
		l.stop("p")
		for reason, present := range map[string]bool{"ImagePullBackOff": true, "ErrImageNeverPull": false} {
			before := fixture.On(fixture.Pod("again", e), "n1", "")
			after := before.DeepCopy()
			after.Status.ContainerStatuses = []v1.ContainerStatus{{Image: e, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}}
			if reason == "ErrImageNeverPull" {
				l.expect("a registry that refuses proves nothing", map[string]bool{e: true})
			}
			l.pods.OnUpdate(before, after)
			l.expect(reason, map[string]bool{e: present})
			l.start("p", e)
			l.stop("p")
		}
	})
	t.Run("its tag moves", func(t *testing.T) {
		l := full(t)
		digest := "quay.io/e@" + fixture.Digest("of e")
		l.has(e, 50)
		l.images[imageref.Canonical(fixture.Digest("of e"))] = l.images[imageref.Canonical(e)]
		l.startAs("p", e, digest)
		l.expect("before", map[string]bool{digest: true})
		// The registry has other layers under the tag now. The node does not.
		l.images[imageref.Canonical(e)] = fixture.Manifest(index.Layer{Digest: fixture.Digest("new"), Size: 50 * fixture.MB})
		l.report()
		l.stop("p")
		l.expect("after", map[string]bool{digest: true, e: false})
	})
	t.Run("the list is complete", func(t *testing.T) {
		l := full(t)
		l.has(e, 600)
		l.report()
		delete(l.on, d)
		delete(l.on, c)
		l.report()
		l.expect("fewer images than it could list", map[string]bool{a: true, b: true, e: true, c: false, d: false})
	})
	t.Run("made again", func(t *testing.T) {
		l := full(t)
		l.has(e, 600)
		l.report()
		l.report(func(n *v1.Node) { n.UID = types.UID("another") })
		l.expect("a new node", map[string]bool{a: true, e: true, d: false})
		l.nodes.OnDelete(l.node)
		if n := l.tracker.NodesWithRest(); n != 0 {
			t.Errorf("%d deleted nodes are remembered", n)
		}
	})
	t.Run("very many", func(t *testing.T) {
		l := full(t)
		const most, more = 512, 3
		name := func(i int) string { return fmt.Sprintf("quay.io/many:%d", i) }
		for i := range most + more {
			l.has(name(i), 1)
			l.start("p", name(i))
			l.stop("p")
			l.pass(time.Second)
		}
		l.expect("the last that were used count", map[string]bool{name(0): false, name(more - 1): false, name(more): true, name(most + more - 1): true})
	})
	t.Run("off", func(t *testing.T) {
		l := full(t)
		l.tracker.SetUnlistedTimeout(0)
		l.has(e, 600)
		l.report()
		l.expect("only what is listed", map[string]bool{a: true, d: false, e: true})
	})
}

// Images and pods come and go, and the kubelet removes the least recently used images: the
// images of running pods count always, and what never was on the node never.
func TestUnlistedProperties(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test that can be repeated
		l := newListing(t)
		used := map[string]time.Time{}
		wrong, looked, reported := 0, 0, l.clock.Now()
		for step := range 400 {
			l.pass(time.Duration(r.IntN(20)) * time.Second)
			name := fmt.Sprintf("quay.io/i%d:1", r.IntN(12))
			switch kind := r.IntN(8); {
			case kind < 4:
				if l.on[name] == 0 {
					l.has(name, 10+r.Int64N(500))
				}
				used[name] = l.clock.Now()
				l.start(fmt.Sprintf("p%d", step), name)
			case kind < 7 && len(l.running) > 0:
				pod := slices.Sorted(maps.Keys(l.running))[0]
				used[l.running[pod].Spec.Containers[0].Image] = l.clock.Now()
				l.stop(pod)
			default:
				inUse := map[string]bool{}
				for _, p := range l.running {
					inUse[p.Spec.Containers[0].Image] = true
				}
				byAge := slices.SortedFunc(maps.Keys(l.on), func(a, b string) int { return used[a].Compare(used[b]) })
				byAge = slices.DeleteFunc(byAge, func(n string) bool { return inUse[n] })
				for _, n := range byAge[:min(len(byAge), r.IntN(3))] {
					delete(l.on, n)
				}
			}
			if l.clock.Now().Sub(reported) > 30*time.Second { // kubelets do within 40 s
				l.report()
				reported = l.clock.Now()
			}
			for _, p := range l.running {
				if image := p.Spec.Containers[0].Image; !l.present(image) {
					t.Fatalf("seed %d, step %d: %s of %s does not count", seed, step, image, p.Name)
				}
			}
			if l.present("quay.io/never:1") {
				t.Fatalf("seed %d, step %d: an image that never was there", seed, step)
			}
			for i := range 12 {
				looked++
				if name := fmt.Sprintf("quay.io/i%d:1", i); l.present(name) != (l.on[name] > 0) {
					wrong++
				}
			}
		}
		// Between reports, and of images that are never listed, it may be wrong.
		if share := float64(wrong) / float64(looked); share > 0.25 {
			t.Errorf("seed %d: wrong in %.2f of all cases", seed, share)
		}
	}
}
