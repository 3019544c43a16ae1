package layerlocality

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// A short name has more candidates than the name it stands for.
func TestSignatureOfShortNames(t *testing.T) {
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"docker.io", "quay.io"} }), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/team/app:1", layers{"a": 200})})
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
	// In one pod, the second name must not be dropped.
	both := pod("r", "docker.io/team/app:1", "team/app:1")
	if got, skipped := s.scores(both); skipped {
		t.Errorf("docker.io/team/app + team/app: skipped, though n1 has the second; %v", got)
	}
}

// Unknown images do not count as saved.
func TestSavedMetric(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	bytes := func(of string) float64 {
		v, _ := testutil.GetCounterMetricValue(s.plugin.metrics.missing.WithLabelValues("default-scheduler", of))
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
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	chosen, mean = bytes("chosen"), bytes("mean")
	state, p := framework.NewCycleState(), pod("h", "quay.io/a:1")
	s.scoresIn(state, p, s.nodes)
	s.plugin.Reserve(s.ctx, state, p, "n2")
	if got := bytes("chosen") - chosen; got != 200*mb || bytes("mean")-mean != 100*mb {
		t.Errorf("n2 lacks 200 MB, the mean is 100 MB: %.0f and %.0f bytes counted", got, bytes("mean")-mean)
	}
}

// After a restart, pods that have just started count.
func TestRestart(t *testing.T) {
	image := "quay.io/a:1"
	running := on(pod("p", image), "n1", "")
	running.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: time.Now()}, ContainerStatuses: []v1.ContainerStatus{{ImageID: "x", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}}}}
	s := newSuite(t, args(), nodes("n1", "n2"), running)
	if _, skipped := s.scores(pod("q", image)); skipped {
		t.Errorf("a pod of the image started on n1 a moment ago; the new scheduler skips")
	}
}

// Once a pod is placed, the next one uses the memory of its scores.
func TestMemoryIsGivenBackOnce(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200}), nodeImage("quay.io/b:1", layers{"b": 100})})
	info := framework.NewNodeInfo()
	info.SetNode(s.nodes[0])
	first, second := framework.NewCycleState(), framework.NewCycleState()
	score := func(state fwk.CycleState) int64 {
		score, _ := s.plugin.Score(s.ctx, state, pod("p"), info)
		return score
	}
	s.plugin.PreScore(s.ctx, first, pod("p", "quay.io/a:1"), []fwk.NodeInfo{info})
	if got := score(first); got != 100 {
		t.Errorf("the first pod's node scores %d, want 100", got)
	}
	for range 2 {
		s.plugin.Reserve(s.ctx, first, pod("p", "quay.io/a:1"), "n1")
	}
	s.plugin.PreScore(s.ctx, second, pod("q", "quay.io/b:1", "quay.io/c:1"), []fwk.NodeInfo{info})
	if got := score(first); got != 0 {
		t.Errorf("after it was placed, its node scores %d", got)
	}
	third := framework.NewCycleState()
	s.plugin.PreScore(s.ctx, third, pod("r", "quay.io/unknown:1"), []fwk.NodeInfo{info})
	if got := score(second); got != 100 {
		t.Errorf("the second pod's node scores %d, want 100", got)
	}
}

// kube-scheduler may score nodes once more in an attempt, in a copy of its state or in a new one: scores are the same, the
// pod's images count once, and no memory is lost.
func TestScoredAgain(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	var infos []fwk.NodeInfo
	for _, n := range s.nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		infos = append(infos, info)
	}
	score := func(state fwk.CycleState, p *v1.Pod) []int64 {
		s.plugin.PreScore(s.ctx, state, p, infos)
		var scores []int64
		for _, info := range infos {
			score, _ := s.plugin.Score(s.ctx, state, p, info)
			scores = append(scores, score)
		}
		return scores
	}
	once := pod("once", "quay.io/a:1")
	state := framework.NewCycleState()
	s.plugin.PreFilter(s.ctx, state, once, nil)
	want := score(state, once)
	observed := func() float64 {
		var sum float64
		for _, known := range []index.Known{index.ByLayers, index.ByName, index.Arriving, index.Unknown} {
			v, _ := testutil.GetCounterMetricValue(s.plugin.metrics.images.WithLabelValues(string(known)))
			sum += v
		}
		return sum
	}
	again := map[string]func(fwk.CycleState) fwk.CycleState{
		"copy": func(state fwk.CycleState) fwk.CycleState { return state.Clone() },
		"new":  func(fwk.CycleState) fwk.CycleState { return framework.NewCycleState() },
	}
	for name, other := range again {
		p, before := pod(name, "quay.io/a:1"), observed()
		state := framework.NewCycleState()
		s.plugin.PreFilter(s.ctx, state, p, nil)
		for _, state := range []fwk.CycleState{other(state), state, other(state)} {
			if got := score(state, p); !slices.Equal(got, want) {
				t.Errorf("%s: scores %v, want %v", name, got, want)
			}
		}
		if got := observed() - before; got != 1 {
			t.Errorf("%s: the pod's image counts %.0f times", name, got)
		}
		s.plugin.Reserve(s.ctx, state, p, "n1")
		s.index().Release(p.UID)
	}

	const many = 100_000
	s.ctx = klog.NewContext(s.ctx, klog.Background()) // not a test's, which keeps what is logged
	var heap [2]uint64
	for i := range many {
		p := pod(fmt.Sprint("many-", i), "quay.io/a:1")
		state := framework.NewCycleState()
		s.plugin.PreFilter(s.ctx, state, p, nil)
		score(again[[]string{"copy", "new"}[i%2]](state), p)
		s.plugin.Reserve(s.ctx, state, p, "n1")
		s.index().Release(p.UID)
		if i == many/10 || i == many-1 {
			var stats runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&stats)
			heap[i/(many-1)] = stats.HeapAlloc
		}
	}
	if heap[1] > heap[0]+mb {
		t.Errorf("%d bytes after 10,000 pods, %d after %d", heap[0], heap[1], many)
	}
}

func TestWhy(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	for _, test := range []struct {
		bytes  index.NodeBytes
		points locality.Points
		want   string
	}{
		{index.NodeBytes{Pending: mb}, locality.Points{}, "nothing is known about the images, or nothing has to be pulled for them"},
		{index.NodeBytes{Total: 200 * mb, Present: 50 * mb}, locality.Points{}, "50.0 MB of 200.0 MB present"},
		{index.NodeBytes{Total: 200 * mb, Arriving: 20 * mb}, locality.Points{}, "0.0 MB of 200.0 MB present; 20.0 MB arriving for other pods"},
		{index.NodeBytes{Total: 200 * mb, Crowded: 20 * mb}, locality.Points{},
			"0.0 MB of 200.0 MB present; 20.0 MB arriving, for which 10 pods wait already (maxWaitingPods)"},
		{index.NodeBytes{Total: 100 * mb, Present: 100 * mb}, locality.Points{}, "100.0 MB of 100.0 MB present"},
		{index.NodeBytes{Total: 50 * mb, Present: 50 * mb, Pending: 7 * mb}, locality.Points{Link: -1, Load: -2},
			"50.0 MB of 50.0 MB present; less than 100.0 MB (minImageBytes), so it counts in proportion; 7.0 MB to pull first; busier than the mean: 2.0 points"},
	} {
		if got := s.plugin.why(test.bytes, test.points); got != test.want {
			t.Errorf("%+v: %q, want %q", test.bytes, got, test.want)
		}
	}
}

// The memory of a cycle is used again for the next pod: nothing of the last one shows.
func TestCycleUsedAgain(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 100, "b": 100}), nodeImage("quay.io/big:1", layers{"big": 250})})
	var infos []fwk.NodeInfo
	for _, n := range s.nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		infos = append(infos, info)
	}
	again := &cycle{}
	rate := func(c *cycle) *cycle {
		s.plugin.profile.Measure(s.plugin.profile.Wanted(pod("p", "quay.io/a:1")), &c.measured)
		c.rate(infos, locality.RequestOf(pod("p")), s.plugin.profile)
		return c
	}
	rate(again)
	s.plugin.Reserve(s.ctx, framework.NewCycleState(), pod("q", "quay.io/big:1"), "n2")
	if a, b := rate(again), rate(&cycle{}); !slices.Equal(a.scores, b.scores) || a.balance != b.balance || a.meanMissing != b.meanMissing {
		t.Errorf("%v %+v %v, fresh %v %+v %v", a.scores, a.balance, a.meanMissing, b.scores, b.balance, b.meanMissing)
	}
}
