//go:build e2e

package qosaware

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	measuring = "qos.layerlocality.io/measuring"
	// slot is a resource of which nodes have few, so that tests choose how many pods fit.
	slot  = "example.com/slot"
	state = "layerlocality-qosaware"
	// ours is the name of the profile with QosAware, in the cluster's own scheduler, which is
	// not the default one: that is in the second scheduler.
	ours = "promises"
	// second is a kube-scheduler beside it: with the default profile, PrioritySort and
	// DefaultPreemption, or, if a test sets it, as the one that stands by.
	second     = "second-scheduler"
	secondPort = "10260"
	// patience is for what a busy machine does late.
	patience = 2 * time.Minute
)

var (
	c     *cluster.Cluster
	lab   *scenario.Lab
	image string
)

// config returns the configuration of our scheduler, with arguments that differ from those of
// most tests.
func config(further map[string]any) map[string]any {
	args := map[string]any{
		"safetyMargin": "2s", "minimumRunningTime": "2s", "reconsiderEvery": "1s", "window": "0s",
		"debugBindAddress": "127.0.0.1:2379", // where etcd listens
	}
	maps.Copy(args, further)
	return map[string]any{"profiles": []map[string]any{scenario.Promising(ours, args)}}
}

// restart restarts our scheduler with another configuration until the end of the test.
func restart(t *testing.T, changed map[string]any) {
	t.Helper()
	set := func(config map[string]any) func(*cluster.Component) {
		return func(s *cluster.Component) { s.Config = config }
	}
	must(t, c.Scheduler().Restart(t.Context(), set(changed)))
	t.Cleanup(func() {
		if err := c.Scheduler().Restart(context.Background(), set(config(nil))); err != nil {
			t.Error(err)
		}
	})
}

func TestMain(m *testing.M) {
	beside, err := secondScheduler()
	if err != nil {
		panic(err)
	}
	config := cluster.Config{
		Name: livetest.ClusterName("qos"), Flavour: livetest.Flavour(),
		Scheduler: cluster.Component{Flavour: cluster.Patched, Config: config(nil)},
		Addons:    []cluster.Addon{beside},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}))
}

// secondScheduler returns the second scheduler. Its manifests have the rights that deploy/
// ships; both schedulers have the same identity.
func secondScheduler() (cluster.Addon, error) {
	binary, err := filepath.Abs("../../../_build/bin/patched/kube-scheduler")
	return cluster.Addon{
		Name: second, Settings: cluster.Component{Binary: binary, Args: []string{"--leader-elect=false"}},
		Args: []string{
			"--kubeconfig=$(KUBECONFIG)", "--authentication-kubeconfig=$(KUBECONFIG)", "--authorization-kubeconfig=$(KUBECONFIG)",
			"--bind-address=$(ADDRESS)", "--secure-port=" + secondPort,
			"--tls-cert-file=$(PKI)/control.crt", "--tls-private-key-file=$(PKI)/control.key", "--client-ca-file=$(PKI)/ca.crt",
		},
		Health: "https://$(ADDRESS):" + secondPort + "/healthz",
		User:   "system:kube-scheduler", Manifests: string(scenario.PromisingRights()),
	}, err
}

// secondURL is where the second scheduler serves.
func secondURL() string { return "https://" + net.JoinHostPort(c.Address().String(), secondPort) }

var must = testkit.Must

// room gives the nodes n1, n2, n3 so many slots, and pushes the image that most pods have.
func room(t *testing.T, slots ...int) {
	t.Helper()
	for i, n := range slots {
		patch := fmt.Sprintf(`{"status":{"capacity":{%q:"%d"}}}`, slot, n)
		_, err := lab.Client.CoreV1().Nodes().Patch(t.Context(), fmt.Sprintf("n%d", i+1), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		must(t, err)
	}
	livetest.Eventually(t, patience, "nodes have slots", func(ctx context.Context) error {
		nodes, err := lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, node := range nodes.Items {
			var n int
			if _, err := fmt.Sscanf(node.Name, "n%d", &n); err != nil {
				return err
			}
			if n > len(slots) {
				continue
			}
			if got := node.Status.Allocatable[slot]; got.Value() != int64(slots[n-1]) {
				return fmt.Errorf("%s has %s", node.Name, &got)
			}
		}
		return nil
	})
	if image == "" {
		image = livetest.Push(t, c.Registry().Address+"/promise:v1", images.Image{}).Reference
	}
}

// template returns a pod that needs a slot.
func template(promise string, annotations ...string) corev1.PodTemplateSpec {
	all := map[string]string{}
	if promise != "" {
		all[scenario.AnnotationSLO] = promise
	}
	for i := 0; i < len(annotations); i += 2 {
		all[annotations[i]] = annotations[i+1]
	}
	one := corev1.ResourceList{slot: resource.MustParse("1")}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: all},
		Spec: corev1.PodSpec{
			SchedulerName:                 ours,
			TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "main", Image: image, Resources: corev1.ResourceRequirements{Requests: one, Limits: one}}},
		},
	}
}

// deploy creates a Deployment, and deletes it with its pods at the end of the test.
func deploy(t *testing.T, namespace, name string, replicas int32, template corev1.PodTemplateSpec) {
	t.Helper()
	labels := map[string]string{"app": name}
	template.Labels = labels
	deployments := lab.Client.AppsV1().Deployments(namespace)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template,
			ProgressDeadlineSeconds: ptr.To[int32](3600),
		},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := deployments.Delete(context.Background(), name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		gone(t, namespace, "app="+name)
	})
}

// gone waits until no pod with a label is left.
func gone(t *testing.T, namespace, selector string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // also at the end of a test
	defer cancel()
	must(t, scenario.Poll(ctx, func(ctx context.Context) error {
		pods, err := lab.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods with %s are there", len(pods.Items), selector)
		}
		return err
	}))
}

// on has pods placed only on some nodes.
func on(t corev1.PodTemplateSpec, nodes ...string) corev1.PodTemplateSpec {
	t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes},
		}}},
	}}}
	return t
}

// table returns the rows of our scheduler's debug table.
func table(ctx context.Context) (map[string]row, error) { return tableOf(ctx, c.SchedulerURL()) }

// tableOf returns the rows of a scheduler's debug table by workload.
func tableOf(ctx context.Context, url string) (map[string]row, error) {
	text, err := lab.PromisesOf(ctx, url, false)
	if err != nil {
		return nil, err
	}
	rows := map[string]row{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		columns := strings.Fields(line)
		if i == 0 {
			if want := []string{"CONTROLLER", "QOS/SLO", "TTV", "RUNNING", "WAITING", "BINDING", "ADMITTED"}; !slices.Equal(columns, want) {
				return nil, fmt.Errorf("columns %q, want %q", columns, want)
			}
			continue
		}
		if len(columns) != 7 {
			return nil, fmt.Errorf("%q", line)
		}
		got, promised, _ := strings.Cut(columns[1], "/")
		qos, err := strconv.ParseFloat(got, 64)
		if err != nil {
			return nil, err
		}
		running, err := time.ParseDuration(columns[3])
		if err != nil {
			return nil, err
		}
		waiting, err := time.ParseDuration(columns[4])
		if err != nil {
			return nil, err
		}
		rows[columns[0]] = row{qos: qos, slo: promised, running: running, waiting: waiting}
	}
	return rows, nil
}

type row struct {
	qos              float64
	slo              string
	running, waiting time.Duration
}

// show prints the table, after a failure with the pods.
func show(t *testing.T, wide bool) {
	t.Helper()
	text, err := lab.Promises(context.Background(), wide)
	if err != nil {
		t.Log(err)
	}
	t.Log("\n" + text)
}

// ready returns the names of the ready pods with a label.
func ready(ctx context.Context, namespace, selector string) (names []string, err error) {
	pods, err := lab.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if pod.DeletionTimestamp == nil && condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				names = append(names, pod.Name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// allReady waits until so many pods with a label are ready.
func allReady(t *testing.T, namespace, selector string, n int) (names []string) {
	t.Helper()
	livetest.Eventually(t, patience, fmt.Sprintf("%d pods %s are ready", n, selector), func(ctx context.Context) (err error) {
		if names, err = ready(ctx, namespace, selector); err == nil && len(names) != n {
			err = fmt.Errorf("ready are %q", names)
		}
		return err
	})
	return names
}
