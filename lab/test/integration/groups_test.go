//go:build integration && imagelayers && !kubernetes1.35 && !kubernetes1.37

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/features"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	testutils "k8s.io/kubernetes/test/integration/util"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// TestGroups places groups of pods that have to be in one rack. They go to the rack that has their base, and each decision counts
// and is remembered once, although each pod is tried in each rack.
func TestGroups(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.GangScheduling: true, features.TopologyAwareWorkloadScheduling: true,
	})
	const image, racks, nodes, groups, pods = "docker.io/library/app:1", 5, 3, 2, 4
	profile := waiting("layers", 0)
	profile.Plugins.PlacementScore = configv1.PluginSet{
		Disabled: []configv1.Plugin{{Name: "*"}}, Enabled: []configv1.Plugin{{Name: layerlocality.Name, Weight: ptr.To[int32](1)}},
	}
	reportLayers(t)
	c, factory := testutils.InitTestAPIServer(t, "groups", nil), layerlocality.NewFactory()
	run(t, c, factory, profile)
	for rack := range racks {
		var images []v1.ContainerImage
		if rack == 2 {
			images = append(images, held("docker.io/library/sibling:1", "base", "sibling"))
		}
		for i := range nodes {
			addNode(t, c, fmt.Sprintf("rack-%d-%d", rack, i), "rack", fmt.Sprint("rack-", rack), images...)
		}
	}
	addNode(t, c, "elsewhere", "rack-of", "nobody", held(image, "base", "app")) // so its layers are known
	if err := testutils.WaitForNodesInCache(c.Ctx, c.Scheduler, racks*nodes+1); err != nil {
		t.Fatal(err)
	}
	ask := func(query string, answer any) {
		t.Helper()
		recorder := httptest.NewRecorder()
		factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, layerlocality.DebugPath+"?"+query, nil))
		if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil {
			t.Fatalf("%s: %s, %v", query, recorder.Body, err)
		}
	}
	for g := range groups {
		name := fmt.Sprint("group-", g)
		group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1alpha2.PodGroupSpec{
			SchedulingPolicy:      schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: pods}},
			SchedulingConstraints: &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: "rack"}}},
		}}
		if _, err := c.ClientSet.SchedulingV1alpha2().PodGroups(c.NS.Name).Create(c.Ctx, group, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var all []*v1.Pod
		for i := range pods {
			pod := st.MakePod().Namespace(c.NS.Name).Name(fmt.Sprintf("%s-%d", name, i)).SchedulerName("layers").Req(map[v1.ResourceName]string{v1.ResourceCPU: "1"}).Obj()
			pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
			pod.Spec.Containers[0].Image = image
			created, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Create(c.Ctx, pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, created)
		}
		for _, pod := range all {
			if node := placedOn(t, c, pod); !strings.HasPrefix(node, "rack-2-") {
				t.Errorf("%s is on %s", pod.Name, node)
			}
			var answer placements.Answer
			if ask("placements="+pod.Namespace+"/"+pod.Name, &answer); len(answer.Placements) != 1 || answer.Placements[0].Mean == nil {
				t.Errorf("%s: %+v is remembered", pod.Name, answer.Placements)
			}
		}
	}
	var saved placements.Savings
	if ask("savings", &saved); len(saved.Profiles) != 1 || saved.Profiles[0].Pods != groups*pods {
		t.Errorf("%d pods of groups: %+v counted", groups*pods, saved)
	}
}
