//go:build integration && imagelayers

package integration

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	testutils "k8s.io/kubernetes/test/integration/util"
)

// addNode creates a node with a label, which has images.
func addNode(t *testing.T, c *testutils.TestContext, name, key, value string, images ...v1.ContainerImage) {
	t.Helper()
	n := st.MakeNode().Name(name).Label(key, value).Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "64", v1.ResourceMemory: "64Gi", v1.ResourcePods: "110"}).Obj()
	n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
	n.Status.Images = images
	if _, err := c.ClientSet.CoreV1().Nodes().Create(c.Ctx, n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// placedOn waits until a pod is placed, and returns its node.
func placedOn(t *testing.T, c *testutils.TestContext, pod *v1.Pod) string {
	t.Helper()
	if err := testutils.WaitForPodToSchedule(c.Ctx, c.ClientSet, pod); err != nil {
		t.Fatalf("%s: %v", pod.Name, err)
	}
	placed, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Get(c.Ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return placed.Spec.NodeName
}

// TestTwoPools places pods in one pool of a cluster that is too large for kube-scheduler to look at all nodes. Those of the other
// pool hold all of their image; of their own, the three hold its base that a sample comes to last.
func TestTwoPools(t *testing.T) {
	const image, others, own, holders, pods = "docker.io/library/app:1", 100, 300, 3, 3
	c := start(t, waiting("layers", 0))
	for i := range others {
		addNode(t, c, fmt.Sprintf("other-%d", i), "pool", "other", held(image, "base", "app"))
	}
	for i := range own {
		if i < own-holders {
			addNode(t, c, fmt.Sprintf("empty-%d", i), "pool", "own")
		} else {
			addNode(t, c, fmt.Sprintf("holder-%d", i), "pool", "own", held("docker.io/library/sibling:1", "base", "sibling"))
		}
	}
	if err := testutils.WaitForNodesInCache(c.Ctx, c.Scheduler, others+own); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		pod := st.MakePod().Namespace(c.NS.Name).Name(fmt.Sprintf("pod-%d", i)).SchedulerName("layers").NodeSelector(map[string]string{"pool": "own"}).Obj()
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
		created, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Create(c.Ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if node := placedOn(t, c, created); !strings.HasPrefix(node, "holder-") {
			t.Errorf("%s is on %s, which has nothing of its image", pod.Name, node)
		}
	}
}
