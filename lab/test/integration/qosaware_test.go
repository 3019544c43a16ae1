//go:build integration && imagelayers

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	configtesting "k8s.io/kubernetes/pkg/scheduler/apis/config/testing"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	testutils "k8s.io/kubernetes/test/integration/util"
	"k8s.io/utils/ptr"

	qosv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/qosaware"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// promising returns a profile with QosAware in place of upstream's queue and preemption.
func promising(args qosv1.QosAwareArgs) configv1.KubeSchedulerProfile {
	args.APIVersion, args.Kind = qosv1.SchemeGroupVersion.String(), "QosAwareArgs"
	return configv1.KubeSchedulerProfile{
		Plugins: &configv1.Plugins{MultiPoint: configv1.PluginSet{
			Enabled:  []configv1.Plugin{{Name: qosaware.Name}},
			Disabled: []configv1.Plugin{{Name: "PrioritySort"}, {Name: "DefaultPreemption"}},
		}},
		PluginConfig: []configv1.PluginConfig{{Name: qosaware.Name, Args: runtime.RawExtension{Object: &args}}},
	}
}

// published is the list of plugins of the publication, with this one's name.
func published(args qosv1.QosAwareArgs) configv1.KubeSchedulerProfile {
	profile, this := promising(args), []configv1.Plugin{{Name: qosaware.Name}}
	profile.Plugins = &configv1.Plugins{
		QueueSort: configv1.PluginSet{Enabled: this, Disabled: []configv1.Plugin{{Name: "*"}}},
		PreBind:   configv1.PluginSet{Enabled: this},
		PostBind:  configv1.PluginSet{Enabled: this},
	}
	return profile
}

// promises is an apiserver, and one scheduler after the other.
type promises struct {
	*testutils.TestContext
	t       *testing.T
	factory *qosaware.Factory
	// failing has the bindings of profiles fail that enable the plugin of that name.
	failing *failing
}

// failing is a plugin whose PreBind fails as long as fails is set.
type failing struct{ fails atomic.Bool }

func (*failing) Name() string { return "Failing" }

func (*failing) PreBindPreFlight(context.Context, fwk.CycleState, *v1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, nil
}

func (f *failing) PreBind(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status {
	if f.fails.Load() {
		return fwk.AsStatus(errors.New("not yet"))
	}
	return nil
}

func newPromises(t *testing.T) *promises {
	t.Helper()
	return &promises{TestContext: testutils.InitTestAPIServer(t, "promises", nil), t: t, failing: &failing{}}
}

// schedule starts a scheduler, which places pods when it has all that exist already. The
// returned function ends it.
func (c *promises) schedule(profiles ...configv1.KubeSchedulerProfile) (stop func()) {
	c.t.Helper()
	c.factory = qosaware.NewFactory()
	cfg := configtesting.V1ToInternalWithDefaults(c.t, configv1.KubeSchedulerConfiguration{Profiles: profiles})
	testutils.InitTestSchedulerWithOptions(c.t, c.TestContext, 0,
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithPodInitialBackoffSeconds(0), scheduler.WithPodMaxBackoffSeconds(0),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{
			qosaware.Name:    c.factory.New,
			c.failing.Name(): func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return c.failing, nil },
		}))
	testutils.SyncSchedulerInformerFactory(c.TestContext)
	if err := c.Scheduler.WaitForHandlersSync(c.SchedulerCtx); err != nil { // as kube-scheduler does
		c.t.Fatal(err)
	}
	run, ctx, end, ended := c.Scheduler.Run, c.SchedulerCtx, c.SchedulerCloseFn, make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return func() {
		end()
		<-ended // and has saved its state
	}
}

func (c *promises) eventually(what string, condition func() bool) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.Ctx, 50*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", what, err, c.table("?wide"))
	}
}

// node creates a node with room for so many pods of one CPU.
func (c *promises) node(name string, room int) {
	c.t.Helper()
	n := st.MakeNode().Name(name).Label("kubernetes.io/hostname", name).
		Capacity(map[v1.ResourceName]string{v1.ResourceCPU: fmt.Sprint(room), v1.ResourceMemory: "500Gi", v1.ResourcePods: "110"}).Obj()
	if _, err := c.ClientSet.CoreV1().Nodes().Create(c.Ctx, n, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// pod creates a pod of one CPU.
func (c *promises) pod(name, slo string, set ...func(*v1.Pod)) *v1.Pod {
	c.t.Helper()
	pod := st.MakePod().Namespace(c.NS.Name).Name(name).Label("name", name).TerminationGracePeriodSeconds(0).Req(map[v1.ResourceName]string{v1.ResourceCPU: "1"}).Obj()
	if slo != "" {
		pod.Annotations = map[string]string{ledger.AnnotationSLO: slo}
	}
	for _, f := range set {
		f(pod)
	}
	created, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Create(c.Ctx, pod, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return created
}

func priority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

// placed returns the names of the pods that have a node, sorted.
func (c *promises) placed(namespace string) []string {
	c.t.Helper()
	pods, err := c.ClientSet.CoreV1().Pods(namespace).List(c.Ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *promises) isPlaced(names ...string) {
	c.t.Helper()
	slices.Sort(names)
	c.eventually(fmt.Sprintf("placed are %v", names), func() bool { return slices.Equal(c.placed(c.NS.Name), names) })
}

// cannotBePlaced waits until the scheduler has found no node for a pod, after the last change of
// the cluster.
func (c *promises) cannotBePlaced(pod *v1.Pod) {
	c.t.Helper()
	c.eventually(pod.Name+" cannot be placed", func() bool {
		now, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Get(c.Ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		return slices.ContainsFunc(now.Status.Conditions, func(condition v1.PodCondition) bool {
			return condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable
		})
	})
}

func (c *promises) delete(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.ClientSet.CoreV1().Pods(c.NS.Name).Delete(c.Ctx, name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
}

// spare creates a disruption budget for a pod, and waits until the scheduler has it.
func (c *promises) spare(name string) {
	c.t.Helper()
	if _, err := c.ClientSet.PolicyV1().PodDisruptionBudgets(c.NS.Name).Create(c.Ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "spare"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": name}}},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the scheduler has the budget", func() bool {
		_, err := c.InformerFactory.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets(c.NS.Name).Get("spare")
		return err == nil
	})
}

// table returns the debug table.
func (c *promises) table(query string) string {
	answer := httptest.NewRecorder()
	c.factory.DebugHandler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, qosaware.DebugPath+query, nil))
	return answer.Body.String()
}

// row returns the columns of a workload in the table.
func (c *promises) row(name string) []string {
	for line := range strings.Lines(c.table("")) {
		if columns := strings.Fields(line); columns[0] == c.NS.Name+"/"+name {
			return columns
		}
	}
	return nil
}

// patient are arguments with which nobody is preempted that has not run for an hour, but for
// a larger SLO.
func patient() qosv1.QosAwareArgs {
	return qosv1.QosAwareArgs{
		MeasureFrom: ptr.To("Bound"), MinimumRunningTime: &metav1.Duration{Duration: time.Hour}, ReconsiderEvery: &metav1.Duration{Duration: time.Second},
	}
}

// TestQosAwareWithoutSLO plays the same with and without QosAware: if no pod states an SLO,
// the same pods are placed first, and the same are preempted.
func TestQosAwareWithoutSLO(t *testing.T) {
	results := map[string][][]string{}
	for name, profile := range map[string]configv1.KubeSchedulerProfile{"upstream": {}, "QosAware": promising(patient()), "published": published(patient())} {
		t.Run(name, func(t *testing.T) {
			c := newPromises(t)
			var steps [][]string
			step := func(what string, n int) {
				c.eventually(fmt.Sprintf("%s: %d pods are placed", what, n), func() bool { return len(c.placed(c.NS.Name)) == n })
				steps = append(steps, c.placed(c.NS.Name))
			}
			c.node("n1", 2)
			c.node("n2", 2)
			for i, p := range []int32{0, 0, 5, 0, 5, 3, 0, 3} {
				c.pod(fmt.Sprintf("p%d-%d", i, p), "", priority(p), func(pod *v1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever) })
			}
			stop := c.schedule(profile)
			defer stop()
			var before map[string]float64
			if name != "upstream" { // which has no such metric
				before = preempted(t)
			}
			step("order", 4)
			c.cannotBePlaced(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.NS.Name, Name: "p0-0"}})
			// Who is waiting goes, so that what is preempted does not depend on them.
			c.delete("p0-0", "p1-0", "p3-0", "p6-0")
			c.spare("p5-3") // of two victims with the lowest priority the other one
			c.pod("important", "", priority(9))
			c.eventually("it preempted", func() bool { return slices.Contains(c.placed(c.NS.Name), "important") })
			step("preemption", 4)
			results[name] = steps
			if name == "upstream" {
				return
			}
			want := map[string]int{} // the published profile has upstream's preemption
			if name == "QosAware" {
				want["priority"] = 1
			}
			if got := since(before, preempted(t)); !maps.Equal(got, want) {
				t.Errorf("preemptions are counted %v, want %v", got, want)
			}
		})
	}
	for name, steps := range results {
		if !reflect.DeepEqual(steps, results["upstream"]) || !slices.Equal(steps[0], []string{"p2-5", "p4-5", "p5-3", "p7-3"}) {
			t.Errorf("%s: %v, upstream %v", name, steps, results["upstream"])
		}
	}
}

// TestQosAwareOrder checks who is placed first of pods that wait when the scheduler starts.
func TestQosAwareOrder(t *testing.T) {
	for name, profile := range map[string]configv1.KubeSchedulerProfile{"multiPoint": promising(none(patient())), "published": published(none(patient()))} {
		t.Run(name, func(t *testing.T) {
			c := newPromises(t)
			c.node("n1", 4)
			for _, slo := range []string{"", "0.3", "0.5", "0.9"} {
				for i := range 2 {
					c.pod(fmt.Sprintf("slo%s-%d", slo, i), slo)
				}
			}
			stop := c.schedule(profile)
			defer stop()
			c.isPlaced("slo0.5-0", "slo0.5-1", "slo0.9-0", "slo0.9-1")
			// Room comes at once and when all have been tried: a pod being tried while it comes takes it.
			for _, name := range []string{"slo0.3-0", "slo0.3-1", "slo-0", "slo-1"} {
				c.cannotBePlaced(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.NS.Name, Name: name}})
			}
			c.node("n2", 2)
			c.isPlaced("slo0.3-0", "slo0.3-1", "slo0.5-0", "slo0.5-1", "slo0.9-0", "slo0.9-1")
			if row := c.row("slo0.5-0"); row == nil || !strings.HasSuffix(row[1], "/0.50") {
				t.Errorf("no row of a workload:\n%s", c.table(""))
			}
		})
	}
}

// TestQosAwareBindingFails has bindings fail in the published profile, which has no extension point
// for it: they end, and the pods go on waiting until they are placed.
func TestQosAwareBindingFails(t *testing.T) {
	c := newPromises(t)
	c.failing.fails.Store(true)
	c.node("n1", 2)
	profile := published(patient())
	profile.Plugins.PreBind.Enabled = append(profile.Plugins.PreBind.Enabled, configv1.Plugin{Name: c.failing.Name()})
	stop := c.schedule(profile)
	defer stop()
	c.pod("alone", "0.5")
	waited := func(name string) bool {
		row := c.row(name)
		if row == nil {
			return false
		}
		waiting, err := time.ParseDuration(row[4])
		if err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		return waiting >= 3*time.Second
	}
	c.eventually("the time after a failed binding is waiting", func() bool { return waited("alone") })
	c.pod("other", "0.9")
	c.eventually("it is, of two pods, too", func() bool { return waited("other") })
	c.failing.fails.Store(false)
	c.isPlaced("alone", "other")
}

// none has nobody preempted.
func none(args qosv1.QosAwareArgs) qosv1.QosAwareArgs {
	args.MaxPreemptionsPerMinute = ptr.To[int32](0)
	return args
}

// TestQosAwarePreemption checks who is preempted, and who is not.
func TestQosAwarePreemption(t *testing.T) {
	c := newPromises(t)
	c.node("n1", 3)
	stop := c.schedule(promising(patient()))
	defer stop()
	c.pod("none", "")
	c.pod("small", "0.3")
	c.pod("middle", "0.5")
	c.isPlaced("middle", "none", "small")

	// A larger SLO: the smallest goes, and never who states none.
	before := preempted(t)
	c.pod("large", "0.6")
	c.isPlaced("large", "middle", "none")
	if after := preempted(t); after["larger-slo"] != before["larger-slo"]+1 || after["priority"] != before["priority"] {
		t.Errorf("preemptions are counted %v, before %v", after, before)
	}
	if _, err := c.ClientSet.CoreV1().Pods(c.NS.Name).Get(c.Ctx, "small", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the victim: %v", err)
	}

	// preemptionPolicy: Never, the same SLO, no SLO: nobody goes.
	for _, waiting := range []*v1.Pod{
		c.pod("polite", "1", func(p *v1.Pod) { p.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever) }),
		c.pod("equal", "0.5"), c.pod("without", ""), c.pod("unimportant", "1", priority(-1)),
	} {
		c.cannotBePlaced(waiting)
		// Nobody was chosen for it, and will be gone later.
		now, err := c.ClientSet.CoreV1().Pods(c.NS.Name).Get(c.Ctx, waiting.Name, metav1.GetOptions{})
		if err != nil || now.Status.NominatedNodeName != "" {
			t.Errorf("%s: nominated %q, %v", waiting.Name, now.Status.NominatedNodeName, err)
		}
	}
	c.isPlaced("large", "middle", "none")
	if got := since(before, preempted(t)); !maps.Equal(got, map[string]int{"larger-slo": 1}) {
		t.Errorf("preemptions are counted %v", got)
	}
	c.delete("polite", "equal", "without", "unimportant")

	// A disruption budget spares who would go first.
	c.spare("middle")
	c.pod("largest", "0.7") // all three are .9 of the two places
	c.isPlaced("largest", "middle", "none")

	// Upstream's own rule: a lower priority.
	before = preempted(t)
	c.pod("important", "", priority(5))
	c.eventually("a pod with a higher priority is placed", func() bool { return slices.Contains(c.placed(c.NS.Name), "important") })
	if after := preempted(t); after["priority"] != before["priority"]+1 {
		t.Errorf("preemptions are counted %v, before %v", after, before)
	}
}

// since returns what was counted after something.
func since(before, after map[string]float64) map[string]int {
	counts := map[string]int{}
	for reason, n := range after {
		if more := int(n - before[reason]); more != 0 {
			counts[reason] = more
		}
	}
	return counts
}

// preempted counts the pods that were preempted, by reason.
func preempted(t *testing.T) map[string]float64 {
	t.Helper()
	counts, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "scheduler_qosaware_preemptions_total", nil, "reason")
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// TestQosAwareReconsiders checks that a pod that fits nowhere is tried again because its SLO
// is in danger, without an event in the cluster.
func TestQosAwareReconsiders(t *testing.T) {
	c := newPromises(t)
	c.node("n1", 1)
	args := patient()
	args.MinimumRunningTime, args.SafetyMargin = &metav1.Duration{Duration: 5 * time.Second}, &metav1.Duration{Duration: 0}
	args.AcceptablePreemptionOverhead = ptr.To(0.) // a victim has to be above its SLO
	stop := c.schedule(promising(args))
	defer stop()
	c.pod("runs", "0.45") // both together are .9 of the place
	c.isPlaced("runs")
	waits := c.pod("waits", "0.45")
	c.cannotBePlaced(waits)
	c.isPlaced("waits") // once the other one has run for five seconds
}

// TestQosAwareTells has the owner of a workload see in the API that its SLO is not kept, on the pod that waits, and that it is again.
func TestQosAwareTells(t *testing.T) {
	c := newPromises(t)
	c.node("n1", 1)
	stop := c.schedule(promising(patient()))
	defer stop()
	first := c.pod("first", "0.9")
	c.isPlaced("first")
	// The older workload is admitted, and creation times have whole seconds.
	time.Sleep(time.Until(first.CreationTimestamp.Add(time.Second)))
	second := c.pod("second", "0.9")
	c.cannotBePlaced(second)
	told := func(want v1.ConditionStatus, reason, message string) {
		t.Helper()
		c.eventually(fmt.Sprintf("the condition %s is %s", qosaware.AdmittedCondition, want), func() bool {
			now, err := c.ClientSet.CoreV1().Pods(c.NS.Name).Get(c.Ctx, second.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(now.Status.Conditions, func(condition v1.PodCondition) bool {
				return condition.Type == qosaware.AdmittedCondition && condition.Status == want && condition.Reason == reason && strings.Contains(condition.Message, message)
			})
		})
		c.eventually("there is an event "+reason, func() bool {
			events, err := c.ClientSet.EventsV1().Events(c.NS.Name).List(c.Ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
				return event.Reason == reason && event.Regarding.UID == second.UID && strings.Contains(event.Note, message)
			})
		})
	}
	told(v1.ConditionFalse, "SLONotAdmitted", "is not kept at present: SLOs here add up to 1.8 places, and pods with SLOs were seen to have 1.")
	c.delete("first")
	c.isPlaced("second")
	told(v1.ConditionTrue, "SLOAdmitted", "is kept from now on.")
}

// unusable counts how often a saved state could not be used.
func unusable(t *testing.T) float64 {
	t.Helper()
	counts, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "scheduler_qosaware_state_writes_total", nil, "result")
	if err != nil {
		t.Fatal(err)
	}
	return counts["unusable"]
}

// TestQosAwareState checks that a scheduler finds what the one before it knew, and starts
// without it if it cannot be used.
func TestQosAwareState(t *testing.T) {
	c := newPromises(t)
	c.node("n1", 10)
	owned := func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Rollout", Name: "app", UID: "rollout", Controller: ptr.To(true)}}
	}
	configMaps := c.ClientSet.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	name := qosv1.DefaultStateConfigMap
	c.eventually("namespace kube-system", func() bool {
		_, err := c.ClientSet.CoreV1().Namespaces().Get(c.Ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err == nil
	})
	stop := c.schedule(promising(patient()))
	c.pod("first", "0.5", owned)
	created := time.Now()
	second := c.pod("second", "0.5", owned)
	c.isPlaced("first", "second")
	binding := time.Since(created) // at most
	running := func(row []string) time.Duration {
		if len(row) < 4 {
			return 0
		}
		d, err := time.ParseDuration(row[3])
		if err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		return d
	}
	c.eventually("they ran", func() bool { return running(c.row("app")) >= 10*time.Second })
	version := func() string {
		saved, err := configMaps.Get(c.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return saved.ResourceVersion
	}
	known := version()
	c.delete("first")
	c.eventually("the state is saved, with what the first pod got", func() bool { return version() != known })
	asked := time.Now()
	before, answered := running(c.row("app")), time.Now()
	stop()

	stop = c.schedule(promising(patient()))
	c.eventually("the workload is known again", func() bool { return c.row("app") != nil })
	// One pod ran on meanwhile. Its binding is not in the API, and the table has whole seconds.
	least, after, most := time.Since(answered), running(c.row("app")), time.Since(asked)
	if after < before+least-2*time.Second || after > before+most+binding+3*time.Second {
		t.Errorf("before the restart %v of running time, %v to %v later %v", before, least, most, after)
	}
	saved, err := configMaps.Get(c.Ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop()

	for what, data := range map[string]map[string][]byte{
		"damaged": {"state.json.gz": []byte("no state")}, "empty": nil, "cut": {"state.json.gz": saved.BinaryData["state.json.gz"][:40]},
	} {
		damaged := saved.DeepCopy()
		damaged.BinaryData, damaged.ResourceVersion = data, ""
		if _, err := configMaps.Update(c.Ctx, damaged, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		times := unusable(t)
		stop = c.schedule(promising(patient()))
		if unusable(t) != times+1 {
			t.Errorf("%s: it is not counted as unusable", what)
		}
		// The account begins anew: without the pod that is gone, which ran as long as the other.
		c.eventually(what+": the workload is known from its pods", func() bool { return c.row("app") != nil })
		if row, age := c.row("app"), time.Since(second.CreationTimestamp.Time); running(row) > age+2*time.Second {
			t.Errorf("%s: %v of running time, of a pod of %v: what was saved counts", what, row, age)
		}
		c.pod("after-"+what, "", owned)
		c.eventually(what+": pods are placed", func() bool { return slices.Contains(c.placed(c.NS.Name), "after-"+what) })
		stop()
	}
	if err := configMaps.Delete(c.Ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	stop = c.schedule(promising(patient()))
	defer stop()
	c.pod("after-deletion", "0.5", owned)
	c.eventually("pods are placed", func() bool { return slices.Contains(c.placed(c.NS.Name), "after-deletion") })
	c.delete("after-deletion")
	c.eventually("the state is saved anew", func() bool {
		_, err := configMaps.Get(c.Ctx, name, metav1.GetOptions{})
		return err == nil
	})
}

// TestQosAwareSurvives has what the published plugins died of, and the scheduler goes on
// placing pods.
func TestQosAwareSurvives(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := newPromises(t)
	args := patient()
	args.DebugBindAddress = listener.Addr().String() // in use
	stop := c.schedule(promising(args))
	defer stop()
	fitsNowhere := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"there": "is-none"} }

	// Pods of kube-system wait beside others.
	c.eventually("namespace kube-system", func() bool {
		_, err := c.ClientSet.CoreV1().Namespaces().Get(c.Ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err == nil
	})
	for i := range 5 {
		c.pod(fmt.Sprintf("system-%d", i), []string{"", "0.9"}[i%2], func(p *v1.Pod) { p.Namespace = metav1.NamespaceSystem }, fitsNowhere)
		c.pod(fmt.Sprintf("waiting-%d", i), []string{"", "0.9"}[i%2], fitsNowhere)
	}
	// Pods are deleted at once.
	for i := range 20 {
		name := fmt.Sprintf("short-%d", i)
		c.pod(name, "0.9")
		c.delete(name)
	}
	// A workload has more pods than a moment ago, in another namespace; annotations are wrong.
	if err := testutils.CreateNamespacesWithLabels(c.ClientSet, []string{"other"}, nil); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 10 {
		name := fmt.Sprintf("replica-%d", i)
		c.pod(name, []string{"0.9", "0", "1.5", "NaN", strings.Repeat("9", 200_000)}[i%5], func(p *v1.Pod) {
			p.Namespace = "other"
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "gone", UID: "gone", Controller: ptr.To(true)}}
		})
		want = append(want, name)
	}
	c.node("n1", 100)
	c.eventually("pods are placed", func() bool { return slices.Equal(c.placed("other"), want) })
	c.pod("last", "1")
	c.isPlaced("last")
	c.eventually("wrong annotations are events", func() bool {
		events, err := c.ClientSet.EventsV1().Events("other").List(c.Ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, event := range events.Items {
			if event.Reason == "InvalidSLO" {
				n++
			}
		}
		return n >= 8
	})
}
