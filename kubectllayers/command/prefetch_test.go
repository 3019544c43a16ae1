package command

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Each node that an ImagePrefetch is about is a row: what it did, as the status has it, or does, as its pod has it. What an
// object waits for, and why it ended, is one, too.
func TestPrefetchedBy(t *testing.T) {
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) metav1.Time { return metav1.NewTime(begin.Add(time.Duration(minutes) * time.Minute)) }
	object := func(name, source, reason string, nodes ...v1alpha1.PrefetchedNode) v1alpha1.ImagePrefetch {
		o := v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name), CreationTimestamp: at(0)}}
		if source != "" {
			o.Labels = map[string]string{v1alpha1.PrefetchSourceLabel: source}
			o.Spec.Workload = &v1alpha1.WorkloadReference{Kind: "Deployment", Name: "web"}
		}
		o.Status.Nodes = nodes
		if reason != "" {
			o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Reason: reason, Message: "why", LastTransitionTime: at(3)}}
		}
		return o
	}
	objects := []v1alpha1.ImagePrefetch{
		object("rollout", "template", v1alpha1.ReasonPulling,
			v1alpha1.PrefetchedNode{Name: "n1", Bytes: 5e6, UsedBytes: 5e6, Time: at(1)}, v1alpha1.PrefetchedNode{Name: "n2", Bytes: 4e6, Time: at(1)},
			v1alpha1.PrefetchedNode{Name: "n3", Attempts: 1, Reason: "ErrImagePull", Message: "gone", Time: at(1)}),
		object("waits", "", v1alpha1.ReasonWaiting, v1alpha1.PrefetchedNode{Name: "n1", Bytes: 3e6, Wasted: true, Time: at(1)}),
		object("new", "", ""),
		object("nothing", "", v1alpha1.ReasonComplete),
	}
	pod := func(of *v1alpha1.ImagePrefetch, node string, created metav1.Time) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: created, Annotations: map[string]string{v1alpha1.PrefetchNodeAnnotation: node, v1alpha1.PrefetchBytesAnnotation: "2000000"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, v1alpha1.GroupVersion.WithKind("ImagePrefetch"))},
		}}
	}
	pods := []*v1.Pod{pod(&objects[0], "n1", at(1)), pod(&objects[0], "n3", at(2)), pod(&objects[0], "n4", at(2))}
	all := prefetchedBy(objects, pods)
	var got []string
	for _, p := range all {
		got = append(got, fmt.Sprintf("%s %s %s %s %s %d %s %s", p.Name, p.Source, p.Workload, p.Node, p.State, p.Bytes, p.Since.Sub(begin), p.Message))
	}
	want := []string{
		"rollout template Deployment/web n1 Used 5000000 1m0s ",
		"rollout template Deployment/web n2 Ready 4000000 1m0s ",
		"rollout template Deployment/web n3 ErrImagePull 0 1m0s gone",
		"rollout template Deployment/web n3 Pulling 2000000 2m0s ",
		"rollout template Deployment/web n4 Pulling 2000000 2m0s ",
		"waits object  n1 Wasted 3000000 1m0s ",
		"waits object   Waiting 0 3m0s why",
		"new object   Unknown 0 0s layer-prefetcher has not seen it yet",
		"nothing object   Complete 0 3m0s why",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	table := prefetchTable(all, true, begin.Add(time.Hour))
	if row := table.Rows[0].Cells; row[0] != "a/rollout" || row[5] != "5.0 MB" || row[6] != "59m" || table.Below[0] != "Nodes pulled 12.0 MB ahead; of that, pods used 5.0 MB, and 3.0 MB is wasted." {
		t.Errorf("%q, %q", row, table.Below)
	}
	if table = prefetchTable(nil, false, begin); len(table.Rows) != 0 || len(table.Above) != 1 {
		t.Errorf("%+v", table)
	}
}
