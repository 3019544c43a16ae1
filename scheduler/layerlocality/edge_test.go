package layerlocality

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// A short name has more candidates than the name it stands for.
func TestSignatureOfShortNames(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"docker.io", "quay.io"} }), nodes("n1", "n2"))
	s.agent.sink.SetImages("test", "n1", []index.Image{held("quay.io/team/app:1", layers{"a": 200})})
	sign := func(p *v1.Pod) string {
		f, _ := s.plugin.SignPod(s.ctx, p)
		data, _ := json.Marshal(f)
		return string(data)
	}
	a, b := pod("p", "team/app:1"), pod("q", "docker.io/team/app:1")
	sa, _ := s.scores(a)
	sb, skipped := s.scores(b)
	if sign(a) == sign(b) {
		t.Errorf("both sign as %s but score %v and %v (skipped %t)", sign(a), sa, sb, skipped)
	}
	// And in one pod: the second is dropped
	both := pod("r", "docker.io/team/app:1", "team/app:1")
	if got, skipped := s.scores(both); skipped {
		t.Errorf("docker.io/team/app + team/app: skipped, though n1 has the second; %v", got)
	}
}

// The snapshot keeps the generation when it assumes a pod of a group (backend/cache/snapshot.go AssumePod).
func TestPodGroup(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2", "n3", "n4"))
	s.agent.sink.SetImages("test", "n1", []index.Image{held("quay.io/a:1", layers{"a": 200})})
	var infos []fwk.NodeInfo
	var n1 *framework.NodeInfo
	for _, n := range s.nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		infos = append(infos, info)
		if n.Name == "n1" {
			n1 = info
		}
	}
	score := func(pl *LayerLocality) int64 {
		state := groupCycle()
		pl.PreScore(s.ctx, state, pod("p", "quay.io/a:1"), infos)
		got, _ := pl.Score(s.ctx, state, pod("p"), n1)
		pl.Reserve(s.ctx, state, pod("p", "quay.io/a:1"), "none")
		return got
	}
	before := score(s.plugin)
	old := n1.Generation
	info, _ := framework.NewPodInfo(on(pod("member", "quay.io/a:1"), "n1", "2"))
	n1.AddPodInfo(info)
	n1.Generation = old // as Snapshot.AssumePod does
	after := score(s.plugin)
	fresh := (&cycle{})
	var w index.Weights
	s.plugin.index.Weigh(wanted(pod("p", "quay.io/a:1"), s.plugin.table, nil), 10, time.Now(), &w)
	fresh.weights = w
	fresh.look(infos, requestOf(pod("p")), s.plugin.args)
	weight, load, _ := fresh.node(n1)
	if want := s.plugin.scorer.points(weight, load).score(); after != want {
		t.Errorf("score %d before, %d after a member of the group took 20%% of n1; without the cache %d", before, after, want)
	}
}

// What nobody knows is saved nowhere.
func TestSavedMetric(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	bytes := func(of string) float64 {
		v, _ := testutil.GetCounterMetricValue(s.plugin.metrics.placement.WithLabelValues(of))
		return v
	}
	chosen, mean := bytes("chosen"), bytes("mean")
	for i := range 2 {
		state := framework.NewCycleState()
		p := pod(fmt.Sprint("p", i), fmt.Sprintf("quay.io/unknown%d:1", i))
		s.scoresIn(state, p, s.nodes)
		s.plugin.Reserve(s.ctx, state, p, "n1")
	}
	if saved := (bytes("mean") - mean) - (bytes("chosen") - chosen); saved != 0 {
		t.Errorf("two pods of images nobody has, on any node: saved %.0f bytes", saved)
	}
	// pod group: Reserve, Unreserve, Reserve
	s.agent.sink.SetImages("test", "n1", []index.Image{held("quay.io/a:1", layers{"a": 200})})
	chosen = bytes("chosen")
	state := groupCycle()
	p := pod("g", "quay.io/a:1")
	s.scoresIn(state, p, s.nodes)
	s.plugin.Reserve(s.ctx, state, p, "n2")
	s.plugin.Unreserve(s.ctx, state, p, "n2")
	s.plugin.Reserve(s.ctx, state, p, "n2")
	if got := bytes("chosen") - chosen; got != 0 {
		t.Errorf("a pod of a group, which is reserved more than once: %.0f bytes counted", got)
	}
}

// The kubelet may leave ImagePullBackOff in the status until the container runs.
func TestStartedAfterBackOff(t *testing.T) {
	image := "quay.io/a:1"
	s := newSuite(t, args(), nodes("n1", "n2"), on(pod("p", image), "n1", ""))
	s.registry["quay.io/a:1"] = manifest(index.Layer{Digest: digest("a"), Size: 200 * mb})
	update := func(phase v1.PodPhase, status v1.ContainerStatus) {
		p := on(pod("p", image), "n1", "")
		p.Status = v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{status}}
		if _, err := s.client.CoreV1().Pods("ns").UpdateStatus(s.ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(v1.PodPending, v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}})
	s.eventually("released", func() bool { return s.plugin.index.Stats().Reservations == 0 })
	update(v1.PodRunning, v1.ContainerStatus{ImageID: "x"})
	time.Sleep(300 * time.Millisecond)
	var w index.Weights
	s.plugin.index.Weigh(wanted(pod("q", image), s.plugin.table, s.plugin.sources), 10, time.Now(), &w)
	if got, _ := w.Node("n1"); got.Present == 0 {
		t.Errorf("a pod of the image runs on n1: %+v", got)
	}
}

// A scheduler that restarts knows what has started a moment ago.
func TestRestart(t *testing.T) {
	image := "quay.io/a:1"
	running := on(pod("p", image), "n1", "")
	running.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: time.Now()}, ContainerStatuses: []v1.ContainerStatus{{ImageID: "x", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}}}}
	s := newSuite(t, args(), nodes("n1", "n2"), running)
	if _, skipped := s.scores(pod("q", image)); skipped {
		t.Errorf("a pod of the image started on n1 a moment ago; the new scheduler skips")
	}
}

// A clock that is ahead must not keep an arrival for ever.
func TestFutureDeadline(t *testing.T) {
	p := on(pod("p", "quay.io/a:1"), "n1", "")
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(time.Now().Add(24 * 365 * time.Hour))}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	var w index.Weights
	s.plugin.index.Weigh(wanted(p, s.plugin.table, nil), 10, time.Now().Add(time.Hour), &w)
	if n := s.plugin.index.Stats().Reservations; n != 0 {
		t.Errorf("%d reservations an hour later, arrivalTimeout is 10m", n)
	}
}

// While an init container runs, the images of the others are not pulled.
func TestInitContainer(t *testing.T) {
	p := on(pod("p", "quay.io/a:1"), "n1", "")
	p.Spec.InitContainers = []v1.Container{{Name: "wait", Image: "quay.io/wait:1"}}
	p.Status = v1.PodStatus{Phase: v1.PodPending,
		InitContainerStatuses: []v1.ContainerStatus{{Name: "wait", ImageID: "y", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}},
		ContainerStatuses:     []v1.ContainerStatus{{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}}}}
	s := newSuite(t, args(), nodes("n1", "n2"), p)
	if stats := s.plugin.index.Stats(); stats.Reservations != 0 || stats.PendingBytes != 0 {
		t.Errorf("the init container runs, nothing is being pulled: %+v", stats)
	}
	p = p.DeepCopy()
	p.Status.InitContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	if _, err := s.client.CoreV1().Pods("ns").UpdateStatus(s.ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the main container's turn", func() bool { return s.plugin.index.Stats().Reservations == 1 })
}

// groupCycle is the state of a pod that is scheduled in the cycle of its group.
func groupCycle() fwk.CycleState {
	state := framework.NewCycleState()
	state.SetPodGroupSchedulingCycle(framework.NewCycleState())
	return state
}
