package qosaware

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// TestFailedBinding checks that a binding ends that failed without a word, as in the published
// profile: when the pod gets its next place in the queue, or, if it is there alone, when the
// next binding begins.
func TestFailedBinding(t *testing.T) {
	p := newProcess(fake.NewClientset())
	h := &host{ledger: p.ledger, args: &config.QosAwareArgs{}, pods: listed()}
	plugin := &QosAware{host: h}
	pod := queued("p", 0, 0, "0.5").Pod
	pod.CreationTimestamp = metav1.NewTime(start)
	if err := h.ledger.Observe(pod); err != nil {
		t.Fatal(err)
	}
	to := func(seconds int) { p.clock.SetTime(start.Add(time.Duration(seconds) * time.Second)) }
	check := func(when int, waiting, binding float64) {
		t.Helper()
		to(when)
		if s := h.ledger.Rows(false)[0].Sums; s.Waiting != waiting || s.Binding != binding {
			t.Errorf("after %d s: %+v, want %v s of waiting and %v of binding", when, s, waiting, binding)
		}
	}
	attempt := func() {
		state := framework.NewCycleState()
		plugin.preFlight(state, pod)
		to(int(p.clock.Now().Sub(start).Seconds()) + 1)
		plugin.PreBind(t.Context(), state, pod, "n1") // the same binding
	}
	to(10)
	attempt()
	check(12, 10, 2)
	h.judgeQueued(pod, h.ledger.Now())
	check(20, 20, 0)
	attempt()
	check(25, 20, 5)
	attempt()
	check(30, 25, 5)
	if names := h.ledger.Waiting(always, (rules{}).compare); len(names) != 0 {
		t.Errorf("a pod that is being bound is to be tried again: %v", names)
	}
	h.judgeQueued(pod, h.ledger.Now())
	if names := h.ledger.Waiting(always, (rules{}).compare); len(names) != 1 {
		t.Errorf("the pod is not tried again: %v", names)
	}
}

func always(*ledger.Judgement) bool { return true }

// listed lists pods as an informer does.
func listed(pods ...*v1.Pod) corelisters.PodLister {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, pod := range pods {
		_ = store.Add(pod)
	}
	return corelisters.NewPodLister(store)
}

// TestOnlyWhoPlacesWarns checks that a scheduler which only follows writes no events about wrong
// annotations, and that one which begins to place pods does for pods that wait, not for those
// that have been placed before.
func TestOnlyWhoPlacesWarns(t *testing.T) {
	aPod := func(name, slo string, set ...func(*v1.Pod)) *v1.Pod {
		pod := queued(name, 0, 0, slo).Pod
		pod.Spec.SchedulerName = "ours"
		for _, f := range set {
			f(pod)
		}
		return pod
	}
	pods := []*v1.Pod{
		aPod("right", "0.5"), aPod("waits", "NaN"),
		aPod("placed", "NaN", func(p *v1.Pod) { p.Spec.NodeName = "n1" }),
		aPod("theirs", "NaN", func(p *v1.Pod) { p.Spec.SchedulerName = "theirs" }),
	}
	recorder := &warned{}
	h := &host{ledger: newProcess(fake.NewClientset()).ledger, handle: recorder, args: &config.QosAwareArgs{}, pods: listed(pods...)}
	h.profiles.Store("ours", nil)
	check := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(recorder.pods, want) {
			t.Errorf("%s: events for %q, want %q", when, recorder.pods, want)
		}
	}
	for _, pod := range pods {
		h.observe(nil, pod)
	}
	check("a scheduler that only follows")
	plugin := &QosAware{host: h}
	for range 2 {
		plugin.Reserve(t.Context(), framework.NewCycleState(), pods[0], "n1")
		check("pods are placed", "waits")
	}
	h.observe(nil, aPod("new", "NaN"))
	check("a pod that comes later", "waits", "new")
}

// TestWarnsOnce checks which pods get events about wrong annotations, and when.
func TestWarnsOnce(t *testing.T) {
	recorder := &warned{}
	h := &host{ledger: newProcess(fake.NewClientset()).ledger, handle: recorder}
	h.profiles.Store("ours", nil)
	h.placing.Store(true)
	pod := queued("p", 0, 0, "NaN").Pod
	pod.Spec.SchedulerName = "ours"
	changed := func(name, value string) *v1.Pod {
		p := pod.DeepCopy()
		p.Annotations[name] = value
		return p
	}
	theirs := pod.DeepCopy()
	theirs.Spec.SchedulerName = "theirs"
	for _, step := range []struct {
		what        string
		before, now *v1.Pod
		want        int
	}{
		{"another scheduler's", nil, theirs, 0},
		{"new", nil, pod, 1},
		{"the same", pod, pod, 1},
		{"another annotation", pod, changed("somebody/else", "x"), 1},
		{"still wrong, in another way", pod, changed(ledger.AnnotationSLO, "2"), 2},
		{"right", pod, changed(ledger.AnnotationSLO, "0.5"), 2},
	} {
		if h.observe(step.before, step.now); len(recorder.pods) != step.want {
			t.Errorf("%s: %d events, want %d", step.what, len(recorder.pods), step.want)
		}
	}
}

// warned has the names of the pods with events.
type warned struct {
	fwk.Handle
	eventRecorder
	pods []string
}

func (r *warned) EventRecorder() eventRecorder { return r }

func (r *warned) Eventf(regarding, _ runtime.Object, _, _, _, _ string, _ ...any) {
	r.pods = append(r.pods, regarding.(*v1.Pod).Name)
}

// TestTells checks the events for owners whose SLO is not admitted: only of who places pods, for pods
// of the profiles that enable the plugin.
func TestTells(t *testing.T) {
	c := newCluster(t, 1, 10, nil)
	recorder := &warned{}
	h := &host{ledger: c.Ledger, handle: recorder, rules: c.keys.rules, conditions: make(chan condition, maxTold)}
	h.profiles.Store("ours", nil)
	var pods []*v1.Pod
	for i := range 4 {
		pod := c.add(fmt.Sprint("w-", i), "1", 0)
		pod.Spec.SchedulerName = []string{"ours", "theirs"}[i/3]
		pods = append(pods, pod)
		c.NoRoom(pod.UID, true)
		c.clock.SetTime(c.clock.Now().Add(time.Second))
	}
	h.pods = listed(pods...)
	c.Admit()
	c.clock.SetTime(c.clock.Now().Add(time.Minute))
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(decisions.Refusals)))
	h.tell(logger)
	if len(recorder.pods) > 0 {
		t.Errorf("a scheduler that only follows: %q", recorder.pods)
	}
	h.placing.Store(true)
	h.tell(logger)
	slices.Sort(recorder.pods)
	if want := []string{pods[1].Name, pods[2].Name}; !slices.Equal(recorder.pods, want) {
		t.Errorf("events for %q, want %q", recorder.pods, want)
	}
	client := fake.NewClientset(pods[1], pods[2])
	written := func(want v1.ConditionStatus) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			writeConditions(ctx, client, h.conditions)
		}()
		defer func() { cancel(); <-ended }()
		for _, pod := range []*v1.Pod{pods[1], pods[2]} {
			if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
				now, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
				if err != nil || len(now.Status.Conditions) != 1 {
					return false, err
				}
				pod.Status = now.Status // as the informer has it
				c := now.Status.Conditions[0]
				return c.Type == AdmittedCondition && c.Status == want && strings.Contains(c.Message, "The SLO 1 of ReplicaSet team/w-"), nil
			}); err != nil {
				t.Errorf("%s has %+v, want %s: %v", pod.Name, pod.Status.Conditions, want, err)
			}
		}
	}
	written(v1.ConditionFalse)
	for _, pod := range pods {
		c.NoRoom(pod.UID, false)
	}
	c.clock.SetTime(c.clock.Now().Add(time.Hour))
	c.Admit()
	c.clock.SetTime(c.clock.Now().Add(time.Minute))
	h.tell(logger)
	written(v1.ConditionTrue)
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	for _, want := range []string{`Refused an SLO plugin="QosAware" kind="ReplicaSet" workload="team/w-`, `Admitted an SLO again plugin="QosAware" kind="ReplicaSet" workload="team/w-`} {
		if strings.Count(text, want) != 2 {
			t.Errorf("the log has not twice %s:\n%s", want, text)
		}
	}
}

// TestAffordable checks how many pods are tried again at once, depending on what attempts took.
func TestAffordable(t *testing.T) {
	for took, want := range map[time.Duration]int{0: 100, time.Millisecond: 100, 5 * time.Millisecond: 100, 10 * time.Millisecond: 50, 300 * time.Millisecond: 1, time.Hour: 1} {
		var a attempts
		for range 200 {
			a.took(took)
		}
		if got := a.affordable(5 * time.Second); got < want || got > want+1 {
			t.Errorf("attempts that take %v: %d are affordable, want %d", took, got, want)
		}
	}
	var a attempts
	for range 200 {
		a.took(time.Second)
	}
	for range 100 { // it is not slow for ever
		a.took(time.Millisecond)
	}
	if got := a.affordable(5 * time.Second); got != 100 {
		t.Errorf("%d are affordable", got)
	}
}

// TestRounds checks that the turn of everybody comes who waits, the most urgent first, and
// that nothing is kept of those that do not wait any more.
func TestRounds(t *testing.T) {
	waiting := make([]*v1.Pod, 25)
	for i := range waiting {
		waiting[i] = queued(fmt.Sprintf("p%02d", i), 0, 0, "1").Pod
	}
	var r rounds
	next := func(waiting []*v1.Pod) (names []string) {
		for _, pod := range r.next(waiting, 10) {
			names = append(names, pod.Name)
		}
		return names
	}
	for i, want := range [][2]string{{"p00", "p09"}, {"p10", "p19"}, {"p20", "p04"}, {"p05", "p14"}} {
		if got := next(waiting); len(got) != 10 || got[0] != want[0] || got[9] != want[1] {
			t.Errorf("turn %d: %q, want %q", i, got, want)
		}
	}
	if got := next(waiting[:3]); len(got) != 3 || len(r.tried) != 3 {
		t.Errorf("three wait: %q, %d are remembered", got, len(r.tried))
	}
	if got := next(nil); len(got) != 0 || len(r.tried) != 0 {
		t.Errorf("nobody waits: %q, %d are remembered", got, len(r.tried))
	}
}

// TestMayBeTried checks for which pods a place is taken among those that are tried again.
func TestMayBeTried(t *testing.T) {
	h := &host{}
	h.profiles.Store("ours", nil)
	for name, test := range map[string]struct {
		set  func(*v1.Pod)
		want bool
	}{
		"waits":      {func(*v1.Pod) {}, true},
		"of another": {func(p *v1.Pod) { p.Spec.SchedulerName = "theirs" }, false},
		"gated":      {func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "later"}} }, false},
		"placed":     {func(p *v1.Pod) { p.Spec.NodeName = "n1" }, false},
		"ends":       {func(p *v1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, false},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}, Spec: v1.PodSpec{SchedulerName: "ours"}}
		if test.set(pod); h.mayBeTried(pod) != test.want {
			t.Errorf("%s: %v", name, !test.want)
		}
	}
}

// apiServer is a handle whose client must not be used: only its configuration.
type apiServer struct {
	fwk.Handle
	config *rest.Config
}

func (a *apiServer) KubeConfig() *rest.Config { return a.config }

func (a *apiServer) ClientSet() clientset.Interface { return nil }

// TestAskingHasItsOwnRate checks that how pods ended is asked with a rate of its own, however
// slow that of the scheduler is, and what becomes of the answers.
func TestAskingHasItsOwnRate(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		if name == "gone" {
			http.NotFound(w, r)
			return
		}
		pod := v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if pod.Status.Phase = v1.PodFailed; name != "failed" {
			pod.Status.Phase = v1.PodSucceeded
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(pod)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, QPS: 1e-6, Burst: 1, RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	client, err := newClient(&apiServer{config: config})
	if err != nil {
		t.Fatal(err)
	}
	e := newTerminations(client, nil)
	defer e.queue.ShutDown()
	for name, want := range map[string]bool{"done": true, "failed": false, "gone": false} {
		for range 3 { // more than the scheduler's burst
			if got, err := e.succeeded(t.Context(), terminatedPod{"team", name, types.UID(name)}); got != want || err != nil {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
	if got, err := e.succeeded(t.Context(), terminatedPod{"team", "done", "another"}); got || err != nil {
		t.Errorf("another pod of its name: %v, %v", got, err)
	}
	if config.Burst != 1 {
		t.Error("the scheduler's own configuration was changed")
	}
}

// TestEndedPodsAreBounded has more pods end than it is waited for an answer of: the account of
// the others is closed at once. Those that wait for their next try count, too.
func TestEndedPodsAreBounded(t *testing.T) {
	h := &host{ledger: newProcess(fake.NewClientset()).ledger}
	asked := make(chan string, maxEnded)
	client := fake.NewClientset()
	client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked <- action.(clienttesting.GetAction).GetName()
		return true, nil, errors.New("not now")
	})
	h.terminations = newTerminations(client, h.ledger.Finish)
	const later = time.Hour
	h.terminations.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[terminatedPod](later, later))
	defer h.terminations.queue.ShutDown()
	end := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			pod := queued(fmt.Sprintf("p%d", i), 0, 0, "0.5").Pod
			pod.Annotations[ledger.AnnotationMeasuring] = string(account.Aggregate)
			pod.Spec.NodeName = "n1"
			if err := h.ledger.Observe(pod); err != nil {
				t.Fatal(err)
			}
			h.remove(pod)
		}
	}
	waited := func(want int) {
		t.Helper()
		if n := len(h.terminations.open); n != want || len(h.ledger.Rows(false)) != want {
			t.Errorf("%d answers are waited for, of %d workloads, want %d", n, len(h.ledger.Rows(false)), want)
		}
	}
	end(0, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.terminations.run(ctx)
	}()
	for range 10 { // each of them waits an hour now
		<-asked
	}
	waited(10)
	stop()
	<-ended
	end(10, maxEnded+5)
	waited(maxEnded)
	h.terminations.close(terminatedPod{"team", "p1", "p1"}, true)
	waited(maxEnded - 1)
	end(maxEnded+5, maxEnded+10)
	waited(maxEnded)
}
