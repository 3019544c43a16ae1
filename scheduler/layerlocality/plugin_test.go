package layerlocality

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func TestMain(m *testing.M) {
	schedulermetrics.Register() // the framework wants them
	os.Exit(m.Run())
}

// suite is a scheduler framework with the plugin over real informers.
type suite struct {
	t         testing.TB
	ctx       context.Context
	factory   *Factory
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	framework framework.Framework
	plugin    *LayerLocality
	agent     *fixture.Agent
	registry  fixture.Images
	awaited   *fixture.AwaitedImages
	followed  *fixture.FollowedImages
	nodes     []*v1.Node
	pods      []*v1.Pod
}

func newSuite(t testing.TB, args *config.LayerLocalityArgs, nodes []*v1.Node, pods ...*v1.Pod) *suite {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	s := &suite{t: t, ctx: ctx, agent: &fixture.Agent{}, registry: fixture.Images{}, awaited: &fixture.AwaitedImages{}, followed: &fixture.FollowedImages{}, nodes: nodes, pods: pods}
	var objects []runtime.Object
	for _, n := range nodes {
		objects = append(objects, n)
	}
	for _, p := range pods {
		objects = append(objects, p)
	}
	s.client = fake.NewClientset(objects...)
	s.informers = informers.NewSharedInformerFactory(s.client, 0)
	s.factory = NewFactory(
		WithNodeSource(func(context.Context, fwk.Handle) (locality.NodeSource, error) { return s.agent, nil }),
		WithManifestSource(func(context.Context, fwk.Handle) (locality.ManifestSource, error) { return s.registry, nil }),
		WithManifestSource(func(context.Context, fwk.Handle) (locality.ManifestSource, error) { return s.awaited, nil }),
		WithManifestSource(func(context.Context, fwk.Handle) (locality.ManifestSource, error) { return s.followed, nil }))
	s.framework = s.newFramework("default-scheduler", args)
	s.plugin = s.factory.profile("default-scheduler")
	s.informers.Start(ctx.Done())
	s.informers.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() { cancel(); s.informers.Shutdown() })
	fixture.Synced(ctx, t, s.plugin.tracker)
	fixture.Watched(t, s.client, "nodes", "pods")
	return s
}

func (s *suite) newFramework(profile string, args *config.LayerLocalityArgs) framework.Framework {
	s.t.Helper()
	r := frameworkruntime.Registry{Name: s.factory.New, queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New}
	plugins := &kubescheduler.Plugins{
		QueueSort:  kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: queuesort.Name}}},
		PreEnqueue: kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: Name}}},
		PreScore:   kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: Name}}},
		Score:      kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: Name, Weight: 1}}},
		Reserve:    kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: Name}}},
		Bind:       kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: defaultbinder.Name}}},
	}
	scoreGroups(plugins)
	f, err := frameworkruntime.NewFramework(s.ctx, r, &kubescheduler.KubeSchedulerProfile{
		SchedulerName: profile,
		Plugins:       plugins,
		PluginConfig:  []kubescheduler.PluginConfig{{Name: Name, Args: args}},
	}, frameworkruntime.WithInformerFactory(s.informers), frameworkruntime.WithClientSet(s.client),
		frameworkruntime.WithSnapshotSharedLister(cache.NewSnapshot(s.pods, s.nodes)))
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// scores runs PreScore and Score as the scheduler does. skipped means that the plugin
// asked to be skipped.
func (s *suite) scores(pod *v1.Pod) (scores map[string]int64, skipped bool) {
	s.t.Helper()
	return s.scoresIn(framework.NewCycleState(), pod, s.nodes)
}

func (s *suite) scoresIn(state fwk.CycleState, pod *v1.Pod, nodes []*v1.Node) (map[string]int64, bool) {
	s.t.Helper()
	var infos []fwk.NodeInfo
	for _, n := range nodes {
		var placed []*v1.Pod
		for _, p := range s.pods {
			if p.Spec.NodeName == n.Name {
				placed = append(placed, p)
			}
		}
		info := framework.NewNodeInfo(placed...)
		info.SetNode(n)
		infos = append(infos, info)
	}
	if status := s.framework.RunPreScorePlugins(s.ctx, state, pod, infos); !status.IsSuccess() {
		s.t.Fatalf("PreScore: %v", status)
	}
	if state.GetSkipScorePlugins().Has(Name) {
		return nil, true
	}
	all, status := s.framework.RunScorePlugins(s.ctx, state, pod, infos)
	if !status.IsSuccess() {
		s.t.Fatalf("Score: %v", status)
	}
	scores := map[string]int64{}
	for _, n := range all {
		scores[n.Name] = n.TotalScore
	}
	return scores, false
}

func (s *suite) expect(pod *v1.Pod, expected map[string]int64) {
	s.t.Helper()
	if got, skipped := s.scores(pod); skipped && expected != nil || !reflect.DeepEqual(got, expected) {
		s.t.Errorf("scores %v (skipped %t), want %v", got, skipped, expected)
	}
}

// index returns the sink that sources report to.
func (s *suite) index() indexed { return s.agent.Sink.(indexed) }

// indexed is what tests do with the index besides reporting to it.
type indexed interface {
	SetNode(name string, platform index.Platform)
	DeleteNode(name string)
	Release(pod types.UID)
	Stats() index.Stats
}

// Short names for what tests are made of.
var (
	args, node, nodes, pod, on  = fixture.Args, fixture.Node, fixture.Nodes, fixture.Pod, fixture.On
	digest, nodeImage, manifest = fixture.Digest, fixture.Image, fixture.Manifest
)

type layers = fixture.Layers

const mb = fixture.MB

const busybox = "docker.io/library/busybox:latest"

func TestScore(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2", "n3"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"base": 60, "a": 140}), nodeImage(busybox, layers{"bb": 1})})
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/b:1", layers{"base": 60, "b": 20})})

	s.expect(pod("p", "quay.io/a:1"), map[string]int64{"n1": 100, "n2": 30, "n3": 0})
	// 80 MB are less than 100 MB: at most 80 points.
	s.expect(pod("p", "quay.io/b:1"), map[string]int64{"n1": 60, "n2": 80, "n3": 0})
	// The union of both is 220 MB.
	s.expect(pod("p", "quay.io/a:1", "quay.io/b:1"), map[string]int64{"n1": 90, "n2": 36, "n3": 0})
	// By short name; 1 MB is 1 point.
	for _, name := range []string{"busybox", "busybox:latest", "library/busybox", busybox} {
		s.expect(pod("p", name), map[string]int64{"n1": 1, "n2": 0, "n3": 0})
	}
	// Init containers and image volumes count.
	p := pod("p")
	p.Spec.InitContainers = []v1.Container{{Image: "quay.io/a:1"}}
	s.expect(p, map[string]int64{"n1": 100, "n2": 30, "n3": 0})
	p = pod("p")
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "quay.io/a:1"}}}}
	s.expect(p, map[string]int64{"n1": 100, "n2": 30, "n3": 0})

	for name, p := range map[string]*v1.Pod{
		"unknown": pod("p", "quay.io/unknown:1"), "invalid": pod("p", "Not A Name"), "no image": pod("p"),
	} {
		if got, skipped := s.scores(p); !skipped {
			t.Errorf("%s image: scores %v, want to be skipped", name, got)
		}
	}
	// A node that is new to the index.
	if got, _ := s.scoresIn(framework.NewCycleState(), pod("p", "quay.io/a:1"), nodes("n1", "n9")); got["n1"] != 100 || got["n9"] != 0 {
		t.Errorf("with an unknown node: %v", got)
	}
	if score, status := s.plugin.Score(s.ctx, framework.NewCycleState(), pod("p"), framework.NewNodeInfo()); score != 0 || !status.IsSuccess() {
		t.Errorf("without PreScore: %d, %v", score, status)
	}
}

func TestLoadPenalty(t *testing.T) {
	image := "quay.io/a:1"
	busy := []*v1.Pod{on(pod("x", "x"), "n1", "600m"), on(pod("y", "y"), "n2", "300m")}
	for _, test := range []struct {
		penalty int32
		request string
		n1      int64
	}{
		// 6 %, 3 %, 0 %: the mean is 3 %. The two pods request 450m on average, and the image has 200 MB: half the penalty.
		{0, "450m", 100},
		{16, "450m", 76},
		{100, "450m", 0},
		// In proportion to the request, within bounds.
		{16, "225m", 88},
		{16, "1m", 94},
		{16, "", 94}, // kube-scheduler counts it as 100m
		{8, "900m", 76},
		{4, "2", 76},
	} {
		s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.LoadPenalty = ptr.To(test.penalty) }), nodes("n1", "n2", "n3"), busy...)
		s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage(image, layers{"a": 100, "b": 100})})
		s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/b:1", layers{"b": 100})})
		for _, p := range busy { // what they pull does not matter here
			s.index().Release(p.UID)
		}
		p := on(pod("p", image), "", test.request)
		s.expect(p, map[string]int64{"n1": test.n1, "n2": 50, "n3": 0})
	}
}

// Containers without a request do not all go to one node either.
func TestNoRequestPenalty(t *testing.T) {
	image := "quay.io/a:1"
	var there []*v1.Pod
	for i := range 6 {
		there = append(there, on(pod(fmt.Sprint("p", i), image), "n1", ""))
	}
	for penalty, want := range map[int32]int64{0: 100, 2: 92, 100: 0} { // 6 are 4 above the mean of three nodes
		s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.NoRequestPenalty = ptr.To(penalty) }), nodes("n1", "n2", "n3"), there...)
		s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage(image, layers{"a": 100})})
		s.expect(pod("p", image), map[string]int64{"n1": want, "n2": 0, "n3": 0})
	}
}

// What a node's link still has to pull counts against the node only if the pod would
// start later than on an idle node that has nothing.
func TestLinkPenalty(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2", "n3"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 100, "b": 100}), nodeImage("quay.io/big:1", layers{"big": 250})})
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/b:1", layers{"b": 100})})
	p := pod("p", "quay.io/a:1")
	s.expect(p, map[string]int64{"n1": 100, "n2": 50, "n3": 0})
	// n2 pulls 250 MB: with the missing 100 MB that is 150 MB more than 200 MB.
	s.plugin.Reserve(s.ctx, framework.NewCycleState(), pod("q", "quay.io/big:1"), "n2")
	s.expect(p, map[string]int64{"n1": 100, "n2": 0, "n3": 0})
	s.plugin.Unreserve(s.ctx, framework.NewCycleState(), pod("q", "quay.io/big:1"), "n2")
	s.expect(p, map[string]int64{"n1": 100, "n2": 50, "n3": 0})
	// Where several links are behind, it counts as a share of what pods wait: n2 is late by
	// 150 MB, n3 by 250, so that the mean is 133, besides the pod's own 200.
	for _, node := range []string{"n2", "n3"} {
		s.plugin.Reserve(s.ctx, framework.NewCycleState(), pod("q-"+node, "quay.io/big:1"), node)
	}
	s.expect(p, map[string]int64{"n1": 100, "n2": 5, "n3": 0})
	for _, node := range []string{"n2", "n3"} {
		s.plugin.Unreserve(s.ctx, framework.NewCycleState(), pod("q-"+node, "quay.io/big:1"), node)
	}
	// On a node that has all layers, the pod does not wait for the link.
	s.plugin.Reserve(s.ctx, framework.NewCycleState(), pod("q", "quay.io/other:1"), "n1")
	s.expect(p, map[string]int64{"n1": 100, "n2": 50, "n3": 0})
}

func TestBurst(t *testing.T) {
	for _, image := range []string{"quay.io/known:1", "quay.io/unknown:1"} {
		s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.MaxWaitingPods = ptr.To[int32](4) }), nodes("n1", "n2", "n3"))
		s.registry["quay.io/known:1"] = manifest(index.Layer{Digest: digest("a"), Size: 200 * mb})
		placed := map[string]int{}
		for i := range 9 {
			p := pod(fmt.Sprint("p", i), image)
			scores, _ := s.scores(p)
			best := "n1"
			for _, n := range []string{"n2", "n3"} {
				if scores[n] > scores[best] {
					best = n
				}
			}
			if scores[best] == 0 && placed[best] > 0 { // any other node is as good
				best = fmt.Sprint("n", len(placed)+1)
			}
			s.plugin.Reserve(s.ctx, framework.NewCycleState(), p, best)
			placed[best]++
		}
		if want := map[string]int{"n1": 4, "n2": 4, "n3": 1}; !reflect.DeepEqual(placed, want) {
			t.Errorf("%s: 9 pods went to %v, want %v", image, placed, want)
		}
	}
}

// The order of nodes does not matter.
func TestPermutation(t *testing.T) {
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("n", i))
	}
	all := nodes(names...)
	s := newSuite(t, args(), all, on(pod("x", "x"), "n3", "500m"))
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test that can be repeated
	for _, n := range names {
		l := layers{}
		for i := range 6 {
			if r.IntN(2) == 0 {
				l[fmt.Sprint(i)] = int64(10 * (i + 1))
			}
		}
		if len(l) > 0 {
			s.agent.Sink.SetImages("test", n, []index.Image{nodeImage("quay.io/"+n+":1", l)})
		}
	}
	want, _ := s.scores(pod("p", "quay.io/n1:1"))
	if len(want) != len(names) {
		t.Fatal("nothing to compare")
	}
	for range 20 {
		shuffled := slices.Clone(all)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if got, _ := s.scoresIn(framework.NewCycleState(), pod("p", "quay.io/n1:1"), shuffled); !reflect.DeepEqual(got, want) {
			t.Fatalf("in another order: %v, want %v", got, want)
		}
	}
}

func TestSignPod(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	sign := func(p *v1.Pod) string {
		t.Helper()
		fragments, status := s.plugin.SignPod(s.ctx, p)
		if !status.IsSuccess() || len(fragments) != 2 {
			t.Fatalf("%v, %v", fragments, status)
		}
		data, err := json.Marshal(fragments)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if a, b := sign(pod("p", "busybox", "quay.io/a:1")), sign(pod("q", "quay.io/a:1", busybox)); a != b {
		t.Errorf("the same images sign as %s and %s", a, b)
	}
	always := pod("p", "busybox")
	always.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
	for _, other := range []*v1.Pod{pod("p", "busybox:1"), pod("p"), pod("p", "Not A Name"), always, on(pod("p", "busybox"), "", "1")} {
		if a, b := sign(pod("p", "busybox")), sign(other); a == b {
			t.Errorf("%v signs like busybox", other.Spec.Containers)
		}
	}
	if signatureOf(s, pod("p", "busybox")) == nil {
		t.Error("the framework cannot sign pods: opportunistic batching is off")
	}
}

func TestNew(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	if _, err := s.factory.New(s.ctx, nil, s.framework); err == nil || !strings.Contains(err.Error(), "want LayerLocalityArgs") {
		t.Errorf("without arguments: %v", err)
	}
	bad := args(func(a *configv1.LayerLocalityArgs) { a.LoadPenalty = ptr.To[int32](-1) })
	if _, err := s.factory.New(s.ctx, bad, s.framework); err == nil || !strings.Contains(err.Error(), "loadPenalty") {
		t.Errorf("with bad arguments: %v", err)
	}
	// A second profile shares the index.
	other := s.newFramework("other", args(func(a *configv1.LayerLocalityArgs) { a.MinImageBytes = ptr.To[int64](400 * mb) }))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	s.expect(pod("p", "quay.io/a:1"), map[string]int64{"n1": 100, "n2": 0})
	s.framework = other
	s.expect(pod("p", "quay.io/a:1"), map[string]int64{"n1": 50, "n2": 0})

	another := newSuite(t, args(), nodes("n1"))
	if _, err := s.factory.New(s.ctx, args(), another.framework); err == nil || !strings.Contains(err.Error(), "one Factory serves one scheduler") {
		t.Errorf("another scheduler: %v", err)
	}
}

// A source that cannot be made is an error at the start, and not a source less.
func TestSourcesThatFail(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	for what, option := range map[string]Option{
		"source of images": WithManifestSource(func(context.Context, fwk.Handle) (locality.ManifestSource, error) { return nil, errors.New("no CRD") }),
		"source of layers": WithNodeSource(func(context.Context, fwk.Handle) (locality.NodeSource, error) { return nil, errors.New("no CRD") }),
	} {
		if _, err := NewFactory(option).New(s.ctx, args(), s.framework); err == nil || err.Error() != "LayerLocality: "+what+": no CRD" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What a pod brings stays expected if it was bound after all, and only then.
func TestUnreserveOfABoundPod(t *testing.T) {
	bound := on(pod("p", "quay.io/a:1"), "n1", "")
	s := newSuite(t, args(), nodes("n1", "n2"), bound)
	state := framework.NewCycleState()
	expect := func(what string, reservations int) {
		t.Helper()
		if got := s.index().Stats().Reservations; got != reservations {
			t.Errorf("%s: %d reservations, want %d", what, got, reservations)
		}
	}
	s.plugin.Reserve(s.ctx, state, bound, "n1")
	s.plugin.Unreserve(s.ctx, state, bound, "n1")
	expect("bound", 1)
	namesake := pod("p", "quay.io/a:1")
	namesake.UID = "another"
	s.plugin.Reserve(s.ctx, state, namesake, "n1")
	expect("another pod of that name", 2)
	s.plugin.Unreserve(s.ctx, state, namesake, "n1")
	expect("another pod of that name", 1)
	s.plugin.Reserve(s.ctx, state, bound, "n2")
	s.plugin.Unreserve(s.ctx, state, bound, "n2")
	expect("bound elsewhere", 0)
}

func TestMetrics(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	value := func(known string) float64 {
		t.Helper()
		v, err := testutil.GetCounterMetricValue(s.plugin.metrics.images.WithLabelValues(known))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	bytes := func(of string) float64 {
		t.Helper()
		v, err := testutil.GetCounterMetricValue(s.plugin.metrics.missing.WithLabelValues("default-scheduler", of))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	requested := s.plugin.metrics.requested.WithLabelValues("default-scheduler")
	layersBefore, unknownBefore, chosen, mean, requestedBefore := value("layers"), value("unknown"), bytes("chosen"), bytes("mean"), metricValue(t, requested)
	state := framework.NewCycleState()
	p := pod("p", "quay.io/a:1", "quay.io/unknown:1")
	s.scoresIn(state, p, s.nodes)
	s.plugin.Reserve(s.ctx, state, p, "n1")
	if value("layers") != layersBefore+1 || value("unknown") != unknownBefore+1 {
		t.Errorf("known %f, unknown %f", value("layers")-layersBefore, value("unknown")-unknownBefore)
	}
	// n1 lacks only the unknown image, which counts on neither side. Of the known layers,
	// the two nodes lack 100 MB on average.
	if bytes("chosen") != chosen || bytes("mean") != mean+100*mb {
		t.Errorf("chosen %f, mean %f", bytes("chosen")-chosen, bytes("mean")-mean)
	}
	if got := metricValue(t, requested) - requestedBefore; got != 200*mb {
		t.Errorf("requested %f", got)
	}
	collector := newSizeCollector(s.plugin.tracker.Stats)
	expected := `
# HELP scheduler_layerlocality_pending_bytes [ALPHA] Compressed bytes that placed pods wait for.
# TYPE scheduler_layerlocality_pending_bytes gauge
scheduler_layerlocality_pending_bytes 1e+08
`
	if err := testutil.CustomCollectAndCompare(collector, strings.NewReader(expected), "scheduler_layerlocality_pending_bytes"); err != nil {
		t.Error(err)
	}
}

func TestDebugHandler(t *testing.T) {
	waiting, always := pod("waiting", "quay.io/a:1"), pod("always", "quay.io/a:1")
	always.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
	three := nodes("n1", "n2", "n3")
	three[2].Labels = map[string]string{nodestatus.JoinsDownloadsLabel: "true"}
	s := newSuite(t, args(), three, waiting, always, on(pod("x", "x"), "n2", "300m"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 100, "b": 100}), nodeImage("quay.io/big:1", layers{"big": 500})})
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/b:1", layers{"b": 100}), nodeImage("quay.io/x:1", layers{"x": 10})})
	s.plugin.Reserve(s.ctx, framework.NewCycleState(), pod("q", "quay.io/big:1"), "n3")
	get := func(query string) (int, string, Rating) {
		t.Helper()
		recorder := httptest.NewRecorder()
		s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?"+query, nil))
		var rating Rating
		if recorder.Code == http.StatusOK {
			if got := recorder.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("content type %q", got)
			}
			if err := json.Unmarshal(recorder.Body.Bytes(), &rating); err != nil {
				t.Fatalf("%s: %v", recorder.Body, err)
			}
		}
		return recorder.Code, recorder.Body.String(), rating
	}

	for query, podName := range map[string]string{
		"image=quay.io/a:1": "", "pod=ns/waiting": "ns/waiting", "pod=ns/waiting&profile=default-scheduler": "ns/waiting",
	} {
		code, body, rating := get(query)
		if code != http.StatusOK || len(rating.Nodes) != 3 || rating.Profile != "default-scheduler" || rating.Pod != podName {
			t.Fatalf("%s: %d %s", query, code, body)
		}
		// The endpoint must report the scores that the scheduler uses.
		scores, _ := s.scores(waiting)
		for _, n := range rating.Nodes {
			if n.Score != scores[n.Node] {
				t.Errorf("%s: %s has %d, the scheduler gives %d", query, n.Node, n.Score, scores[n.Node])
			}
		}
		n1, n2, n3 := rating.Nodes[0], rating.Nodes[1], rating.Nodes[2]
		if n1.Node != "n1" || n1.PresentBytes != 200*mb || n1.Why != "200.0 MB of 200.0 MB present" {
			t.Errorf("%+v", n1)
		}
		if n2.MissingBytes != 100*mb || !strings.Contains(n2.Why, "busier than the mean: 2.0 points") {
			t.Errorf("%+v", n2)
		}
		if n3.PendingBytes != 500*mb || !strings.Contains(n3.Why, "500.0 MB to pull first") {
			t.Errorf("%+v", n3)
		}
		if n1.JoinsDownloads || !n3.JoinsDownloads {
			t.Errorf("n1 joins downloads %t, n3, which states it, %t", n1.JoinsDownloads, n3.JoinsDownloads)
		}
		if n1.LoadPercent != 0 || n2.LoadPercent != 3 || n2.WithoutRequest != 0 { // 300m of ten cores
			t.Errorf("%v, %v percent, %v containers without a request", n1.LoadPercent, n2.LoadPercent, n2.WithoutRequest)
		}
	}
	s.registry["quay.io/manifest:1"] = manifest(index.Layer{Digest: digest("a"), Size: 100 * mb})
	s.agent.Sink.SetImages("test", "n3", []index.Image{{Names: []string{"quay.io/name:1"}, SizeBytes: mb}})
	_, _, several := get("image=quay.io/a:1&image=quay.io/name:1&image=quay.io/manifest:1&image=quay.io/new:1")
	for i, want := range []ImageRating{
		{Names: []imageref.Canonical{"quay.io/a:1"}, Known: index.ByLayers, From: "nodes"},
		{Names: []imageref.Canonical{"quay.io/name:1"}, Known: index.ByName, From: "nodes"},
		{Names: []imageref.Canonical{"quay.io/manifest:1"}, Known: index.ByLayers, From: "source"},
		{Names: []imageref.Canonical{"quay.io/new:1"}, Known: index.Unknown},
	} {
		if got := several.Images[i]; !reflect.DeepEqual(got, want) {
			t.Errorf("image %+v, want %+v", got, want)
		}
	}
	if _, body, pulled := get("pod=ns/always"); len(pulled.Images) != 1 || pulled.Images[0].Pull != v1.PullAlways {
		t.Errorf("an image that is always pulled: %s", body)
	}
	_, _, placed := get("pod=ns/x")
	if !strings.Contains(placed.Note, "The pod is on n2 already") {
		t.Errorf("a pod that has a node: %s", placed.Note)
	}
	for _, n := range placed.Nodes {
		if n.LoadPercent != 0 {
			t.Errorf("%s is at %v percent without the pod itself", n.Node, n.LoadPercent)
		}
	}
	spec := func(text string) string { return "spec=" + url.QueryEscape(text) }
	_, body, described := get(spec(`{"containers":[{"image":"quay.io/a:1","resources":{"requests":{"cpu":"9800m"}}}],"nodeSelector":{"` + nodestatus.JoinsDownloadsLabel + `":"true"}}`))
	if len(described.Nodes) != 3 || described.Profile != "default-scheduler" || described.Images[0].Known != index.ByLayers {
		t.Errorf("a pod that is described: %s", body)
	}
	for _, n := range described.Nodes {
		want := map[string]string{"n1": "selector or node affinity", "n2": "selector or node affinity; too little cpu", "n3": ""}[n.Node]
		if got := strings.Join(n.RuledOut, "; "); got != want {
			t.Errorf("%s is ruled out by %q, want %q", n.Node, got, want)
		}
	}
	_, _, small := get("image=quay.io/x:1")
	if why := small.Nodes[0].Why; !strings.Contains(why, "less than 100.0 MB") {
		t.Errorf("small image: %s", why)
	}
	for query, want := range map[string]string{
		"":                                       "400 ask with one of ?image=NAME, ?pod=NAMESPACE/NAME, ?spec=JSON, ?placements=NAMESPACE/NAME and ?savings",
		"image=a&pod=b/c":                        "400 ask with one of",
		spec(`{"containers":1}`):                 "400 spec: want a PodSpec in JSON: json: cannot unmarshal number",
		spec(`{}`) + "&image=a":                  "400 ask with one of",
		"image=" + url.QueryEscape("Not A Name"): `400 "Not A Name" is not a valid image reference`,
		"pod=waiting":                            `400 pod "waiting": want NAMESPACE/NAME`,
		"pod=ns/none":                            "404 no pod ns/none",
		"image=a&profile=none":                   `404 no profile "none"`,
	} {
		code, body, _ := get(query)
		if got := fmt.Sprint(code, " ", body); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	recorder := httptest.NewRecorder()
	s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, DebugPath+"?image=a", nil))
	if recorder.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", recorder.Code)
	}
	recorder = httptest.NewRecorder()
	NewFactory().DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?image=a", nil))
	if recorder.Code != http.StatusNotFound {
		t.Errorf("without a profile: %d", recorder.Code)
	}
}

// noNodes and noPods are caches that fail.
type noNodes struct{ corelisters.NodeLister }

func (noNodes) List(labels.Selector) ([]*v1.Node, error) { return nil, errors.New("no nodes") }

type noPods struct{ corelisters.PodLister }

func (noPods) Pods(string) corelisters.PodNamespaceLister { return noPodsOf{} }

type noPodsOf struct{ corelisters.PodNamespaceLister }

func (noPodsOf) Get(string) (*v1.Pod, error) { return nil, errors.New("no pods") }

// Where a cache fails, the endpoint answers with the error instead of nothing.
func TestDebugHandlerWithoutCache(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"), pod("p", "quay.io/a:1"))
	ask := func(want string) {
		t.Helper()
		recorder := httptest.NewRecorder()
		s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?pod=ns/p", nil))
		if body := strings.TrimSpace(recorder.Body.String()); recorder.Code != http.StatusInternalServerError || body != want {
			t.Errorf("%d %q, want %q", recorder.Code, body, want)
		}
	}
	s.plugin.nodes = noNodes{}
	ask("listing nodes: no nodes")
	s.plugin.pods = noPods{}
	ask("no pods")
}

// A pod is rated by the profile that schedules it, unless another one is asked for.
func TestDebugProfileOfPod(t *testing.T) {
	nightly := pod("nightly", "quay.io/a:1")
	nightly.Spec.SchedulerName = "nightly"
	foreign := pod("foreign", "quay.io/a:1")
	foreign.Spec.SchedulerName = "somebody-else"
	s := newSuite(t, args(), nodes("n1"), nightly, foreign)
	s.newFramework("nightly", args())
	for query, want := range map[string]string{
		"pod=ns/nightly": "nightly",
		"pod=ns/nightly&profile=default-scheduler": "default-scheduler",
		"pod=ns/foreign":                    "default-scheduler", // the first by name
		"pod=ns/foreign&profile=nightly":    "nightly",
		"image=quay.io/a:1&profile=nightly": "nightly",
	} {
		recorder := httptest.NewRecorder()
		s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?"+query, nil))
		var rating Rating
		if err := json.Unmarshal(recorder.Body.Bytes(), &rating); err != nil || rating.Profile != want {
			t.Errorf("%s: rated by %q, want %q: %v", query, rating.Profile, want, err)
		}
	}
}

// What is remembered about nodes from pod to pod must not outlive the nodes.
func TestNodeCache(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // a test that can be repeated
	s := newSuite(t, args(func(a *configv1.LayerLocalityArgs) { a.LoadPenalty = ptr.To[int32](0) }), nodes("first"))
	all := map[string]*framework.NodeInfo{}
	has := map[string]int64{}
	for round := range 300 {
		name := fmt.Sprint("n", r.IntN(60))
		switch {
		case all[name] == nil:
			all[name] = framework.NewNodeInfo()
			all[name].SetNode(node(name))
			has[name] = r.Int64N(3) * 100
			s.index().SetNode(name, index.Platform{OS: "linux", Architecture: "amd64"})
			var images []index.Image
			if has[name] > 0 {
				l := layers{"a": 100}
				if has[name] > 100 {
					l["b"] = 100
				}
				images = []index.Image{nodeImage(fmt.Sprint("quay.io/", has[name], ":1"), l)}
			}
			s.agent.Sink.SetImages("test", name, images)
		case r.IntN(2) == 0: // its slot goes to another
			delete(all, name)
			s.index().DeleteNode(name)
		default: // a pod came or went
			all[name].SetNode(node(name))
		}
		stranger := framework.NewNodeInfo()
		stranger.SetNode(node("stranger"))
		stranger.Generation = 0
		infos := []fwk.NodeInfo{stranger}
		for _, info := range all {
			infos = append(infos, info)
		}
		s.registry["quay.io/p:1"] = manifest(index.Layer{Digest: digest("a"), Size: 100 * mb}, index.Layer{Digest: digest("b"), Size: 100 * mb})
		state := framework.NewCycleState()
		if status := s.plugin.PreScore(s.ctx, state, pod("p", "quay.io/p:1"), infos); status.IsSkip() {
			continue
		}
		for _, info := range infos {
			name := info.Node().Name
			if got, _ := s.plugin.Score(s.ctx, state, pod("p"), info); got != has[name]/2 {
				t.Fatalf("round %d: %s, which has %d MB, scores %d", round, name, has[name], got)
			}
		}
		if r.IntN(2) == 0 {
			s.plugin.Reserve(s.ctx, state, pod("p", "quay.io/p:1"), "none")
		}
	}
}
