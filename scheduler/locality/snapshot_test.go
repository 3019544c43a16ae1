package locality_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// reporter is a source of layers that reports once.
type reporter map[string]*locality.NodeReport

func (reporter) Name() string    { return "test" }
func (reporter) HasSynced() bool { return true }
func (r reporter) Start(_ context.Context, sink locality.NodeSink) (locality.Syncer, error) {
	r.report(sink)
	return r, nil
}

func (r reporter) report(sink locality.NodeSink) {
	for node, report := range r {
		again := *report
		sink.SetReport("test", node, &again)
	}
}

// A Snapshot rates nodes as a Tracker does that begins with the same objects.
func TestSnapshot(t *testing.T) {
	rnd := rand.New(rand.NewPCG(25, 1))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	image := func(n int) string { return fmt.Sprintf("quay.io/image-%d:1", n) }
	nodeImages := func() (images []index.Image) {
		for n := range 20 {
			if rnd.IntN(3) == 0 {
				images = append(images, fixture.Image(image(n), fixture.Layers{"base": 100, fmt.Sprint("middle-", n/4): 50, fmt.Sprint("top-", n): int64(n + 1)}))
			}
		}
		return images
	}
	var objects []runtime.Object
	var nodes []*v1.Node
	var pods []*v1.Pod
	reports := reporter{}
	for n := range 20 {
		node := fixture.Node(fmt.Sprint("n", n))
		switch n % 3 {
		case 0: // an agent reports it
			reports[node.Name] = &locality.NodeReport{UID: node.UID, Fresh: n != 6, Images: nodeImages()}
		case 1: // it names images
			for _, image := range nodeImages() {
				node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: image.Names, SizeBytes: 5 * fixture.MB})
			}
		}
		nodes = append(nodes, node)
		objects = append(objects, node)
	}
	for n := range 60 {
		// One image each, and either all pods of a node pull or none: otherwise it depends on the
		// order of the pods which of them brings a layer.
		on := rnd.IntN(20)
		pod := fixture.On(fixture.Pod(fmt.Sprint("p", n), image(rnd.IntN(20))), fmt.Sprint("n", on), "")
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(now.Add(-time.Duration(rnd.IntN(900)) * time.Second))}}
		if on%2 == 0 {
			pod.Status.Phase = v1.PodRunning
			pod.Status.ContainerStatuses = []v1.ContainerStatus{{ImageID: "x", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Duration(rnd.IntN(90)) * time.Second))}}}}
		}
		pods = append(pods, pod)
		objects = append(objects, pod)
	}
	clock := clocktesting.NewFakePassiveClock(now)
	args := fixture.Args()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	core := factory.Core().V1()
	tracker := locality.NewTracker(locality.Config{Nodes: core.Nodes(), Pods: core.Pods(), Layers: []locality.NodeSource{reports}, Clock: clock})
	profile := tracker.NewProfile("default-scheduler", args)
	if err := tracker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	fixture.Synced(ctx, t, tracker)
	snapshot := locality.NewSnapshot(ctx, "default-scheduler", locality.Moment{Args: args, Nodes: nodes, Pods: pods, Reports: reports.report, Clock: clock})

	some := false
	for range 100 {
		pod := fixture.Pod("new", image(rnd.IntN(25)), image(rnd.IntN(25)))
		var a, b index.Measurement
		profile.Measure(profile.Wanted(pod), &a)
		snapshot.Measure(snapshot.Wanted(pod), &b)
		if !reflect.DeepEqual(a.Images, b.Images) {
			t.Errorf("%v: %v, the Tracker has %v", pod.Spec.Containers, b.Images, a.Images)
		}
		for _, node := range nodes {
			x, ok1 := a.Node(node.Name)
			y, ok2 := b.Node(node.Name)
			if x != y || !ok1 || !ok2 {
				t.Fatalf("%s and %s on %s: %+v, the Tracker has %+v", pod.Spec.Containers[0].Image, pod.Spec.Containers[1].Image, node.Name, y, x)
			}
			some = some || x.Present > 0 && x.Arriving > 0 && x.Pending > 0
		}
	}
	if !some {
		t.Error("no node has all kinds of bytes")
	}
	if !snapshot.HasFreshReport(nodes[0]) || snapshot.HasFreshReport(nodes[6]) || snapshot.HasFreshReport(nodes[1]) {
		t.Error("not known which nodes have fresh reports")
	}
}
