//go:build e2e

package qosaware

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestPromises has two workloads of SLO 1 and three of SLO .5 share room for four pods. All
// three get their share, and the two are never preempted. Beside them, on another node, are the
// same with PrioritySort and DefaultPreemption: one of them gets nothing. Then the scheduler is
// killed, and another one takes over: what everybody got is known to the next one.
func TestPromises(t *testing.T) {
	// What starting and stopping containers costs is lost for the three. On a machine that does
	// other work, too, it is more than the third that they have to spare.
	livetest.Long(t, "TestOrder, TestSurvives and the integration tests of QosAware")
	room(t, 2, 2, 4)
	plain := func(slo string) corev1.PodTemplateSpec {
		pod := on(template(slo), "n3")
		pod.Spec.SchedulerName = scenario.Stock
		return pod
	}
	for i := range 2 {
		deploy(t, "default", fmt.Sprintf("gold-%d", i), 1, on(template("1"), "n1", "n2"))
		deploy(t, "default", fmt.Sprintf("plain-gold-%d", i), 1, plain("1"))
	}
	gold := append(allReady(t, "default", "app=gold-0", 1), allReady(t, "default", "app=gold-1", 1)...)
	for i := range 2 {
		allReady(t, "default", fmt.Sprintf("app=plain-gold-%d", i), 1)
	}
	var silver []string
	for i := range 3 {
		silver = append(silver, fmt.Sprintf("silver-%d", i))
		deploy(t, "default", silver[i], 1, on(template("0.5"), "n1", "n2"))
		deploy(t, "default", "plain-"+silver[i], 1, plain("0.5"))
	}
	const share = .5
	begin := time.Now()
	livetest.Eventually(t, 3*time.Minute, "all three have their share after a minute", func(ctx context.Context) error {
		if time.Since(begin) < time.Minute {
			return fmt.Errorf("not yet a minute")
		}
		rows, err := table(ctx)
		if err != nil {
			return err
		}
		for _, name := range silver {
			if rows[name].qos < share {
				return fmt.Errorf("%s has %.2f", name, rows[name].qos)
			}
		}
		return nil
	})
	show(t, false)
	if now := append(allReady(t, "default", "app=gold-0", 1), allReady(t, "default", "app=gold-1", 1)...); !slices.Equal(now, gold) {
		t.Errorf("pods of SLO 1 were %q and are %q", gold, now)
	}
	preempted, err := lab.Preempted(t.Context())
	must(t, err)
	t.Logf("preempted, by reason: %v", preempted)
	if preempted["secure"]+preempted["overhead"] == 0 || preempted["priority"] > 0 {
		t.Errorf("nobody took turns: %v", preempted)
	}
	// Our scheduler measures the others, too: it follows all pods.
	rows, err := table(t.Context())
	must(t, err)
	nothing := 0
	for _, name := range silver {
		got := rows["plain-"+name].qos
		t.Logf("with priorities: %s: QoS %.2f", name, got)
		if got == 0 {
			nothing++
		}
	}
	if nothing != 1 {
		t.Errorf("with priorities %d of three have nothing, want one", nothing)
	}
	for _, name := range append([]string{"gold-0", "gold-1"}, silver...) {
		scale(t, "default", "plain-"+name, 0)
	}

	// Nobody takes turns any more, so that what is saved is what was.
	scale(t, "default", silver[2], 0)
	gone(t, "default", "app="+silver[2])
	for _, name := range silver[:2] {
		allReady(t, "default", "app="+name, 1)
	}
	promised := append([]string{"gold-0", "gold-1"}, silver...)
	livetest.Eventually(t, patience, "the state is saved after the last pod ended", func(ctx context.Context) error {
		saved, err := lab.Client.CoreV1().ConfigMaps("kube-system").Get(ctx, state, metav1.GetOptions{})
		if err != nil {
			return err
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(saved.BinaryData[stateKey]))
		if err != nil {
			return err
		}
		var content struct {
			Workloads []struct {
				Name  string
				Empty float64 // since when it has no pods
			}
		}
		if err := json.NewDecoder(unpacked).Decode(&content); err != nil {
			return err
		}
		for _, w := range content.Workloads {
			if w.Name == silver[2] && w.Empty > 0 {
				return nil
			}
		}
		return fmt.Errorf("the end of %s is not in it: %+v", silver[2], content)
	})
	before := accountOf(t, c.SchedulerURL(), promised)
	must(t, c.Scheduler().Kill(t.Context()))
	must(t, c.Scheduler().Start(t.Context()))
	known(t, "killed", c.SchedulerURL(), before)
	t.Run("change of leader", func(t *testing.T) { takeOver(t, silver[0], promised) })
	t.Run("unusable state", func(t *testing.T) { unusable(t) })
}

// stateKey is the key of the state in its ConfigMap.
const stateKey = "state.json.gz"

// measured is what a scheduler reports of workloads.
type measured struct {
	at   time.Time
	rows map[string]row
	// services are the exact shares.
	services map[string]float64
}

// accountOf asks a scheduler of workloads.
func accountOf(t *testing.T, url string, names []string) measured {
	t.Helper()
	rows, err := tableOf(t.Context(), url)
	must(t, err)
	services, err := lab.ServicesOf(t.Context(), url)
	must(t, err)
	m := measured{at: time.Now(), rows: map[string]row{}, services: map[string]float64{}}
	for _, name := range names {
		m.rows[name], m.services[name] = rows[name], services[name]
	}
	return m
}

// known checks that a scheduler has what workloads got before, and that nothing is counted
// twice. Since then, all of them ran that have pods, and none was preempted.
func known(t *testing.T, what, url string, before measured) {
	t.Helper()
	names := slices.Sorted(maps.Keys(before.rows))
	livetest.Eventually(t, patience, "the scheduler that follows has the workloads and their pods", func(ctx context.Context) error {
		after, err := tableOf(ctx, url)
		if err != nil {
			return err
		}
		for _, name := range names {
			if now, was := after[name], before.rows[name]; now.slo != was.slo || now.running < was.running {
				return fmt.Errorf("%s: before %+v, after %+v", name, was, now)
			}
		}
		return nil
	})
	after := accountOf(t, url, names)
	passed := after.at.Sub(before.at)
	for _, name := range names {
		was, want := before.rows[name], before.services[name]
		more := passed + 2*time.Second // both are cut to seconds
		if runs, err := ready(t.Context(), "default", "app="+name); err != nil {
			t.Error(err)
		} else if len(runs) == 0 {
			more = 0
		} else if want > 0 {
			existed := was.running.Seconds() / want
			want = (was.running.Seconds() + passed.Seconds()) / (existed + passed.Seconds())
		}
		got, ran := after.services[name], after.rows[name].running-was.running
		t.Logf("%s: %s: QoS %.4f, %.1f s later %.4f, expected %.4f; ran %v more", what, name, before.services[name], passed.Seconds(), got, want, ran)
		if math.Abs(got-want) > .01 {
			t.Errorf("%s: %s: QoS was %.4f and is %.4f, want %.4f", what, name, before.services[name], got, want)
		}
		if ran > more {
			t.Errorf("%s: %s: ran %v more in %v", what, name, ran, passed)
		}
	}
}

// elects is leader election, as fast as it may be.
func elects() map[string]any {
	return map[string]any{"leaderElect": true, "leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"}
}

// takeOver has the second scheduler stand by, with the same configuration, while a pod of a
// workload ends, and take over when ours is stopped.
func takeOver(t *testing.T, name string, promised []string) {
	leading := config(nil)
	leading["leaderElection"] = elects()
	restart(t, leading)
	// As the cluster gives ours its configuration.
	standing := config(nil)
	maps.Copy(standing, map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"leaderElection": elects(), "clientConnection": map[string]any{"kubeconfig": c.Kubeconfig()},
	})
	text, err := yaml.Marshal(standing)
	must(t, err)
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, text, 0o644))
	before, err := c.Addon(second).Settings()
	must(t, err)
	must(t, c.Addon(second).Restart(t.Context(), func(s *cluster.Component) { s.Args = []string{"--config=" + file} }))
	t.Cleanup(func() {
		if err := c.Addon(second).Restart(context.Background(), func(s *cluster.Component) { *s = before }); err != nil {
			t.Error(err)
		}
	})

	written := func(ctx context.Context) (int, error) {
		writes, err := lab.MetricOf(ctx, c.SchedulerURL(), "scheduler_qosaware_state_writes_total", "result")
		return writes["success"], err
	}
	old := allReady(t, "default", "app="+name, 1)
	first, err := written(t.Context())
	must(t, err)
	must(t, lab.Client.CoreV1().Pods("default").Delete(t.Context(), old[0], metav1.DeleteOptions{}))
	livetest.Eventually(t, patience, "its successor runs", func(ctx context.Context) error {
		now, err := ready(ctx, "default", "app="+name)
		if err == nil && (len(now) != 1 || slices.Equal(now, old)) {
			err = fmt.Errorf("ready are %q", now)
		}
		return err
	})
	// Its process may end before it has saved its state: kube-scheduler ends when it no
	// longer leads, and waits for nobody.
	livetest.Eventually(t, patience, "that is saved", func(ctx context.Context) error {
		now, err := written(ctx)
		if err == nil && now == first {
			err = fmt.Errorf("%d writes", now)
		}
		return err
	})
	was := accountOf(t, c.SchedulerURL(), promised)
	must(t, c.Scheduler().Stop(t.Context()))
	goesOn(t, "taken-over")
	livetest.Eventually(t, patience, "the next leader read what was saved, and saved it again", func(ctx context.Context) error {
		writes, err := lab.MetricOf(ctx, secondURL(), "scheduler_qosaware_state_writes_total", "result")
		if err == nil && (writes["success"] == 0 || writes["unusable"] > 0) {
			err = fmt.Errorf("writes: %v", writes)
		}
		return err
	})
	known(t, "taken over", secondURL(), was)
}

// goesOn checks that pods of our profile are placed.
func goesOn(t *testing.T, pod string) {
	t.Helper()
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: pod, Image: image, Scheduler: ours}))
	_, err := lab.Placed(t.Context(), pod)
	must(t, err)
	must(t, lab.Drop(t.Context(), pod))
}

// unusable has the scheduler start without its state, with a damaged one and with one of a
// newer version: it begins anew, logs that, and goes on placing pods.
func unusable(t *testing.T) {
	configMaps := lab.Client.CoreV1().ConfigMaps("kube-system")
	var newer bytes.Buffer
	writer := gzip.NewWriter(&newer)
	_, err := writer.Write([]byte(`{"version":2,"workloads":[{"name":"gold-0"}]}`))
	must(t, err)
	must(t, writer.Close())
	for i, test := range []struct {
		what, log string
		data      []byte
	}{
		{"damaged", "The saved state cannot be used", []byte("nothing")},
		{"newer", "it has version 2, and this scheduler reads version 1 only", newer.Bytes()},
		{"deleted", "There is no saved state", nil},
	} {
		must(t, c.Scheduler().Kill(t.Context())) // asked to end, it would save
		if test.data == nil {
			must(t, configMaps.Delete(t.Context(), state, metav1.DeleteOptions{}))
		} else {
			saved, err := configMaps.Get(t.Context(), state, metav1.GetOptions{})
			must(t, err)
			saved.BinaryData = map[string][]byte{stateKey: test.data}
			_, err = configMaps.Update(t.Context(), saved, metav1.UpdateOptions{})
			must(t, err)
		}
		before, err := os.ReadFile(c.Scheduler().Log())
		must(t, err)
		must(t, c.Scheduler().Start(t.Context()))
		goesOn(t, fmt.Sprintf("anew-%d", i))
		log, err := os.ReadFile(c.Scheduler().Log())
		must(t, err)
		if !strings.Contains(string(log[len(before):]), test.log) {
			t.Errorf("%s: %s does not have %q", test.what, c.Scheduler().Log(), test.log)
		}
		rows, err := table(t.Context())
		must(t, err)
		if rows["gold-0"].slo != "1.00" {
			t.Errorf("%s: the account does not begin anew: %+v", test.what, rows)
		}
	}
}

func scale(t *testing.T, namespace, name string, replicas int) {
	t.Helper()
	_, err := lab.Client.AppsV1().Deployments(namespace).Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
	must(t, err)
}

// logged checks that the scheduler's log has a text.
func logged(t *testing.T, text string) {
	t.Helper()
	log, err := os.ReadFile(c.Scheduler().Log())
	must(t, err)
	if !strings.Contains(string(log), text) {
		t.Errorf("%s does not have %q", c.Scheduler().Log(), text)
	}
}

// TestOrder has eight workloads wait for room for four: those with the larger SLO start
// first, and those without one last.
func TestOrder(t *testing.T) {
	room(t, 0, 0, 0)
	want := map[string]bool{"waiting-9-0": true, "waiting-9-1": true, "waiting-5-0": true, "waiting-5-1": true}
	for _, promise := range []string{"", "0.3", "0.5", "0.9"} {
		for i := range 2 {
			deploy(t, "default", fmt.Sprintf("waiting-%s-%d", strings.TrimPrefix(promise, "0."), i), 1, template(promise))
		}
	}
	livetest.Eventually(t, patience, "all wait", func(ctx context.Context) error {
		rows, err := table(ctx)
		if err != nil {
			return err
		}
		for name := range want {
			if rows[name].slo == "" || rows[name].qos != 0 {
				return fmt.Errorf("%s: %+v", name, rows[name])
			}
		}
		return nil
	})
	show(t, false)
	// The scheduler starts with all of them in its queue, so that it does not matter which
	// it happens to try while nodes get their slots.
	must(t, c.Scheduler().Stop(t.Context()))
	room(t, 2, 1, 1)
	restart(t, config(map[string]any{"maxPreemptionsPerMinute": 0}))
	names := []string{}
	livetest.Eventually(t, patience, "four run", func(ctx context.Context) (err error) {
		if names, err = ready(ctx, "default", ""); err == nil && len(names) != 4 {
			err = fmt.Errorf("ready are %q", names)
		}
		return err
	})
	for _, name := range names {
		if workload := name[:len("waiting-9-0")]; !want[workload] {
			t.Errorf("%s started before others with a larger SLO; started are %q", name, names)
		}
	}
	livetest.Eventually(t, patience, "the table has it", func(ctx context.Context) error {
		rows, err := table(ctx)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			if runs := rows[name].qos > 0; strings.HasPrefix(name, "waiting-") && runs != want[name] {
				return fmt.Errorf("%s: %+v", name, rows[name])
			}
		}
		return nil
	})
	show(t, false)
	show(t, true)
}

// TestSurvives has what the published plugins died of. The same scheduler goes on placing
// pods.
func TestSurvives(t *testing.T) {
	room(t, 20, 20, 20)
	pid := c.Scheduler().PID()
	// Pods of kube-system wait beside others.
	stuck := template("0.9")
	stuck.Spec.NodeSelector = map[string]string{"there": "is-none"}
	deploy(t, "kube-system", "stuck", 3, stuck)
	deploy(t, "default", "stuck", 3, stuck)
	// Another namespace, scale-up, a rolling update with surge.
	_, err := lab.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Client.CoreV1().Namespaces().Delete(context.Background(), "team", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	deploy(t, "team", "web", 1, template("0.9", measuring, "concurrent"))
	allReady(t, "team", "app=web", 1)
	scale(t, "team", "web", 5)
	before := allReady(t, "team", "app=web", 5)
	_, err = lab.Client.AppsV1().Deployments("team").Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":3,"maxUnavailable":2}},"template":{"metadata":{"annotations":{"qos.layerlocality.io/slo":"0.8"}}}}}`), metav1.PatchOptions{})
	must(t, err)
	livetest.Eventually(t, patience, "all pods are new", func(ctx context.Context) error {
		names, err := ready(ctx, "team", "app=web")
		if err != nil {
			return err
		}
		if len(names) != 5 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(before, name) }) {
			return fmt.Errorf("ready are %q", names)
		}
		return nil
	})
	// Pods are deleted at once, and one states nonsense.
	for i := range 10 {
		pod := template("0.9")
		pod.Name = fmt.Sprintf("short-%d", i)
		_, err := lab.Client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, metav1.CreateOptions{})
		must(t, err)
		must(t, lab.Drop(t.Context(), pod.Name))
	}
	deploy(t, "default", "nonsense", 1, template("NaN"))
	allReady(t, "default", "app=nonsense", 1)
	livetest.Eventually(t, patience, "the table has the Deployment, with its new SLO", func(ctx context.Context) error {
		rows, err := table(ctx)
		if err == nil && rows["team/web"].slo != "0.80" {
			err = fmt.Errorf("%+v", rows)
		}
		if _, there := rows["nonsense"]; err == nil && there {
			err = fmt.Errorf("nonsense counts: %+v", rows)
		}
		return err
	})
	if now := c.Scheduler().PID(); now != pid {
		t.Errorf("the scheduler was process %d and is %d", pid, now)
	}
	logged(t, "The debug table is not served at debugBindAddress") // the port is in use
}

// TestJob checks that of a Job the pods that succeed count, although schedulers do not see
// finished pods, and that the work of those that are preempted is lost.
func TestJob(t *testing.T) {
	livetest.Long(t, "the unit tests of qosaware/ledger")
	room(t, 2, 2, 0)
	before, err := lab.MetricOf(t.Context(), c.SchedulerURL(), "scheduler_qosaware_seconds_total", "state")
	must(t, err)
	pod := template("0.3", measuring, "aggregate") // with those below, less than .9 of the places
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].Image = working(t)
	completions := int32(20)
	_, err = lab.Client.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
		Spec:       batchv1.JobSpec{Completions: &completions, Parallelism: ptr.To[int32](4), Template: pod},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Client.BatchV1().Jobs("default").Delete(context.Background(), "work", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	allReady(t, "default", "job-name=work", 4)
	time.Sleep(2 * time.Second) // they work: times of the API are whole seconds
	deploy(t, "default", "larger", 2, template("0.9"))
	allReady(t, "default", "app=larger", 2)
	scale(t, "default", "larger", 0)
	livetest.Eventually(t, 3*time.Minute, "the Job is done", func(ctx context.Context) error {
		job, err := lab.Client.BatchV1().Jobs("default").Get(ctx, "work", metav1.GetOptions{})
		if err == nil && job.Status.Succeeded != completions {
			err = fmt.Errorf("%d of %d succeeded", job.Status.Succeeded, completions)
		}
		return err
	})
	livetest.Eventually(t, patience, "the work of all pods that succeeded counts", func(ctx context.Context) error {
		rows, err := table(ctx)
		// A pod is ready, and seen to be done, up to a second or two later than it is.
		least, most := (worksFor-time.Second)*time.Duration(completions), (worksFor+3*time.Second)*time.Duration(completions)
		if ran := rows["work"].running; err == nil && (ran < least || ran > most) {
			err = fmt.Errorf("%v of %d pods that worked for %v each: not %v to %v", ran, completions, worksFor, least, most)
		}
		return err
	})
	show(t, false)
	after, err := lab.MetricOf(t.Context(), c.SchedulerURL(), "scheduler_qosaware_seconds_total", "state")
	must(t, err)
	if lost := after["lost"] - before["lost"]; lost < 1 || lost > 4*int(worksFor.Seconds()) {
		t.Errorf("of the work of two pods that were preempted %d s are lost", lost)
	}
}

// worksFor is for how long the containers of working work.
const worksFor = 10 * time.Second

// working pushes an image whose containers end by themselves.
func working(t *testing.T) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox") // of busybox-static
	must(t, err)
	return livetest.Push(t, c.Registry().Address+"/working:v1", images.Image{
		Layers:     []images.Layer{{Name: "busybox", Files: map[string][]byte{"/busybox": busybox}}},
		Entrypoint: []string{"/busybox", "sleep", fmt.Sprint(worksFor.Seconds())},
	}).Reference
}

// TestConcurrent has a concurrent workload of three, of which there is room for two: it is the
// first victim, although another one, which is not, has a smaller SLO.
func TestConcurrent(t *testing.T) {
	livetest.Long(t, "the unit tests of qosaware/ledger")
	room(t, 1, 1, 1)
	all := on(template("0.5", measuring, "concurrent"), "n1", "n2")
	all.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "all-or-none"}}, TopologyKey: corev1.LabelHostname,
	}}} // the third does not fit, whoever is preempted
	deploy(t, "default", "all-or-none", 3, all)
	allReady(t, "default", "app=all-or-none", 2)
	deploy(t, "default", "smaller", 1, on(template("0.3"), "n3"))
	smaller := allReady(t, "default", "app=smaller", 1)
	before, err := lab.Preempted(t.Context())
	must(t, err)
	deploy(t, "default", "waits", 1, template("0.5"))
	livetest.Eventually(t, patience, "a pod that gained nothing is preempted", func(ctx context.Context) error {
		after, err := lab.Preempted(ctx)
		if err == nil && after["in-vain"] == before["in-vain"] {
			err = fmt.Errorf("preempted: %v, before %v", after, before)
		}
		return err
	})
	if now := allReady(t, "default", "app=smaller", 1); !slices.Equal(now, smaller) {
		t.Errorf("the pod with the smaller SLO was %q and is %q", smaller, now)
	}
	show(t, true)
}

// TestLayers has three workloads with images of 60 MB lose their places to others and get
// places again, with links of 100 Mbit/s: with LayerLocality, each returns to the node that
// holds its image, and waits for no pull.
func TestLayers(t *testing.T) {
	room(t, 1, 1, 1)
	for _, node := range c.Nodes() {
		must(t, node.SetBandwidth(100_000_000))
		t.Cleanup(func() {
			if err := node.SetBandwidth(0); err != nil {
				t.Error(err)
			}
		})
	}
	for _, way := range []struct {
		name    string
		enabled bool
	}{{"without", false}, {"with", true}} {
		t.Run(way.name+" LayerLocality", func(t *testing.T) {
			if !way.enabled && os.Getenv("FULL") == "" {
				t.Skip("what is pulled again then is chance, and only printed: FULL=1, make test-all")
			}
			testReturns(t, way.name, way.enabled)
		})
	}
}

func testReturns(t *testing.T, way string, layers bool) {
	changed := config(nil)
	if layers {
		profile := changed["profiles"].([]map[string]any)[0]
		points := profile["plugins"].(map[string]any)["multiPoint"].(map[string]any)
		points["enabled"] = append(points["enabled"].([]map[string]any), map[string]any{"name": "LayerLocality", "weight": 4})
		points["disabled"] = append(points["disabled"].([]map[string]any), map[string]any{"name": "ImageLocality"})
	}
	restart(t, changed)
	pulled := func() (bytes int64) {
		for i := range 3 {
			all, err := scenario.Pulled(c, fmt.Sprintf("layers-%s-%d", way, i))
			must(t, err)
			bytes += all.Total()
		}
		return bytes
	}
	var names, references []string
	for i := range 3 {
		name := fmt.Sprintf("layers-%s-%d", way, i)
		pushed, err := scenario.PushOnBase(t.Context(), c, name+":v1", images.Layer{Name: "small"}, 60_000_000)
		must(t, err)
		pod := template("0.1") // with those below, less than .9 of the places
		pod.Spec.Containers[0].Image = pushed.Reference
		deploy(t, "default", name, 1, pod)
		names, references = append(names, name), append(references, pushed.Reference)
	}
	for _, name := range names {
		allReady(t, "default", "app="+name, 1)
	}
	listed(t, references)
	first := pulled()
	if first < 3*60_000_000 {
		t.Fatalf("three images of 60 MB were pulled with %d bytes", first)
	}
	deploy(t, "default", "larger-"+way, 3, template("0.75"))
	allReady(t, "default", "app=larger-"+way, 3)
	// The scheduler finds all three of them waiting, and all nodes free.
	must(t, c.Scheduler().Stop(t.Context()))
	scale(t, "default", "larger-"+way, 0)
	gone(t, "default", "app=larger-"+way)
	before := time.Now()
	must(t, c.Scheduler().Start(t.Context()))
	for _, name := range names {
		allReady(t, "default", "app="+name, 1)
	}
	again := pulled() - first
	t.Logf("%s LayerLocality: %.1f MB were pulled, and %.1f MB again; all three ran after %.1f s", way, float64(first)/1e6, float64(again)/1e6, time.Since(before).Seconds())
	rows, err := table(t.Context())
	must(t, err)
	for _, name := range names {
		t.Logf("%s: waited %v, ran %v", name, rows[name].waiting, rows[name].running)
	}
	if layers && again > 0 {
		t.Errorf("%d bytes were pulled again", again)
	}
}

// listed waits until nodes list images: what a scheduler that starts has of them.
func listed(t *testing.T, references []string) {
	t.Helper()
	livetest.Eventually(t, patience, "nodes list the images", func(ctx context.Context) error {
		nodes, err := lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all := map[string]bool{}
		for _, node := range nodes.Items {
			for _, held := range node.Status.Images {
				for _, name := range held.Names {
					all[name] = true
				}
			}
		}
		for _, reference := range references {
			if !all[reference] {
				return fmt.Errorf("no node lists %s", reference)
			}
		}
		return nil
	})
}
