//go:build integration && imagelayers

package integration

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	testutils "k8s.io/kubernetes/test/integration/util"

	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
)

// TestRequire has pods wait for a node with their layers. No event of the cluster wakes them: one is placed once such
// a node reports them, the other once its time is over. kube-scheduler alone would try them again after five minutes.
func TestRequire(t *testing.T) {
	const image, other = "docker.io/library/app:1", "docker.io/library/other:1"
	c := startCluster(t, waiting("layers", 0))
	var nodes []*v1.Node
	for _, name := range []string{"base", "cold"} {
		n := st.MakeNode().Name(name).Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "8", v1.ResourceMemory: "8Gi", v1.ResourcePods: "110"}).Obj()
		n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		if name == "base" {
			n.Status.Images = []v1.ContainerImage{held(other, "base", "other")}
		}
		created, err := c.ClientSet.CoreV1().Nodes().Create(c.Ctx, n, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, created)
	}
	if err := testutils.WaitForNodesInCache(c.Ctx, c.Scheduler, len(nodes)); err != nil {
		t.Fatal(err)
	}
	create := func(name, image, timeout string) *v1.Pod {
		t.Helper()
		pod := st.MakePod().Namespace(c.NS.Name).Name(name).SchedulerName("layers").Obj()
		pod.Annotations = map[string]string{layerlocality.RequireAnnotation: "90%", layerlocality.RequireTimeoutAnnotation: timeout}
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
		created, err := c.ClientSet.CoreV1().Pods(c.NS.Name).Create(c.Ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return created
	}
	refused := func(pod *v1.Pod) {
		t.Helper()
		c.eventually("pod "+pod.Name+" has the reason for which it waits", func() bool {
			now, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Get(c.Ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if now.Spec.NodeName != "" {
				t.Fatalf("pod %s is placed on %s", pod.Name, now.Spec.NodeName)
			}
			for _, condition := range now.Status.Conditions {
				if condition.Reason == v1.PodReasonUnschedulable {
					return strings.Contains(condition.Message, "2 node(s) had less than 90% of the layers of the pod's images")
				}
			}
			return false
		})
	}

	long, short := create("long", image, "1h"), create("short", "docker.io/library/unknown:1", "10s")
	refused(long)
	refused(short)
	c.node(short)
	if waited := time.Since(short.CreationTimestamp.Time); waited < 9*time.Second {
		t.Errorf("placed after %s, before its time was over", waited)
	}
	if node := c.node(create("there", other, "1h")); node != "base" {
		t.Errorf("a pod whose image is there: on %s", node)
	}
	refused(long)

	cold := nodes[1].DeepCopy()
	cold.Status.Images = []v1.ContainerImage{held(image, "base", "app")}
	if _, err := c.ClientSet.CoreV1().Nodes().UpdateStatus(c.Ctx, cold, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if node := c.node(long); node != "cold" {
		t.Errorf("placed on %s", node)
	}
}
