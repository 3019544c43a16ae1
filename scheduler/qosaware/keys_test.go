package qosaware

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

func TestMain(m *testing.M) {
	schedulermetrics.Register() // the queue and the framework want them
	os.Exit(m.Run())
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// judgements judges pods by name, and counts how often.
type judgements struct {
	byName map[string]ledger.Judgement
	asked  int
}

func (j *judgements) judge(p *v1.Pod, _ time.Time) (ledger.Judgement, bool) {
	j.asked++
	judged, ok := j.byName[p.Name]
	return judged, ok
}

func judged(slo, metric float64) ledger.Judgement {
	return ledger.Judgement{Terms: account.Terms{SLO: slo, Measuring: account.Average, Overhead: 1}, Metric: metric}
}

func newKeys(j *judgements, set ...func(*config.QosAwareArgs)) *keys {
	args := &config.QosAwareArgs{SafetyMargin: metav1.Duration{Duration: 30 * time.Second}, RespectPriority: true, LongWait: metav1.Duration{Duration: time.Minute}}
	for _, f := range set {
		f(args)
	}
	return &keys{
		rules: newRules(args), respectPriority: args.RespectPriority, judge: j.judge,
		states: func(p *v1.Pod) bool { return p.Annotations[ledger.AnnotationSLO] != "" },
		now:    func() time.Time { return start }, byID: map[types.UID]*queueEntry{},
	}
}

// queued is a pod in the queue.
func queued(name string, priority int32, came float64, slo string) *framework.QueuedPodInfo {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: types.UID(name)}}
	p.Spec.Priority = ptr.To(priority)
	if slo != "" {
		p.Annotations = map[string]string{ledger.AnnotationSLO: slo}
	}
	info, err := framework.NewPodInfo(p)
	if err != nil {
		panic(err)
	}
	waiting := &framework.QueuedPodInfo{PodInfo: info}
	waiting.Timestamp = start.Add(time.Duration(came * float64(time.Second)))
	return waiting
}

func TestOrder(t *testing.T) {
	j := &judgements{byName: map[string]ledger.Judgement{
		"soon": judged(.5, 10), "sooner": judged(.5, 5), "large": judged(.9, 20), "late": judged(.9, 31), "never": judged(.1, math.Inf(1)),
		"behind": judged(.5, -10), "far behind": judged(.5, -100), "edge": judged(.99, 30), "important": judged(.1, 500),
	}}
	refused := judged(1, -1000)
	refused.Refused = true
	j.byName["refused"] = refused
	came := map[string]float64{"never": 1, "edge": 2, "none": 3, "important": 4, "late": 5, "refused": 6, "none, later": 7} // the others are urgent
	names := []string{"refused", "late", "behind", "none", "never", "soon", "far behind", "large", "sooner", "none, later", "edge", "important"}
	order := func(k *keys) (got []string) {
		var infos []*framework.QueuedPodInfo
		for _, name := range names {
			slo, priority := "1", int32(0)
			switch name {
			case "none", "none, later":
				slo = ""
			case "important":
				priority = 7
			}
			infos = append(infos, queued(name, priority, came[name], slo))
		}
		slices.SortFunc(infos, func(a, b *framework.QueuedPodInfo) int {
			switch {
			case k.less(a, b):
				return -1
			case k.less(b, a):
				return 1
			default:
				return 0
			}
		})
		for _, info := range infos {
			got = append(got, info.Pod.Name)
		}
		return got
	}
	for name, test := range map[string]struct {
		set  func(*config.QosAwareArgs)
		want []string
	}{
		"with priorities": {func(*config.QosAwareArgs) {},
			[]string{"important", "large", "far behind", "behind", "sooner", "soon", "never", "edge", "none", "late", "refused", "none, later"}},
		"without priorities": {func(a *config.QosAwareArgs) { a.RespectPriority = false },
			[]string{"large", "far behind", "behind", "sooner", "soon", "never", "edge", "none", "important", "late", "refused", "none, later"}},
	} {
		if got := order(newKeys(j, test.set)); !slices.Equal(got, test.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, test.want)
		}
	}
}

// TestTurnOfLongWaits checks that pods which waited for long come before urgent ones of their priority
// when it is their turn, the first one first, and who then has had it.
func TestTurnOfLongWaits(t *testing.T) {
	refused := judged(1, -1000)
	refused.Refused = true
	j := &judgements{byName: map[string]ledger.Judgement{"urgent": judged(1, -500), "refused": refused}}
	k := newKeys(j)
	waited := func(info *framework.QueuedPodInfo, seconds float64) *framework.QueuedPodInfo {
		info.InitialAttemptTimestamp = ptr.To(info.Timestamp.Add(-time.Duration(seconds * float64(time.Second))))
		return info
	}
	attempt := 0
	order := func() (names []string) {
		attempt++
		infos := []*framework.QueuedPodInfo{
			queued("urgent", 0, 0, "1"), waited(queued("short", 0, 10, ""), 59), waited(queued("long", 0, 20, ""), 80), waited(queued("refused", 0, 30, "1"), 120), queued("important", 1, 50, ""),
		}
		slices.SortFunc(infos, func(a, b *framework.QueuedPodInfo) int {
			a.Attempts, b.Attempts = attempt, attempt
			return boolean(k.less(a, b), -1, 1)
		})
		for _, info := range infos {
			names = append(names, info.Pod.Name)
		}
		return names
	}
	usual, turn := []string{"important", "urgent", "short", "long", "refused"}, []string{"important", "refused", "long", "urgent", "short"}
	check := func(when string, want []string) {
		t.Helper()
		if got := order(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	check("at first", usual)
	for range oneOf - 1 {
		k.placed(queued("urgent", 0, 0, "1").Pod)
	}
	check("nine others got a place", turn)
	preempted := queued("refused", 0, 0, "1").Pod
	preempted.Status.NominatedNodeName = "n1"
	k.placed(preempted)
	check("one got the place that it had preempted for", turn)
	k.placed(queued("refused", 0, 0, "1").Pod)
	check("one had its turn", usual)
}

// TestSystemPriority checks that system-critical pods stay first without respectPriority.
func TestSystemPriority(t *testing.T) {
	k := newKeys(&judgements{byName: map[string]ledger.Judgement{"urgent": judged(1, -5)}}, func(a *config.QosAwareArgs) { a.RespectPriority = false })
	if !k.less(queued("system", 2_000_000_000, 9, ""), queued("urgent", 0, 0, "1")) {
		t.Error("an urgent pod comes before a system-critical one")
	}
}

// TestAsPrioritySort checks that pods without SLO are sorted as upstream sorts them.
func TestAsPrioritySort(t *testing.T) {
	j := &judgements{}
	k, upstream := newKeys(j), &queuesort.PrioritySort{}
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		a, b := queued("a", random.Int32N(3), float64(random.IntN(3)), ""), queued("b", random.Int32N(3), float64(random.IntN(3)), "")
		if upstream.Less(a, b) && !k.less(a, b) || upstream.Less(b, a) && !k.less(b, a) {
			t.Fatalf("%+v and %+v are sorted in another way", a, b)
		}
	}
	if j.asked > 0 || len(k.byID) > 0 {
		t.Errorf("pods without SLO were judged %d times, %d are remembered", j.asked, len(k.byID))
	}
}

// TestDefaultSLO checks that pods without annotations have keys of their own if all have an
// SLO.
func TestDefaultSLO(t *testing.T) {
	j := &judgements{byName: map[string]ledger.Judgement{"a": judged(.5, 20), "b": judged(.5, 10)}}
	k := newKeys(j)
	k.states = func(*v1.Pod) bool { return true }
	if k.less(queued("a", 0, 0, ""), queued("b", 0, 0, "")) || len(k.byID) != 2 {
		t.Error("the default SLO does not count")
	}
}

// TestKeysStay checks that a key is made once for each entry in the queue, whatever becomes
// of the workload meanwhile, and is forgotten afterwards.
func TestKeysStay(t *testing.T) {
	j := &judgements{byName: map[string]ledger.Judgement{"a": judged(.5, 10), "b": judged(.5, 20)}}
	k := newKeys(j)
	a, b := queued("a", 0, 0, "1"), queued("b", 0, 0, "1")
	if !k.less(a, b) {
		t.Fatal("wrong order")
	}
	j.byName["a"] = judged(.5, 1000)
	if !k.less(a, b) || j.asked != 2 {
		t.Errorf("the order changed in the queue, or pods were judged again (%d times)", j.asked)
	}
	a.Attempts++ // it was taken from the queue and came back
	if k.less(a, b) {
		t.Error("the next entry has the key of the one before")
	}
	gone := func(types.UID, types.NamespacedName) bool { return false }
	k.sweep(gone)
	if len(k.byID) != 2 {
		t.Error("forgotten at once, although the queue may still compare them")
	}
	k.sweep(func(uid types.UID, _ types.NamespacedName) bool { return uid == "a" })
	if len(k.byID) != 1 {
		t.Errorf("%d keys are left", len(k.byID))
	}
	k.sweep(gone)
	k.sweep(gone)
	if len(k.byID) != 0 {
		t.Errorf("%d keys are left of pods that are gone", len(k.byID))
	}
}

// TestRecent has far more pods in the queue than there are recent keys: each keeps its own,
// another pod at its place in memory gets another, and nothing is kept of pods that are gone.
func TestRecent(t *testing.T) {
	j := &judgements{byName: map[string]ledger.Judgement{}}
	k := newKeys(j)
	infos := make([]*framework.QueuedPodInfo, 3*recentEntries)
	for i := range infos {
		name := fmt.Sprintf("p%d", i)
		j.byName[name] = judged(.5, -1e6+float64(i))
		infos[i] = queued(name, 0, 0, "1")
		infos[i].Pod.ResourceVersion = "1"
	}
	for range 2 {
		for i := range len(infos) - 1 {
			if !k.less(infos[i], infos[i+1]) || k.less(infos[i+1], infos[i]) {
				t.Fatalf("%s does not come before %s", infos[i].Pod.Name, infos[i+1].Pod.Name)
			}
		}
	}
	if j.asked != len(infos) {
		t.Errorf("%d judgements of %d pods", j.asked, len(infos))
	}

	last := infos[len(infos)-1]
	k.less(infos[0], last)
	last.Pod.ResourceVersion = "2" // it is still promised something, and keeps its key
	if k.less(infos[0], last); j.asked != len(infos) {
		t.Error("a pod that was changed got another key")
	}
	last.Pod.ResourceVersion = "3"
	delete(last.Pod.Annotations, ledger.AnnotationSLO)
	last.Timestamp = start.Add(time.Second)
	if !k.less(queued("none", 0, .5, ""), last) {
		t.Error("a pod that states no SLO any more is sorted by it")
	}

	for range 2 {
		k.sweep(func(types.UID, types.NamespacedName) bool { return false })
	}
	kept := 0
	for i := range k.recent {
		if k.recent[i].Load() != nil {
			kept++
		}
	}
	if kept > 0 || len(k.byID) > 0 {
		t.Errorf("%d and %d keys are kept of pods that are gone", kept, len(k.byID))
	}
}

// TestIncomplete checks what is done while a scheduler that starts does not have all pods yet,
// and that it ends, at the latest after syncTimeout.
func TestIncomplete(t *testing.T) {
	j := &judgements{byName: map[string]ledger.Judgement{"a": judged(.5, 20), "b": judged(.5, 10)}}
	h := &host{keys: newKeys(j), ledger: newProcess(fake.NewClientset()).ledger}
	h.keys.incomplete.Store(true)
	a, b := queued("a", 0, 0, "1"), queued("b", 0, 0, "1")
	if h.keys.less(a, b) || len(h.keys.byID) != 0 {
		t.Errorf("wrong order, or %d keys are kept", len(h.keys.byID))
	}
	if _, ok := h.judgeRunning(a.Pod, start); ok {
		t.Error("judged for a preemption")
	}
	var all atomic.Bool
	done := make(chan struct{})
	go func() { h.complete(t.Context(), all.Load); close(done) }()
	if _, ok := h.judgeRunning(a.Pod, start); ok {
		t.Error("judged before all pods are known")
	}
	all.Store(true)
	<-done
	if _, ok := h.judgeRunning(a.Pod, start); !ok {
		t.Error("not judged although all pods are known")
	}
	if h.keys.less(a, b) || len(h.keys.byID) != 2 {
		t.Errorf("wrong order, or %d keys are kept", len(h.keys.byID))
	}
	h.keys.incomplete.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as after syncTimeout
	if h.complete(ctx, func() bool { return false }); h.keys.incomplete.Load() {
		t.Error("it waits for what never comes")
	}
}

// TestStrictWeakOrder checks what a heap needs, while judgements change all the time, pods are
// deleted and wait for a finalizer, and some states no SLO any more.
func TestStrictWeakOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2 { // other pods each time
		j := &judgements{byName: map[string]ledger.Judgement{}}
		k := newKeys(j)
		change := func() {
			metrics := []float64{math.Inf(1), math.Inf(-1), 0, 30, -20, 100, random.Float64()*100 - 50}
			changed := judged([]float64{.3, .5, 1}[random.IntN(3)], metrics[random.IntN(len(metrics))])
			changed.Refused = random.IntN(4) == 0
			j.byName[fmt.Sprint(random.IntN(30))] = changed
		}
		var infos []*framework.QueuedPodInfo
		known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		h := &host{pods: corelisters.NewPodLister(known)}
		for i := range 30 {
			j.byName[fmt.Sprint(i)] = judged([]float64{.3, .5, 1}[random.IntN(3)], random.Float64()*100-50)
			infos = append(infos, queued(fmt.Sprint(i), random.Int32N(2), float64(random.IntN(3)*20), []string{"", "1", "1"}[random.IntN(3)]))
			if random.IntN(2) == 0 { // it has waited for long
				infos[i].InitialAttemptTimestamp = ptr.To(start.Add(-time.Duration(random.IntN(3)) * time.Hour))
			}
			_ = known.Add(infos[i].Pod)
		}
		sorted := func() (names []string) {
			infos := slices.Clone(infos)
			slices.SortFunc(infos, func(a, b *framework.QueuedPodInfo) int {
				if k.less(a, b) {
					return -1
				}
				return boolean(k.less(b, a), 1, 0)
			})
			for _, info := range infos {
				names = append(names, info.Pod.Name)
			}
			return names
		}
		order := sorted()
		for range 100_000 {
			change()
			switch i := random.IntN(3000); {
			case i == 0:
				k.sweep(h.waits)
			case i < 30: // the informer's object; the queue's is not sorted anew
				p := infos[i].Pod.DeepCopy()
				now := metav1.Now()
				p.DeletionTimestamp, p.Finalizers = &now, []string{"somebody/waits"}
				_ = known.Update(p)
			case i < 40:
				delete(j.byName, fmt.Sprint(i-30)) // it states none any more
			}
			k.rules.turns.others.Store(random.Int32N(oneOf))
			a, b, c := infos[random.IntN(30)], infos[random.IntN(30)], infos[random.IntN(30)]
			switch {
			case k.less(a, a):
				t.Fatal("a pod is before itself")
			case k.less(a, b) && k.less(b, a):
				t.Fatal("two pods are before each other")
			case k.less(a, b) && k.less(b, c) && !k.less(a, c):
				t.Fatal("not transitive")
			case a != b && !k.less(a, b) && !k.less(b, a):
				t.Fatal("two pods have the same key")
			}
		}
		if now := sorted(); !slices.Equal(now, order) {
			t.Errorf("pods changed their keys while they were in the queue: %v, then %v", order, now)
		}
	}
}

// TestQueueOfManyPods puts 10,000 pods through kube-scheduler's own queue while their
// workloads change: all of them come out, whatever the Ledger has of them.
func TestQueueOfManyPods(t *testing.T) {
	args := &config.QosAwareArgs{AcceptablePreemptionOverhead: 1, SafetyMargin: metav1.Duration{Duration: 30 * time.Second}, RespectPriority: true}
	b := ledger.New(ledger.Config{Args: args, Clock: clock.RealClock{}, Owners: func(string, metav1.OwnerReference) (ledger.Owner, bool) { return ledger.Owner{}, true }})
	k := &keys{rules: newRules(args), respectPriority: true, states: ledger.NewReader(args).States, judge: b.Judge, now: b.Now, byID: map[types.UID]*queueEntry{}}
	logger, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := queue.NewTestQueue(ctx, (&QosAware{host: &host{keys: k}}).Less)
	const many = 10_000
	pods := make([]*v1.Pod, many)
	for i := range pods {
		pods[i] = queued(fmt.Sprint("pod-", i), int32(i%2), 0, []string{"", "0.5", "1", "wrong"}[i%4]).Pod
		pods[i].CreationTimestamp = metav1.Now()
		switch i % 5 {
		case 0:
			pods[i].OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "many", UID: "many", Controller: ptr.To(true)}}
		case 1:
			pods[i].Namespace = metav1.NamespaceSystem
		}
	}
	var events sync.WaitGroup
	events.Go(func() {
		random := rand.New(rand.NewPCG(5, 6))
		for ctx.Err() == nil {
			p := pods[random.IntN(many)]
			switch random.IntN(4) {
			case 0:
				b.Remove(p) // the event reaches the Ledger before the queue
			case 1:
				b.Waiting(k.rules.turn, k.rules.compare)
			case 2:
				k.sweep(func(uid types.UID, _ types.NamespacedName) bool { return random.IntN(2) == 0 })
			default:
				_ = b.Observe(p)
			}
		}
	})
	for i, p := range pods {
		if i%3 > 0 {
			_ = b.Observe(p) // others the queue sees before the Ledger does
		}
		addTo(ctx, q, p)
	}
	seen := map[types.UID]bool{}
	for range many {
		info, err := q.Pop(logger)
		if err != nil {
			t.Fatal(err)
		}
		seen[any(info).(*framework.QueuedPodInfo).Pod.UID] = true
	}
	cancel()
	events.Wait()
	if len(seen) != many {
		t.Errorf("%d pods came out of the queue", len(seen))
	}
}

// BenchmarkQueue puts 10,000 pods into kube-scheduler's queue and takes them out again: once as
// upstream sorts it, then with QosAware, without and with SLOs in 500 workloads.
func BenchmarkQueue(b *testing.B) {
	args := &config.QosAwareArgs{AcceptablePreemptionOverhead: 1, SafetyMargin: metav1.Duration{Duration: 30 * time.Second}, RespectPriority: true}
	const many = 10_000
	run := func(slo string, promising bool) func(*testing.B) {
		return func(b *testing.B) {
			logger := klog.Logger{} // silent: the queue would log each pod
			ctx := klog.NewContext(b.Context(), logger)
			pods := make([]*v1.Pod, many)
			for i := range pods {
				pods[i] = queued(fmt.Sprint("pod-", i), 0, 0, slo).Pod
				pods[i].OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: fmt.Sprint(i % 500), UID: types.UID(fmt.Sprint(i % 500)), Controller: ptr.To(true)}}
			}
			for b.Loop() {
				b.StopTimer()
				less := (&queuesort.PrioritySort{}).Less
				if promising {
					known := ledger.New(ledger.Config{Args: args, Clock: clock.RealClock{}, Owners: func(string, metav1.OwnerReference) (ledger.Owner, bool) { return ledger.Owner{}, true }})
					for _, p := range pods {
						_ = known.Observe(p)
					}
					k := &keys{rules: newRules(args), respectPriority: true, states: ledger.NewReader(args).States, judge: known.Judge, now: known.Now, byID: map[types.UID]*queueEntry{}}
					less = (&QosAware{host: &host{keys: k}}).Less
				}
				q := queue.NewTestQueue(ctx, less)
				b.StartTimer()
				for _, p := range pods {
					addTo(ctx, q, p)
				}
				for range many {
					if _, err := q.Pop(logger); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/many, "µs/pod")
		}
	}
	b.Run("PrioritySort", run("", false))
	b.Run("QosAware without SLO", run("", true))
	b.Run("QosAware with SLO", run("0.9", true))
}
