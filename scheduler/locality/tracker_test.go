package locality_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// Short names for what tests are made of.
var (
	args, nodes, node, pod, on = fixture.Args, fixture.Nodes, fixture.Node, fixture.Pod, fixture.On
	digest, manifest           = fixture.Digest, fixture.Manifest
)

const mb = fixture.MB

// suite is a Tracker over real informers, without a scheduler.
type suite struct {
	t       *testing.T
	ctx     context.Context
	client  *fake.Clientset
	clock   *clocktesting.FakePassiveClock
	tracker *locality.Tracker
	profile *locality.Profile
	logger  klog.Logger
	agent   *fixture.Agent
	images  *fixture.AwaitedImages
}

func newSuite(t *testing.T, args *config.LayerLocalityArgs, nodes []*v1.Node, pods ...*v1.Pod) *suite {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	t.Cleanup(cancel)
	s := &suite{t: t, ctx: ctx, logger: logger, clock: clocktesting.NewFakePassiveClock(time.Now()), agent: &fixture.Agent{}, images: &fixture.AwaitedImages{Images: fixture.Images{}}}
	var objects []runtime.Object
	for _, n := range nodes {
		objects = append(objects, n)
	}
	for _, p := range pods {
		objects = append(objects, p)
	}
	s.client = fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(s.client, 0)
	core := factory.Core().V1()
	s.tracker = locality.NewTracker(locality.Config{
		Nodes: core.Nodes(), Pods: core.Pods(), Clock: s.clock,
		Images: []locality.ManifestSource{s.images}, Layers: []locality.NodeSource{s.agent},
	})
	if err := s.tracker.Start(ctx); err == nil || !strings.Contains(err.Error(), "no profile") {
		t.Fatalf("started without a profile: %v", err)
	}
	s.profile = s.tracker.NewProfile("default-scheduler", args)
	if err := s.tracker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	fixture.Synced(ctx, t, s.tracker)
	fixture.Watched(t, s.client, "nodes", "pods")
	return s
}

// measure returns what a node has of a pod's images.
func (s *suite) measure(pod *v1.Pod, node string) index.NodeBytes {
	s.t.Helper()
	var m index.Measurement
	s.profile.Measure(s.profile.Wanted(pod), &m)
	bytes, _ := m.Node(node)
	return bytes
}

// logged counts the messages that have a text.
func (s *suite) logged(text string) (n int) {
	for _, entry := range s.logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		if strings.Contains(entry.Message, text) {
			n++
		}
	}
	return n
}

func (s *suite) eventually(what string, f func() bool) {
	s.t.Helper()
	fixture.Eventually(s.t, what, func() any { return s.tracker.Stats() }, f)
}

// failing is a source that does not start.
type failing struct{}

func (failing) Name() string { return "agents" }
func (failing) Start(context.Context, locality.NodeSink) (locality.Syncer, error) {
	return nil, errors.New("no such resource")
}

func TestStart(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	core := factory.Core().V1()
	tracker := locality.NewTracker(locality.Config{Nodes: core.Nodes(), Pods: core.Pods(), Layers: []locality.NodeSource{failing{}}})
	tracker.NewProfile("p", args())
	if err := tracker.Start(t.Context()); err == nil || err.Error() != "source of layers agents: no such resource" {
		t.Errorf("a source does not start: %v", err)
	}
	if !tracker.Follows(core.Nodes().Informer()) || tracker.Follows(core.Pods().Informer()) {
		t.Error("the tracker does not recognize its informer of Nodes")
	}
}

// Pods may be listed before nodes: what they bring is not lost. Time stands still while anything
// goes on (testing/synctest).
func TestPodsBeforeNodes(t *testing.T) { synctest.Test(t, podsBeforeNodes) }

func podsBeforeNodes(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	// Each has a client of its own: one answers one request at a time.
	pods := informers.NewSharedInformerFactory(fake.NewClientset(on(pod("p", "quay.io/a:1"), "n1", "")), 0)
	client := fake.NewClientset(node("n1"))
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		cache.WaitForCacheSync(ctx.Done(), pods.Core().V1().Pods().Informer().HasSynced)
		time.Sleep(time.Second) // passes once a handler that does not wait has looked at the pod
		return false, nil, nil
	})
	nodes := informers.NewSharedInformerFactory(client, 0)
	t.Cleanup(func() { cancel(); pods.Shutdown(); nodes.Shutdown() })
	tracker := locality.NewTracker(locality.Config{Nodes: nodes.Core().V1().Nodes(), Pods: pods.Core().V1().Pods()})
	tracker.NewProfile("default-scheduler", args())
	if err := tracker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pods.Start(ctx.Done())
	if tracker.HasSynced() {
		t.Error("it has synced without nodes")
	}
	nodes.Start(ctx.Done())
	fixture.Synced(ctx, t, tracker)
	if got := tracker.Stats().Reservations; got != 1 {
		t.Errorf("%d reservations, want that of the pod", got)
	}
}

// Placed pods and nodes come and go through the informers.
func TestInformers(t *testing.T) {
	image := "quay.io/a:1"
	s := newSuite(t, args(), nodes("n1", "n2"), on(pod("before", image), "n1", ""))
	x := s.tracker
	ctx := s.ctx
	expectArriving := func(what string, arriving, present int64) {
		t.Helper()
		s.eventually(what, func() bool {
			got := s.measure(pod("p", image), "n1")
			return got.Arriving == arriving && got.Present == present
		})
	}
	expectArriving("a pod that was placed before the scheduler started", 100*mb, 0)

	update := func(phase v1.PodPhase, status v1.ContainerStatus) {
		t.Helper()
		p := on(pod("before", image), "n1", "")
		status.Name = "c0"
		p.Status = v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{status}}
		if _, err := s.client.CoreV1().Pods("ns").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(v1.PodPending, v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}})
	expectArriving("the pull failed", 0, 0)
	update(v1.PodPending, v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}})
	expectArriving("it is tried again", 100*mb, 0)
	update(v1.PodPending, v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}})
	expectArriving("it failed again", 0, 0)
	update(v1.PodPending, v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "pull QPS exceeded"}}})
	expectArriving("the kubelet puts the pull off", 100*mb, 0)
	update(v1.PodRunning, v1.ContainerStatus{ImageID: "x"})
	expectArriving("the pod runs", 0, 100*mb)
	if err := s.client.CoreV1().Pods("ns").Delete(ctx, "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CoreV1().Pods("ns").Create(ctx, on(pod("other", "quay.io/other:1"), "n2", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("a pod that somebody else placed", func() bool { return x.Stats().Reservations == 2 })
	expectArriving("the image of a deleted pod that ran", 0, 100*mb)
	if err := s.client.CoreV1().Pods("ns").Delete(ctx, "other", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("a pod deleted while it waited", func() bool { return x.Stats().Reservations == 1 })

	report := node("n1")
	report.Status.Images = []v1.ContainerImage{{Names: []string{image}, SizeBytes: 300 * mb}}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(ctx, report, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the report of the node", func() bool { st := x.Stats(); return st.Reservations == 0 && st.Images == 1 })
	if got := s.measure(pod("p", image), "n1"); got.Total == 0 || got.Present != got.Total {
		t.Errorf("the node reports the image: %+v", got)
	}
	if got := s.measure(pod("p", image), "n2"); got.Total == 0 || got.Present != 0 {
		t.Errorf("the other node does not: %+v", got)
	}

	if err := s.client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("a deleted node", func() bool { st := x.Stats(); return st.Nodes == 1 && st.Images == 0 })
	if _, err := s.client.CoreV1().Nodes().Create(ctx, report, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("a node that is back", func() bool { st := x.Stats(); return st.Nodes == 2 && st.Images == 1 })
}

// A pod or a node may be deleted and made again between two updates: only its UID shows it.
func TestMadeAgain(t *testing.T) {
	image := "quay.io/a:1"
	s := newSuite(t, args(), nodes("n1", "n2"), on(pod("p", image), "n1", ""))
	arriving := func(n1, n2 int64) func() bool {
		return func() bool {
			return s.measure(pod("q", image), "n1").Arriving == n1 && s.measure(pod("q", image), "n2").Arriving == n2
		}
	}
	s.eventually("the pod", arriving(100*mb, 0))
	again := on(pod("p", image), "n2", "")
	again.UID = "again"
	if _, err := s.client.CoreV1().Pods("ns").Update(s.ctx, again, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("a pod of that name on another node", arriving(0, 100*mb))
	if got := s.tracker.Stats().Reservations; got != 1 {
		t.Errorf("%d reservations, want that of the new pod", got)
	}

	s.agent.Holds("n1", fixture.Image("quay.io/b:1", fixture.Layers{"b": 1}))
	report := node("n1")
	report.Status.Images = []v1.ContainerImage{{Names: []string{image}, SizeBytes: 300 * mb}}
	if _, err := s.client.CoreV1().Nodes().Update(s.ctx, report, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the report of the node", func() bool { return s.measure(pod("q", image), "n1").Present > 0 })
	if got := s.measure(pod("q", "quay.io/b:1"), "n1"); got.Present == 0 {
		t.Error("the report of another source on the node is forgotten")
	}
	fresh := node("n1")
	fresh.UID = "another"
	if _, err := s.client.CoreV1().Nodes().Update(s.ctx, fresh, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("a node of that name without images", func() bool {
		return s.measure(pod("q", image), "n1").Present == 0 && s.measure(pod("q", "quay.io/b:1"), "n1").Present == 0
	})
	// Also when it lists what the one before it did.
	s.agent.Holds("n1", fixture.Image("quay.io/b:1", fixture.Layers{"b": 1}))
	same := fresh.DeepCopy()
	same.UID = "a third"
	if _, err := s.client.CoreV1().Nodes().Update(s.ctx, same, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the third node", func() bool { return s.measure(pod("q", "quay.io/b:1"), "n1").Present == 0 })
}

// The kubelet may leave ImagePullBackOff in the status until the container runs.
func TestStartedAfterBackOff(t *testing.T) {
	image := "quay.io/a:1"
	s := newSuite(t, args(), nodes("n1", "n2"), on(pod("p", image), "n1", ""))
	s.images.Images["quay.io/a:1"] = manifest(index.Layer{Digest: digest("a"), Size: 200 * mb})
	update := func(phase v1.PodPhase, status v1.ContainerStatus) {
		p := on(pod("p", image), "n1", "")
		status.Name = "c0"
		p.Status = v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{status}}
		if _, err := s.client.CoreV1().Pods("ns").UpdateStatus(s.ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(v1.PodPending, v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}})
	s.eventually("released", func() bool { return s.tracker.Stats().Reservations == 0 })
	update(v1.PodRunning, v1.ContainerStatus{ImageID: "x"})
	s.eventually("a pod of the image runs on n1", func() bool { return s.measure(pod("q", image), "n1").Present > 0 })
}

// What a pod that started holds counts until its node should have reported it; updates of
// the pod, of its labels for example, do not make them count again.
func TestUpdatesOfStartedPods(t *testing.T) {
	image := "quay.io/a:1"
	running := on(pod("p", image), "n1", "")
	running.Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{
		ImageID: "x", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.ReportTimeout = &metav1.Duration{Duration: time.Minute} }), nodes("n1", "n2"), running)
	present := func() bool { return s.measure(pod("q", image), "n1").Present > 0 }
	s.eventually("the pod", present)
	s.clock.SetTime(s.clock.Now().Add(61 * time.Second))
	if present() {
		t.Error("a minute after the pod started, its layers count as present without a report")
	}
	labelled := running.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	if _, err := s.client.CoreV1().Pods("ns").Update(s.ctx, labelled, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Events of pods come in order: once this pod is known, the update has been seen.
	if _, err := s.client.CoreV1().Pods("ns").Create(s.ctx, on(pod("marker", "quay.io/b:1"), "n2", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod on n2", func() bool { return s.tracker.Stats().Reservations > 0 })
	if present() {
		t.Error("they count again after an update of the pod")
	}
}

// A pod was placed before its image was known: from then on it brings what the image has.
func TestManifestComesLater(t *testing.T) {
	image := "quay.io/a:1"
	s := newSuite(t, args(), nodes("n1", "n2"), on(pod("p", image), "n1", ""))
	s.eventually("the pod", func() bool { return s.measure(pod("q", image), "n1").Pending == 100*mb })
	s.images.Images["quay.io/a:1"] = manifest(index.Layer{Digest: digest("a"), Size: 700 * mb})
	if got := s.measure(pod("q", image), "n1"); got.Pending != 700*mb || got.Arriving != 700*mb {
		t.Errorf("%+v, want 700 MB on their way", got)
	}
	if got := s.tracker.Stats(); got.Reservations != 1 || got.PendingBytes != 700*mb {
		t.Errorf("%+v", got)
	}
}

// Whether a Node joins downloads is followed.
func TestNodesThatJoinDownloads(t *testing.T) {
	labelled := func(name, value string) *v1.Node {
		n := node(name)
		n.Labels = map[string]string{nodestatus.JoinsDownloadsLabel: value}
		return n
	}
	containerd := node("containerd")
	containerd.Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.4"
	all := []*v1.Node{node("silent"), labelled("apart", "false"), labelled("joins", "true"), labelled("misspelt", "yes"), containerd}
	s := newSuite(t, args(), all)
	shared, own := index.Layer{Digest: digest("shared"), Size: 200 * mb}, index.Layer{Digest: digest("own"), Size: 50 * mb}
	s.images.Images["quay.io/a:1"] = manifest(shared)
	s.images.Images["quay.io/b:1"] = manifest(shared, own)
	// arriving are the bytes that come for another image, which is being pulled.
	arriving := func(node string) int64 {
		first := pod("first", "quay.io/a:1")
		s.profile.Reserve(first, node)
		defer s.profile.Release(first.UID)
		return s.measure(pod("p", "quay.io/b:1"), node).Arriving
	}
	for node, want := range map[string]int64{"silent": 0, "apart": 0, "joins": 200 * mb, "misspelt": 0, "containerd": 200 * mb} {
		if got := arriving(node); got != want {
			t.Errorf("%s: %d bytes arrive, want %d", node, got, want)
		}
	}
	const message = "The label does not state whether the node joins downloads"
	if n := s.logged(message); n != 1 {
		t.Errorf("%d messages about the label that cannot be read", n)
	}

	update := func(n *v1.Node) {
		t.Helper()
		if _, err := s.client.CoreV1().Nodes().Update(s.ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(labelled("silent", "true"))
	s.eventually("a label", func() bool { return arriving("silent") == 200*mb })
	update(labelled("joins", "false"))
	s.eventually("another value", func() bool { return arriving("joins") == 0 })
	containerd = containerd.DeepCopy()
	containerd.Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.36.3"
	update(containerd)
	s.eventually("another runtime", func() bool { return arriving("containerd") == 0 })

	// A heartbeat, or a change of something else, is no news about the label.
	heartbeat := labelled("misspelt", "yes")
	heartbeat.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}}
	update(heartbeat)
	update(labelled("silent", "no"))
	s.eventually("a value that cannot be read", func() bool { return arriving("silent") == 0 })
	if n := s.logged(message); n != 2 {
		t.Errorf("%d messages about two labels that cannot be read", n)
	}
}

// The argument is for nodes that do not state it.
func TestJoinsDownloadsArgument(t *testing.T) {
	apart, containerd := node("apart"), node("containerd")
	apart.Labels = map[string]string{nodestatus.JoinsDownloadsLabel: "false"}
	containerd.Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.4"
	for _, argument := range []bool{false, true} {
		s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.JoinsDownloads = &argument }), nodes("silent"))
		for n, want := range map[*v1.Node]bool{node("silent"): argument, apart: false, containerd: true} {
			if got := s.profile.JoinsDownloads(n); got != want {
				t.Errorf("argument %t: %s joins downloads %t", argument, n.Name, got)
			}
		}
	}
}

// A clock that is ahead must not keep an arrival for ever.
func TestFutureDeadline(t *testing.T) {
	p := on(pod("p", "quay.io/a:1"), "n1", "")
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(time.Now().Add(24 * 365 * time.Hour))}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
	s.measure(p, "n1")
	if n := s.tracker.Stats().Reservations; n != 0 {
		t.Errorf("%d reservations an hour later, arrivalTimeout is 10m", n)
	}
}

// While an init container runs, the images of the others are not pulled yet. That begins when it has finished,
// however long ago the pod was placed.
func TestInitContainer(t *testing.T) {
	p := on(pod("p", "quay.io/a:1"), "n1", "")
	p.Spec.InitContainers = []v1.Container{{Name: "wait", Image: "quay.io/wait:1"}}
	p.Status = v1.PodStatus{Phase: v1.PodPending,
		Conditions:            []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}},
		InitContainerStatuses: []v1.ContainerStatus{{Name: "wait", ImageID: "y", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Second))}}}},
		ContainerStatuses:     []v1.ContainerStatus{{Name: "c0", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}}}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	// The next pod of the template finds one image there, and the other one on its way: no link has to pull for it now.
	next := pod("q", "quay.io/a:1")
	next.Spec.InitContainers = p.Spec.InitContainers
	s.eventually("the init container runs", func() bool {
		got := s.measure(next, "n1")
		return got.Present == 100*mb && got.Arriving == 100*mb && got.Pending == 0
	})
	p = p.DeepCopy()
	p.Status.InitContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	if _, err := s.client.CoreV1().Pods("ns").UpdateStatus(s.ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the main container's turn", func() bool {
		got := s.measure(next, "n1")
		return got.Present == 100*mb && got.Arriving == 100*mb && got.Pending == 100*mb
	})
}

func container(name, image string, state v1.ContainerState) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, Image: image, ImageID: image + "@" + digest(image), ContainerID: "of " + image, State: state}
}

func isRunning() v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

func waits(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

// set writes a pod as the kubelet or a user has it now.
func (s *suite) set(p *v1.Pod) {
	s.t.Helper()
	if _, err := s.client.CoreV1().Pods("ns").Update(s.ctx, p, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

// A pull arrives as long as the kubelet pulls: 750 MB take more than arrivalTimeout at 10 Mbit/s. A pod that waits for
// something before it pulls keeps no link busy, and is not expected for ever.
func TestLongPull(t *testing.T) {
	ready := func(status v1.ConditionStatus) []v1.PodCondition {
		return []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: status, LastTransitionTime: metav1.Now()}}
	}
	p := on(pod("p", "quay.io/big:1"), "n1", "")
	p.Status = v1.PodStatus{Phase: v1.PodPending, Conditions: ready(v1.ConditionFalse), ContainerStatuses: []v1.ContainerStatus{{Name: "c0", State: waits("ContainerCreating")}}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	s.images.Images["quay.io/big:1"] = manifest(index.Layer{Digest: digest("big"), Size: 2000 * mb})
	is := func(arriving, pending int64) func() bool {
		return func() bool {
			got := s.measure(pod("q", "quay.io/big:1"), "n1")
			return got.Arriving == arriving*mb && got.Pending == pending*mb
		}
	}
	s.eventually("it is about to be pulled", is(2000, 2000))
	s.pass(11 * time.Second)
	s.eventually("the pod waits for a volume: it arrives, and the link is idle", is(2000, 0))
	s.pass(10 * time.Minute)
	s.eventually("not for ever", is(0, 0))
	p = p.DeepCopy()
	p.Status.Conditions = ready(v1.ConditionTrue)
	s.set(p)
	s.eventually("the volume is there", is(2000, 2000))
	s.pass(time.Hour)
	s.eventually("the pull takes long", is(2000, 2000))
	p = p.DeepCopy()
	p.Status.ContainerStatuses[0].State = waits("CreateContainerConfigError")
	s.set(p)
	s.eventually("it is there, the container lacks a secret", func() bool {
		got := s.measure(pod("q", "quay.io/big:1"), "n1")
		return got.Present == 2000*mb && got.Pending == 0
	})
}

// A kubelet before 1.36 reports the sandbox as ready only once it has started containers: until then it may be pulling.
func TestLongPullOfAnOldKubelet(t *testing.T) {
	old := node("n1")
	old.Status.NodeInfo.KubeletVersion = "v1.35.8"
	p := on(pod("p", "quay.io/big:1"), "n1", "")
	p.Status = v1.PodStatus{
		Phase: v1.PodPending, Conditions: []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, LastTransitionTime: metav1.Now()}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "c0", State: waits("ContainerCreating")}},
	}
	s := newSuite(t, args(), []*v1.Node{old, node("n2")}, p)
	s.images.Images["quay.io/big:1"] = manifest(index.Layer{Digest: digest("big"), Size: 2000 * mb})
	is := func(arriving, pending int64) func() bool {
		return func() bool {
			got := s.measure(pod("q", "quay.io/big:1"), "n1")
			return got.Arriving == arriving*mb && got.Pending == pending*mb
		}
	}
	s.eventually("it is pulled", is(2000, 2000))
	s.pass(9 * time.Minute)
	s.eventually("it still is", is(2000, 2000))
	s.pass(time.Hour)
	s.eventually("it comes, but the link is not taken to be busy for ever", is(2000, 0))
}

// The image of a running pod is changed in place: its node pulls the new one.
func TestImageChangedInPlace(t *testing.T) {
	p := on(pod("p", "quay.io/old:1", "quay.io/other:1"), "n1", "")
	p.Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{container("c0", "quay.io/old:1", isRunning()), container("c1", "quay.io/other:1", isRunning())}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	s.images.Images["quay.io/new:1"] = manifest(index.Layer{Digest: digest("new"), Size: 200 * mb})
	is := func(present, arriving int64) func() bool {
		return func() bool {
			got := s.measure(pod("q", "quay.io/new:1"), "n1")
			return got.Present == present*mb && got.Arriving == arriving*mb
		}
	}
	p = p.DeepCopy()
	p.Spec.Containers[0].Image = "quay.io/new:1"
	s.set(p)
	s.eventually("the image is changed", is(0, 200))
	p = p.DeepCopy()
	p.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	s.set(p)
	s.pass(11 * time.Minute)
	s.eventually("the container was ended, and the pull takes long", is(0, 200))
	p = p.DeepCopy()
	p.Status.ContainerStatuses[0] = container("c0", "quay.io/new:1", isRunning())
	p.Status.ContainerStatuses[0].RestartCount = 1
	s.set(p)
	s.eventually("it runs again", is(200, 0))
	if n := s.tracker.ChangedImages(); n != 0 {
		t.Errorf("%d pods are remembered as changed", n)
	}
	p = p.DeepCopy()
	p.Spec.Containers[1].Image = "quay.io/new:2"
	s.set(p)
	s.eventually("the other one is changed", func() bool { return s.tracker.ChangedImages() == 1 })
	if err := s.client.CoreV1().Pods("ns").Delete(s.ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod is gone", func() bool { return s.tracker.ChangedImages() == 0 })
}

// An ephemeral container brings an image to the node of its pod.
func TestEphemeralContainer(t *testing.T) {
	p := on(pod("p", "quay.io/a:1"), "n1", "")
	p.Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{container("c0", "quay.io/a:1", isRunning())}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	s.images.Images["quay.io/debug:1"] = manifest(index.Layer{Digest: digest("debug"), Size: 300 * mb})
	p = p.DeepCopy()
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "quay.io/debug:1"}}}
	s.set(p)
	s.eventually("it was added", func() bool { return s.measure(pod("q", "quay.io/debug:1"), "n1").Arriving == 300*mb })
	p = p.DeepCopy()
	p.Status.EphemeralContainerStatuses = []v1.ContainerStatus{container("debug", "quay.io/debug:1", isRunning())}
	s.set(p)
	s.eventually("it runs", func() bool { return s.measure(pod("q", "quay.io/debug:1"), "n1").Present == 300*mb })
}

// The rules for names are those of the nodes: the pod has opensuse/tumbleweed, the
// source has the image under the name that the alias stands for.
func TestAliasInParts(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) {
		a.ShortNames = []configv1.ShortName{{Name: "opensuse/tumbleweed", Repository: "registry.opensuse.org/opensuse/tumbleweed"}}
	}), nodes("n1"))
	s.images.Images["registry.opensuse.org/opensuse/tumbleweed:latest"] = manifest(index.Layer{Digest: digest("a"), Size: 200 * mb})
	if got := s.measure(pod("p", "opensuse/tumbleweed"), "n1"); got.Total != 200*mb {
		t.Errorf("%+v, want the 200 MB that the source has", got)
	}
}

// A pod is followed with the arguments of its own profile; a pod of another
// scheduler with those of the first profile.
func TestProfiles(t *testing.T) {
	unknown := func(bytes int64) *config.LayerLocalityArgs {
		return args(func(a *configv1.LayerLocalityArgs) { a.UnknownImageBytes = ptr.To(bytes) })
	}
	s := newSuite(t, unknown(100), nodes("n1", "n2", "n3"))
	s.tracker.NewProfile("other", unknown(500))
	for name, scheduler := range map[string]string{"n1": "default-scheduler", "n2": "other", "n3": "somebody-else"} {
		p := on(pod("on-"+name, "quay.io/"+name+":1"), name, "")
		p.Spec.SchedulerName = scheduler
		if _, err := s.client.CoreV1().Pods("ns").Create(s.ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually("three placed pods", func() bool { return s.tracker.Stats().Reservations == 3 })
	for name, want := range map[string]int64{"n1": 100, "n2": 500, "n3": 100} {
		if got := s.measure(pod("p", "quay.io/n1:1", "quay.io/n2:1", "quay.io/n3:1"), name); got.Pending != want {
			t.Errorf("%s has to pull %d bytes, want %d", name, got.Pending, want)
		}
	}
	s.tracker.NewProfile("another", unknown(700)) // pods were looked at: nothing is locked any longer
}

// A pod may be known before its node is, and a node may be made anew between two
// looks: what its pods bring counts all the same.
func TestNodesThatComeLater(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	if _, err := s.client.CoreV1().Pods("ns").Create(s.ctx, on(pod("early", "quay.io/a:1"), "late", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Events of pods come in order: once this one is known, the other has been looked at.
	if _, err := s.client.CoreV1().Pods("ns").Create(s.ctx, on(pod("marker", "quay.io/b:1"), "n1", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod on n1", func() bool { return s.tracker.Stats().Reservations == 1 })
	late := node("late")
	if _, err := s.client.CoreV1().Nodes().Create(s.ctx, late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod of the node that came later", func() bool { return s.tracker.Stats().Reservations == 2 })

	anew := late.DeepCopy()
	anew.UID = "another"
	anew.Status.Images = []v1.ContainerImage{{Names: []string{"quay.io/c:1"}, SizeBytes: mb}}
	if _, err := s.client.CoreV1().Nodes().Update(s.ctx, anew, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the images of the node that was made anew", func() bool { return s.tracker.Stats().Images == 1 })
	s.eventually("its pod", func() bool { return s.tracker.Stats().Reservations == 2 })
}

// A node may register before its platform is known; its images stay the same.
func TestPlatformThatComesLater(t *testing.T) {
	late := node("n1")
	late.Status.NodeInfo = v1.NodeSystemInfo{}
	s := newSuite(t, args(), []*v1.Node{late})
	s.images.Images["quay.io/a:1"] = manifest(index.Layer{Digest: digest("a"), Size: 200 * mb})
	if got := s.measure(pod("p", "quay.io/a:1"), "n1"); got.Total != 0 {
		t.Errorf("%+v, want nothing of another platform", got)
	}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(s.ctx, node("n1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("its platform", func() bool { return s.measure(pod("p", "quay.io/a:1"), "n1").Total == 200*mb })
}

// Two ways to write an image are one image; it is pulled always if one of them is.
func TestWantedTwice(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	for i := range 2 {
		p := pod("p", "busybox", "docker.io/library/busybox:latest")
		p.Spec.Containers[i].ImagePullPolicy = v1.PullAlways
		if got := s.profile.Wanted(p); len(got) != 1 || !got[0].PullAlways {
			t.Errorf("%+v, want one image that is always pulled", got)
		}
	}
	if got := s.profile.Wanted(pod("p", "busybox", "docker.io/library/busybox:latest")); len(got) != 1 || got[0].PullAlways {
		t.Errorf("%+v, want one image that is pulled where it is not", got)
	}
}

// What a pod brings is expected for arrivalTimeout at most.
func TestArrivalTimeout(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.ArrivalTimeout = &metav1.Duration{Duration: time.Minute} }), nodes("n1"))
	p := pod("p", "quay.io/a:1")
	s.profile.Reserve(p, "n1")
	s.clock.SetTime(s.clock.Now().Add(time.Minute - time.Second))
	if got := s.measure(p, "n1"); got.Pending == 0 {
		t.Errorf("within the minute: %+v, want something pending", got)
	}
	s.clock.SetTime(s.clock.Now().Add(2 * time.Second))
	if got := s.measure(p, "n1"); got.Pending != 0 || s.tracker.Stats().Reservations != 0 {
		t.Errorf("after a minute: %+v, want nothing pending", got)
	}
}
