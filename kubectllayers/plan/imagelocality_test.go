package plan

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/plugins/imagelocality"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

func TestMain(m *testing.M) {
	metrics.Register() // the cache counts nodes and pods
	os.Exit(m.Run())
}

// handle is what the plugin asks for: the nodes.
type handle struct {
	fwk.Handle
	nodes fwk.SharedLister
}

func (h handle) SnapshotSharedLister() fwk.SharedLister { return h.nodes }

// plugin returns the points that upstream's plugin gives each node, by way of
// kube-scheduler's own cache of nodes.
func plugin(t *testing.T, pod *v1.PodSpec, nodes []v1.Node) map[string]int64 {
	t.Helper()
	ctx := t.Context()
	known := newCache(ctx)
	for i := range nodes {
		known.AddNode(klog.FromContext(ctx), &nodes[i])
	}
	snapshot := cache.NewEmptySnapshot()
	if err := known.UpdateSnapshot(klog.FromContext(ctx), snapshot); err != nil {
		t.Fatal(err)
	}
	made, err := upstream.New(ctx, nil, handle{nodes: snapshot})
	if err != nil {
		t.Fatal(err)
	}
	infos, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	points := map[string]int64{}
	for _, info := range infos {
		score, status := made.(fwk.ScorePlugin).Score(context.Background(), nil, &v1.Pod{Spec: *pod}, info)
		if !status.IsSuccess() {
			t.Fatal(status)
		}
		points[info.Node().Name] = score
	}
	return points
}

// compare checks that plugin and explanation agree on all nodes, and returns the ratings.
func compare(t *testing.T, pod *v1.PodSpec, nodes []v1.Node) []ImageLocalityRating {
	t.Helper()
	want := plugin(t, pod, nodes)
	if len(want) != len(nodes) {
		t.Fatalf("the plugin rated %d of %d nodes", len(want), len(nodes))
	}
	ratings := ImageLocality(pod, nodes)
	for i, rating := range ratings {
		if rating.Node != nodes[i].Name || rating.Points != want[rating.Node] {
			t.Errorf("%+v: the plugin gives %s %d points", rating, nodes[i].Name, want[nodes[i].Name])
		}
	}
	return ratings
}

// clusterOf returns so many nodes, the first holders of which have the images.
func clusterOf(all, holders int, images ...v1.ContainerImage) []v1.Node {
	nodes := make([]v1.Node, all)
	for i := range nodes {
		nodes[i].ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1)}
		if i < holders {
			nodes[i].Status.Images = images
		}
	}
	return nodes
}

func named(size int64, names ...string) v1.ContainerImage {
	return v1.ContainerImage{Names: names, SizeBytes: size}
}

func podOf(images ...string) *v1.PodSpec {
	pod := &v1.PodSpec{}
	for _, image := range images {
		pod.Containers = append(pod.Containers, v1.Container{Image: image})
	}
	return pod
}

// smallest returns the size in bytes from which on an image on so many of all nodes gets a
// point.
func smallest(holders, all int) int64 {
	const sum = sumThreshold + (containerLimit-sumThreshold+99)/100
	size := int64(sum*all/holders) - 1
	for int64(float64(size)*(float64(holders)/float64(all))) < sum {
		size++
	}
	return size
}

// TestFirstPoint: from which size on an image on one of N nodes gets a point.
func TestFirstPoint(t *testing.T) {
	t.Parallel()
	const first = 34_361_836 // bytes, on one of one node
	for all := 1; all <= 12; all++ {
		for holders := 1; holders <= all; holders++ {
			size := smallest(holders, all)
			if holders == 1 && (size < int64(first*all) || size > int64(first*all)+1) {
				t.Errorf("on 1 of %d nodes: %d bytes, want %d", all, size, first*all)
			}
			for size, want := range map[int64]int64{size - 1: 0, size: 1, size + 1: 1} {
				ratings := compare(t, podOf("docker.io/library/a"), clusterOf(all, holders, named(size, "docker.io/library/a:latest")))
				if got := ratings[0].Points; got != want {
					t.Errorf("%d bytes on %d of %d nodes: %d points, want %d", size, holders, all, got, want)
				}
			}
		}
	}
}

// TestAsThePlugin compares at sizes around all bounds, for pods of all forms.
func TestAsThePlugin(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	image, other := "registry.example.com:5000/team/a:v1", "docker.io/library/b:latest"
	volume := podOf(image)
	volume.Volumes = []v1.Volume{
		{Name: "none"},
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: other}}},
	}
	initial := podOf(image)
	initial.InitContainers = []v1.Container{{Image: other}}
	pods := map[string]*v1.PodSpec{
		"one container": podOf(image), "two": podOf(image, other), "three": podOf(image, other, "docker.io/library/c"),
		"the same twice": podOf(image, image), "an init container": initial, "an image volume": volume,
		"no container": {},
	}
	if !volumesExplained {
		delete(pods, "an image volume")
	}
	for what, pod := range pods {
		for _, bound := range []int64{0, 23 * mib, 34_361_836, 500 * mib, 1000 * mib, 2000 * mib, 3000 * mib} {
			for _, size := range []int64{bound - 1, bound, bound + 1} {
				for _, nodes := range [][]v1.Node{
					clusterOf(1, 1, named(size, image), named(size/2, other)),
					clusterOf(3, 1, named(size*3, image), named(size, other)),
					clusterOf(4, 3, named(size*4/3, image)),
				} {
					if what == "no container" {
						nodes = clusterOf(2, 1, named(1, image)) // no formula applies
					}
					t.Run(fmt.Sprintf("%s, %d bytes", what, size), func(t *testing.T) { compare(t, pod, nodes) })
				}
			}
		}
	}
}

// TestNames: which names meet, and what is said of those that do not.
func TestNames(t *testing.T) {
	t.Parallel()
	const digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, test := range []struct {
		pod, node string
		points    int64
		why       string
	}{
		{"docker.io/library/a", "docker.io/library/a:latest", 46, "docker.io/library/a:latest: 1000.0 MB x 1 of 2 nodes = 500.0 MB"},
		{"a", "docker.io/library/a:latest", 0, `"a:latest" is none of its names docker.io/library/a:latest`},
		{"a", "a:latest", 46, "a:latest: 1000.0 MB"},
		{"library/a:v1", "docker.io/library/a:v1", 0, `"library/a:v1" is none of its names`},
		{"a:v1", "docker.io/library/a:v2", 0, "a:v1: not there"},
		{"localhost:5000/a", "localhost:5000/a:latest", 46, "localhost:5000/a:latest: 1000.0 MB"},
		{"localhost:5000/a:v1", "localhost:5000/a:v1", 46, ""},
		{"docker.io/library/a" + digest, "docker.io/library/a" + digest, 46, ""},
		{"a" + digest, "docker.io/library/a" + digest, 0, "is none of its names docker.io/library/a@sha256:e3b0c442…"},
		{"A/Not a Reference", "A/Not a Reference:latest", 46, ""},
		{"", ":latest", 46, ""},
	} {
		ratings := compare(t, podOf(test.pod), clusterOf(2, 1, named(1_000_000_000, test.node)))
		if got := ratings[0]; got.Points != test.points || !strings.Contains(got.Why, test.why) {
			t.Errorf("pod %q, node %q: %+v, want %d points: %s", test.pod, test.node, got, test.points, test.why)
		}
		if missed := strings.Contains(ratings[0].Why, "none of its names"); missed != (ratings[0].Renamed > ratings[0].Points) {
			t.Errorf("pod %q, node %q: %+v", test.pod, test.node, ratings[0])
		}
		if ratings[1].Points != 0 || !strings.Contains(ratings[1].Why, "not there") {
			t.Errorf("pod %q: a node without it: %+v", test.pod, ratings[1])
		}
	}
}

// TestSizesDiffer: kube-scheduler keeps one size for a name, that of the first node.
func TestSizesDiffer(t *testing.T) {
	t.Parallel()
	nodes := clusterOf(2, 2)
	nodes[0].Status.Images = []v1.ContainerImage{named(900_000_000, "a:v1"), named(1, "a:v1")}
	nodes[1].Status.Images = []v1.ContainerImage{named(100_000_000, "a:v1")}
	compare(t, podOf("a:v1"), nodes)
}
