//go:build !kubernetes1.35

package locality_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// The images of the volumes of running pods are there, whatever the node lists.
func TestVolumeInUse(t *testing.T) {
	two := args(func(a *configv1.LayerLocalityArgs) { a.NodeStatusMaxImages = ptr.To(int32(2)) })
	n := node("n1")
	n.Status.Images = []v1.ContainerImage{{Names: []string{"quay.io/l1:1"}, SizeBytes: 900 * mb}, {Names: []string{"quay.io/l2:1"}, SizeBytes: 800 * mb}}
	s := newSuite(t, two, []*v1.Node{n, node("n2")})
	for name, size := range map[imageref.Canonical]int64{"quay.io/app:1": 100, "quay.io/data:1": 50, "quay.io/data:2": 40} {
		s.images.Images[name] = manifest(index.Layer{Digest: digest(string(name)), Size: size * mb})
	}
	reported := imageref.Canonical("sha256:" + strings.Repeat("d", 64))
	s.images.Images[reported] = s.images.Images["quay.io/data:2"]
	p := on(pod("p", "quay.io/app:1"), "n1", "")
	volume := func(name, reference string) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: reference}}}
	}
	p.Spec.Volumes = []v1.Volume{volume("v", "quay.io/data:1"), volume("w", "quay.io/data:moved")}
	p.Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "c0", Image: "quay.io/app:1", ImageID: "quay.io/app:1", State: isRunning(), VolumeMounts: []v1.VolumeMountStatus{
		{Name: "v"}, {Name: "w", VolumeStatus: &v1.VolumeStatus{Image: &v1.ImageVolumeStatus{ImageRef: "quay.io/data@" + string(reported)}}},
	}}}}
	if _, err := s.client.CoreV1().Pods("ns").Create(s.ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod runs", func() bool { return s.measure(pod("q", "quay.io/app:1"), "n1").Present == 100*mb })
	s.pass(5 * time.Minute) // after reportTimeout
	for image, want := range map[string]int64{"quay.io/app:1": 100, "quay.io/data:1": 50, "quay.io/data@" + string(reported): 40} {
		if got := s.measure(pod("q", image), "n1"); got.Present != want*mb {
			t.Errorf("%s: %+v, want %d MB present", image, got, want)
		}
	}
}
