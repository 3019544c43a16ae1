//go:build integration && imagelayers && !kubernetes1.35 && !kubernetes1.37

package integration

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// TestQosAwareGang has pods of a PodGroup, all three of which have to run at once. None is placed before two of them can
// be, and there is room for two. While the third is missing, an urgent pod preempts none of them; once that has lasted
// for minimumRunningTime, it does.
func TestQosAwareGang(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.GangScheduling: true,
	})
	c := newPromises(t)
	labels := map[string]string{"app": "gang"}
	owner, err := c.ClientSet.AppsV1().ReplicaSets(c.NS.Name).Create(c.Ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "gang"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "image"}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ClientSet.SchedulingV1alpha2().PodGroups(c.NS.Name).Create(c.Ctx, st.MakePodGroup().Name("gang").MinCount(2).Obj(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	member := func(name string) {
		c.pod(name, "0.3", func(p *v1.Pod) {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
			p.Annotations[ledger.AnnotationMeasuring] = "concurrent"
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}
		})
	}
	c.node("n1", 2)
	stop := c.schedule(promising(patient()))
	before := preempted(t)
	member("gang-0")
	c.pod("alone", "")
	c.isPlaced("alone") // although the other one came first
	c.delete("alone")
	member("gang-1")
	c.isPlaced("gang-0", "gang-1")
	// Not with a third pod that fits nowhere: 1.36 tries that again at once and for ever (schedule_one_podgroup.go), which
	// leaves no turn to others.
	urgent := c.pod("urgent", "0.2") // all are .9 of the two places at most
	c.cannotBePlaced(urgent)
	now, err := c.ClientSet.CoreV1().Pods(c.NS.Name).Get(c.Ctx, urgent.Name, metav1.GetOptions{})
	if err != nil || now.Status.NominatedNodeName != "" {
		t.Errorf("a pod of a group that is being assembled has to end: nominated %q, %v", now.Status.NominatedNodeName, err)
	}
	if got := since(before, preempted(t)); len(got) > 0 || !slices.Equal(c.placed(c.NS.Name), []string{"gang-0", "gang-1"}) {
		t.Errorf("preempted %v, placed %v", got, c.placed(c.NS.Name))
	}
	stop()

	impatient := patient()
	impatient.MinimumRunningTime = &metav1.Duration{Duration: time.Second}
	before = preempted(t)
	stop = c.schedule(promising(impatient))
	defer stop()
	c.eventually("one of them makes room", func() bool { return since(before, preempted(t))["in-vain"] > 0 })
}
