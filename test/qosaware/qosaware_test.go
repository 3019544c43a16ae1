//go:build e2e

package qosaware

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
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

	"github.com/layer-locality/layer-locality/internal/cluster"
	"github.com/layer-locality/layer-locality/internal/cluster/images"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// TestPromises has two workloads of SLO 1 and three of SLO .5 share room for four pods. All
// three get their share, and the two are never preempted. Then the scheduler is killed: what
// everybody got is known to the next one.
func TestPromises(t *testing.T) {
	room(t, 2, 1, 1)
	for i := range 2 {
		deploy(t, "default", fmt.Sprintf("gold-%d", i), 1, template("1"))
	}
	gold := append(allReady(t, "default", "app=gold-0", 1), allReady(t, "default", "app=gold-1", 1)...)
	var silver []string
	for i := range 3 {
		silver = append(silver, fmt.Sprintf("silver-%d", i))
		deploy(t, "default", silver[i], 1, template("0.5"))
	}
	// What starting and stopping containers costs is lost for the three. On a machine that does
	// other work, too, it is more than the third that they have to spare.
	share := .5
	if os.Getenv("FULL") == "" {
		t.Log("skipped: that all three reach .5; it needs a machine that does nothing else: FULL=1, make test-all")
		share = .25 // with priorities, one has 0
	}
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

	// Nobody takes turns any more, so that what is saved is what was.
	scale(t, "default", silver[2], 0)
	gone(t, "default", "app="+silver[2])
	for _, name := range silver[:2] {
		allReady(t, "default", "app="+name, 1)
	}
	livetest.Eventually(t, patience, "the state is saved, at most a minute after the last pod ended", func(ctx context.Context) error {
		saved, err := lab.Client.CoreV1().ConfigMaps("kube-system").Get(ctx, state, metav1.GetOptions{})
		if err != nil {
			return err
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(saved.BinaryData["state.json.gz"]))
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
	before, err := table(t.Context())
	must(t, err)
	must(t, c.Scheduler().Kill(t.Context()))
	must(t, c.Scheduler().Start(t.Context()))
	known(t, "killed", before)

	// A damaged state is no reason not to schedule.
	damaged, err := lab.Client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), state, metav1.GetOptions{})
	must(t, err)
	damaged.BinaryData = map[string][]byte{"state.json.gz": []byte("nothing")}
	_, err = lab.Client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), damaged, metav1.UpdateOptions{})
	must(t, err)
	must(t, c.Scheduler().Kill(t.Context()))
	must(t, c.Scheduler().Start(t.Context()))
	scale(t, "default", silver[1], 0)
	gone(t, "default", "app="+silver[1])
	scale(t, "default", silver[2], 1)
	allReady(t, "default", "app="+silver[2], 1)
	logged(t, "The saved state cannot be used")
}

// known checks that the scheduler knows what workloads got.
func known(t *testing.T, what string, before map[string]row) {
	t.Helper()
	livetest.Eventually(t, patience, "the scheduler that follows knows what everybody got", func(ctx context.Context) error {
		after, err := table(ctx)
		if err != nil {
			return err
		}
		for name, was := range before {
			if now := after[name]; now.slo != was.slo || now.running < was.running {
				return fmt.Errorf("%s: %s: before %+v, after %+v", what, name, was, now)
			}
		}
		return nil
	})
	after, err := table(t.Context())
	must(t, err)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		t.Logf("%s: %s: QoS %.2f, afterwards %.2f; ran %v, afterwards %v", what, name, before[name].qos, after[name].qos, before[name].running, after[name].running)
		if d := after[name].qos - before[name].qos; d > .021 || d < -.021 { // both are rounded, and time goes on
			t.Errorf("%s: %s: QoS was %.2f and is %.2f", what, name, before[name].qos, after[name].qos)
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
		t.Errorf("%s does not say %q", c.Scheduler().Log(), text)
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
	// The scheduler starts with all of them in its queue, so that it does not matter which
	// it happens to try while nodes get their slots.
	must(t, c.Scheduler().Stop(t.Context()))
	room(t, 2, 1, 1)
	must(t, c.Scheduler().Start(t.Context(), func(s *cluster.Component) {
		patient := profile()
		patient["pluginConfig"].([]map[string]any)[0]["args"].(map[string]any)["maxPreemptionsPerMinute"] = 0
		s.Config = map[string]any{"profiles": []map[string]any{patient}}
	}))
	t.Cleanup(func() {
		if err := c.Scheduler().Restart(context.Background(), func(s *cluster.Component) { s.Config = map[string]any{"profiles": []map[string]any{profile()}} }); err != nil {
			t.Error(err)
		}
	})
	livetest.Eventually(t, patience, "four run", func(ctx context.Context) error {
		names, err := ready(ctx, "default", "")
		if err == nil && len(names) != 4 {
			err = fmt.Errorf("ready are %q", names)
		}
		return err
	})
	names, err := ready(t.Context(), "default", "")
	must(t, err)
	for _, name := range names {
		if workload := name[:len("waiting-9-0")]; !want[workload] {
			t.Errorf("%s started before others with a larger SLO; started are %q", name, names)
		}
	}
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
}

// TestJob checks that of a Job the pods that succeed count, although schedulers do not see
// finished pods.
func TestJob(t *testing.T) {
	room(t, 2, 2, 2)
	pod := template("0.5", measuring, "aggregate")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].Image = working(t)
	completions := int32(20)
	_, err := lab.Client.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
		Spec:       batchv1.JobSpec{Completions: &completions, Parallelism: ptr.To[int32](4), Template: pod},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Client.BatchV1().Jobs("default").Delete(context.Background(), "work", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	livetest.Eventually(t, 3*time.Minute, "the Job is done", func(ctx context.Context) error {
		job, err := lab.Client.BatchV1().Jobs("default").Get(ctx, "work", metav1.GetOptions{})
		if err == nil && job.Status.Succeeded != completions {
			err = fmt.Errorf("%d of %d succeeded", job.Status.Succeeded, completions)
		}
		return err
	})
	livetest.Eventually(t, patience, "the work of all pods counts", func(ctx context.Context) error {
		rows, err := table(ctx)
		// A pod is ready, and seen to be done, up to a second or two later than it is.
		least, most := 2*time.Duration(completions)*time.Second, 6*time.Duration(completions)*time.Second
		if ran := rows["work"].running; err == nil && (ran < least || ran > most) {
			err = fmt.Errorf("%v of %d pods that worked for three seconds each: not %v to %v", ran, completions, least, most)
		}
		return err
	})
	show(t, false)
}

// working pushes an image whose containers end by themselves after three seconds.
func working(t *testing.T) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox") // of busybox-static
	must(t, err)
	built, err := images.Build(images.Image{
		Layers: []images.Layer{{Name: "busybox", Files: map[string][]byte{"/busybox": busybox}}}, Entrypoint: []string{"/busybox", "sleep", "3"},
	})
	must(t, err)
	pushed, err := images.Push(t.Context(), c.Registry().Address+"/working:v1", built)
	must(t, err)
	return pushed.Reference
}
