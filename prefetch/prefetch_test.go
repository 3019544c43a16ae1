package prefetch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/internal/terminaltest"
)

var begin = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// TestBudget: each bound holds by itself, and a pull that exceeds one alone never begins.
func TestBudget(t *testing.T) {
	budget := Budget{Pods: 3, PodsPerNode: 2, PodsPerNamespace: 2, NodeBytes: 100, NodeBytesPerHour: 150, NamespaceBytesPerHour: 200, BytesPerHour: 250}
	p := func(node, namespace string, bytes int64) pull {
		return pull{node, namespace, sourceObject, bytes, begin}
	}
	for _, test := range []struct {
		name         string
		active, hour []pull
		next         pull
		flag         string // empty: it may begin
		never        bool
	}{
		{name: "nothing goes on", next: p("n1", "a", 100)},
		{name: "too many pods", active: []pull{p("n2", "b", 1), p("n3", "b", 1), p("n4", "c", 1)}, next: p("n1", "a", 1), flag: "--max-pods="},
		{name: "too many on the node", active: []pull{p("n1", "b", 1), p("n1", "c", 1)}, next: p("n1", "a", 1), flag: "--max-pods-per-node="},
		{name: "too many of the namespace", active: []pull{p("n2", "a", 1), p("n3", "a", 1)}, next: p("n1", "a", 1), flag: "--max-pods-per-namespace="},
		{name: "the others' pods are theirs", active: []pull{p("n2", "b", 1), p("n3", "b", 1)}, next: p("n1", "a", 1)},
		{name: "bytes at a time", active: []pull{p("n1", "b", 60)}, next: p("n1", "a", 41), flag: "--max-node-bytes="},
		{name: "as many as there may be", active: []pull{p("n1", "b", 60)}, next: p("n1", "a", 40)},
		{name: "larger than the bound", next: p("n1", "a", 101), flag: "--max-node-bytes=", never: true},
		{name: "the node's hour", hour: []pull{p("n1", "b", 100)}, next: p("n1", "a", 51), flag: "--max-node-bytes-per-hour="},
		{name: "the namespace's hour", hour: []pull{p("n2", "a", 150)}, next: p("n1", "a", 51), flag: "--max-namespace-bytes-per-hour="},
		{name: "everybody's hour", hour: []pull{p("n2", "b", 100), p("n3", "c", 100)}, next: p("n1", "a", 51), flag: "--max-bytes-per-hour="},
	} {
		t.Run(test.name, func(t *testing.T) {
			hour := map[sum]int64{}
			for _, p := range test.hour {
				p.addTo(hour, p.bytes)
			}
			no := budget.allows(hour, test.active, test.next, 1)
			switch {
			case (no != nil) != (test.flag != ""):
				t.Errorf("refusal %+v, want %q", no, test.flag)
			case no != nil && (!strings.Contains(no.reason, test.flag) || no.never != test.never):
				t.Errorf("refusal %+v, want %q, never %t", no, test.flag, test.never)
			}
		})
	}
}

// TestThrottledSource: an automatic source has as much of its namespace's budget as pods used of what it brought, and never
// nothing; neither users' objects nor other namespaces have less for it.
func TestThrottledSource(t *testing.T) {
	builder := fake.NewClientBuilder().WithScheme(scheme(t))
	brought := func(namespace, source string, used, wasted int64) {
		object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-" + source, Labels: map[string]string{v1alpha1.PrefetchSourceLabel: source}}}
		object.Status = v1alpha1.ImagePrefetchStatus{BytesSaved: used, Nodes: []v1alpha1.PrefetchedNode{
			{Name: "n1", Bytes: used, UsedBytes: used}, {Name: "n2", Bytes: wasted + 50, UsedBytes: 50, Wasted: true}, {Name: "n3", Bytes: 7000},
		}}
		builder.WithObjects(object)
	}
	brought("a", SourceTag, 250, 750)
	brought("b", SourceTag, 0, 5000)
	brought("a", sourceObject, 0, 5000)
	r, err := newReconciler(builder.Build(), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	budget := DefaultBudget()
	budget.NamespaceBytesPerHour = 1000
	of := func(namespace, source string) float64 {
		share, err := r.share(t.Context(), &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{v1alpha1.PrefetchSourceLabel: source}}})
		if err != nil {
			t.Fatal(err)
		}
		return share
	}
	for _, test := range []struct {
		namespace, source string
		want              int64
	}{{"a", SourceTag, 250}, {"b", SourceTag, 100}, {"a", SourceTemplate, 1000}, {"c", SourceTag, 1000}, {"a", sourceObject, 1000}} {
		var got int64
		for bytes := int64(1); bytes <= 1000; bytes++ {
			hour := map[sum]int64{}
			pull{"other", test.namespace, test.source, bytes - 1, begin}.addTo(hour, bytes-1)
			if budget.allows(hour, nil, pull{"n1", test.namespace, test.source, 1, begin}, of(test.namespace, test.source)) == nil {
				got = bytes
			}
		}
		if got != test.want {
			t.Errorf("%s in %s may have %d bytes, want %d", test.source, test.namespace, got, test.want)
		}
	}
	if no := budget.allows(nil, nil, pull{"n1", "b", SourceTag, 900, begin}, of("b", SourceTag)); no != nil {
		t.Errorf("an image larger than the share of a source is never pulled: %+v", no)
	}
}

// TestFlood: however many pods a tenant makes in the name of its object, and whatever they state, no more of them count than its
// namespace may have, and none for ever.
func TestFlood(t *testing.T) {
	builder := fake.NewClientBuilder().WithScheme(scheme(t))
	now := begin.Add(time.Hour)
	made := func(namespace, node string, created time.Time) {
		object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node, UID: types.UID(namespace)}}
		pod := newPod(object, &target{}, node, 1<<40, 0, &Options{})
		pod.CreationTimestamp = metav1.NewTime(created)
		builder.WithObjects(pod)
	}
	for i := range 30 {
		made("flood", fmt.Sprintf("n%d", i), begin.Add(time.Duration(30-i)*time.Second))
	}
	made("flood", "for-ever", now.Add(-maxDeadline-time.Second))
	made("b", "n1", now)
	budget := DefaultBudget()
	budget.PodsPerNamespace, budget.NamespaceBytesPerHour = 2, 300
	r, err := newReconciler(builder.Build(), nil, Options{Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	pulls, err := r.active(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, p := range pulls {
		nodes = append(nodes, p.namespace+" "+p.node)
	}
	if want := []string{"flood n29", "flood n28", "b n1"}; !slices.Equal(nodes, want) {
		t.Errorf("pulls %q, want the oldest two and the other namespace's: %q", nodes, want)
	}
	r.clock = clocktesting.NewFakePassiveClock(now)
	for i := range 30 {
		r.account(&v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "flood", UID: "1"}}, fmt.Sprintf("n%d", i), 200, now)
	}
	r.account(&v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "b", UID: "2"}}, "n1", 200, now)
	if of := r.sums; of[sum{namespace: "flood"}] != 300 || of[sum{namespace: "b"}] != 200 || of[sum{}] != 500 || of[sum{node: "n1"}] != 300 {
		t.Errorf("bytes of the hour: %v", of)
	}
	if len(r.hour) != 3 {
		t.Errorf("%d pulls of the hour are kept, want none without bytes", len(r.hour))
	}
	r.dropOld(now.Add(time.Hour))
	if len(r.hour) != 3 {
		t.Errorf("%d pulls are left after an hour", len(r.hour))
	}
	r.dropOld(now.Add(time.Hour + 1))
	if len(r.hour) > 0 || len(r.sums) > 0 {
		t.Errorf("later %v, sums %v are kept", r.hour, r.sums)
	}
}

// TestHour: a pull counts for an hour, once, with the bytes that it had at first.
func TestHour(t *testing.T) {
	r, err := newReconciler(nil, nil, Options{Budget: DefaultBudget()})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	r.clock = clocktesting.NewFakePassiveClock(now)
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", UID: "1"}}
	for _, p := range []struct {
		node  string
		bytes int64
		began time.Time
	}{{"n1", 5, now}, {"n1", 1, now}, {"n1", 7, now.Add(-time.Minute)}, {"n2", 9, now.Add(-time.Hour)}} {
		r.account(object, p.node, p.bytes, p.began)
	}
	if all := r.sums[sum{}]; all != 12 {
		t.Errorf("%d bytes in %v, want 12", all, r.hour)
	}
}

func TestOutcome(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	of := func(phase corev1.PodPhase, states ...corev1.ContainerState) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(begin)}, Status: corev1.PodStatus{Phase: phase}}
		for _, state := range states {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{State: state})
		}
		return pod
	}
	unplaced := of(corev1.PodPending)
	unplaced.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "Too many pods"}}
	evicted := of(corev1.PodFailed)
	evicted.Status.Reason = "Evicted"
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		after  time.Duration
		want   outcome
		reason string
	}{
		"new":                    {of(corev1.PodPending), 0, pulling, ""},
		"creating":               {of(corev1.PodPending, waiting("ContainerCreating", "")), 0, pulling, ""},
		"the kubelet is busy":    {of(corev1.PodPending, waiting("ErrImagePull", "pull QPS exceeded")), 0, pulling, ""},
		"no such image":          {of(corev1.PodPending, waiting("ErrImagePull", "not found")), 0, failed, "ErrImagePull"},
		"backs off":              {of(corev1.PodPending, waiting("ImagePullBackOff", "")), 0, failed, "ImagePullBackOff"},
		"runs":                   {of(corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), 0, pulled, ""},
		"could not run":          {of(corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128}}), 0, pulled, ""},
		"cannot be mounted":      {of(corev1.PodPending, waiting("CreateContainerError", "")), 0, pulled, ""},
		"evicted":                {evicted, 0, failed, "Evicted"},
		"not placed yet":         {unplaced, time.Second, pulling, ""},
		"not placed for a while": {unplaced, unschedulable, failed, "Unschedulable"},
	} {
		if is, reason, _ := outcomeOf(test.pod, begin.Add(test.after)); is != test.want || reason != test.reason {
			t.Errorf("%s: %d %q, want %d %q", name, is, reason, test.want, test.reason)
		}
	}
}

func TestNodes(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.36.5", ContainerRuntimeVersion: "cri-o://1.36.3", OperatingSystem: "linux"},
		}}
		if change != nil {
			change(n)
		}
		return n
	}
	taint := corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}
	tolerated := []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	for name, test := range map[string]struct {
		change      func(*corev1.Node)
		tolerations []corev1.Toleration
		want        bool
	}{
		"ready":     {nil, nil, true},
		"not ready": {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, nil, false},
		"cordoned":  {func(n *corev1.Node) { n.Spec.Unschedulable = true }, nil, false},
		"tainted":   {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }, nil, false},
		"tolerated": {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }, tolerated, true},
		"full disk": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
		}, nil, false},
	} {
		if got := suits(node(test.change), test.tolerations); got != test.want {
			t.Errorf("%s: suits %t, want %t", name, got, test.want)
		}
	}
	for version, served := range map[[2]string]bool{
		{"v1.36.5", "cri-o://1.36.3"}: true, {"v1.35.0+k3s1", "containerd://2.1.0"}: true, {"v1.36.5", "other://0.1"}: true, {"", ""}: true,
		{"v1.34.9", "cri-o://1.36.3"}: false, {"v1.36.5", "containerd://1.7.30"}: false, {"v1.36.5", "cri-o://1.30.0"}: false, {"v1.36.5", "containerd://2.0.9-rc1"}: false,
	} {
		why := volumesServed(node(func(n *corev1.Node) {
			n.Status.NodeInfo.KubeletVersion, n.Status.NodeInfo.ContainerRuntimeVersion = version[0], version[1]
		}))
		if (why == "") != served {
			t.Errorf("%v: %q", version, why)
		}
	}
	disk := func(runtime string, held int64) *corev1.Node {
		return node(func(n *corev1.Node) {
			n.Status.NodeInfo.ContainerRuntimeVersion = runtime
			n.Status.Capacity = corev1.ResourceList{corev1.ResourceEphemeralStorage: *resource.NewQuantity(1000, resource.DecimalSI)}
			n.Status.Images = []corev1.ContainerImage{{SizeBytes: held / 2}, {SizeBytes: held - held/2}}
		})
	}
	for _, test := range []struct {
		node  *corev1.Node
		bytes int64
		want  bool
	}{{disk("cri-o://1.36.3", 300), 100, true}, {disk("cri-o://1.36.3", 300), 101, false}, {disk("containerd://2.1.0", 100), 100, true}, {disk("containerd://2.1.0", 101), 100, false}, {node(nil), 1 << 40, true}} {
		if got := diskAllows(test.node, test.bytes, 0.6); got != test.want {
			t.Errorf("%s with %v: %d bytes allowed %t", test.node.Status.NodeInfo.ContainerRuntimeVersion, test.node.Status.Images, test.bytes, got)
		}
	}
}

// TestByDigest: a tag that has moved is named by its digest, in the repository as the template names it.
func TestByDigest(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for image, want := range map[string]string{
		"app": "app@" + digest, "app:1": "app@" + digest, "registry.example.com:5000/team/app:1": "registry.example.com:5000/team/app@" + digest,
		"Not An Image": "", "": "",
	} {
		if got := byDigest(image, digest); got != want {
			t.Errorf("%q: %q, want %q", image, got, want)
		}
	}
	if got := byDigest("app:1", "sha256:short"); got != "" {
		t.Errorf("a digest that is none gives %q", got)
	}
	for _, test := range []struct {
		image, fetched string
		want           bool
	}{
		{"docker.io/library/app:1", "app:1", true}, {"app:2", "app:1", false}, {"app:1", "app@" + digest, true}, {"other:1", "app@" + digest, false},
	} {
		if got := uses([]imageref.PodImage{{Name: test.image}}, test.fetched); got != test.want {
			t.Errorf("a pod with %s uses %s: %t", test.image, test.fetched, got)
		}
	}
}

// TestUsedBytes: of what a node pulled, only the images count as used that pods there then had, as far as sizes are known.
func TestUsedBytes(t *testing.T) {
	at := metav1.NewTime(begin)
	n := &v1alpha1.PrefetchedNode{Name: "n1", Bytes: 100, Time: at}
	images := []imageref.PodImage{{Name: "app:1"}, {Name: "other:1"}}
	pod := func(node string, created time.Time, names ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}, Spec: corev1.PodSpec{NodeName: node}}
		for _, name := range names {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: name})
		}
		return p
	}
	pull := pod("n1", begin, "app:1", "other:1")
	pull.Labels = map[string]string{v1alpha1.PrefetchPodLabel: sourceObject}
	for name, test := range map[string]struct {
		pods        []*corev1.Pod
		total, want int64
	}{
		"none":                   {nil, 60, 0},
		"the pod that pulls":     {[]*corev1.Pod{pull}, 60, 0},
		"one that was there":     {[]*corev1.Pod{pod("n1", begin.Add(-time.Second), "app:1", "other:1")}, 60, 0},
		"one elsewhere":          {[]*corev1.Pod{pod("n2", begin, "app:1", "other:1")}, 60, 0},
		"another image":          {[]*corev1.Pod{pod("n1", begin, "app:2")}, 60, 0},
		"one of two":             {[]*corev1.Pod{pod("n1", begin, "app:1")}, 60, 60},
		"layers were there":      {[]*corev1.Pod{pod("n1", begin, "app:1")}, 400, 100},
		"of a size unknown":      {[]*corev1.Pod{pod("n1", begin, "app:1")}, 0, 100},
		"both in a pod":          {[]*corev1.Pod{pod("n1", begin, "app:1", "other:1")}, 60, 100},
		"each in another pod":    {[]*corev1.Pod{pod("n1", begin, "other:1"), pod("n1", begin, "app:1")}, 60, 100},
		"one there, one not yet": {[]*corev1.Pod{pod("n1", begin, "other:1"), pod("n2", begin, "app:1")}, 60, 60},
	} {
		if got, _ := usedBytes(n, images, test.pods, func(used []imageref.PodImage) int64 {
			if len(used) != 1 {
				t.Errorf("%s: sizes of %v are asked for", name, used)
			}
			return test.total
		}); got != test.want {
			t.Errorf("%s: %d bytes, want %d", name, got, test.want)
		}
	}
}

// TestNamesAreBounded: names of users' objects may be as long as names get.
func TestNamesAreBounded(t *testing.T) {
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: strings.Repeat("n", 253), UID: "1"}}
	images := &target{images: []imageref.PodImage{{Name: "app:1"}}}
	first, again := newPod(object, images, "n1", 5, 0, &Options{}), newPod(object, images, "n1", 7, 0, &Options{})
	other, retried := newPod(object, images, "n2", 5, 0, &Options{}), newPod(object, images, "n1", 5, 1, &Options{})
	if len(first.Name) > 253 || first.Name != again.Name || first.Name == other.Name || first.Name == retried.Name {
		t.Errorf("names %s, %s, %s, %s", first.Name, again.Name, other.Name, retried.Name)
	}
	for text, want := range map[string]int64{"5": 5, "-1": 0, "x": 0, "99999999999999999999": 0, "1099511627777": 1000} {
		first.Annotations[v1alpha1.PrefetchBytesAnnotation] = text
		if got := bytesOf(first, 1000); got != want {
			t.Errorf("annotation %s: %d bytes, want %d", text, got, want)
		}
	}
}

// TestEachImageIsMounted: otherwise the kubelet creates the container although a pull failed.
func TestEachImageIsMounted(t *testing.T) {
	images := &target{images: []imageref.PodImage{{Name: "app:1"}, {Name: "model:1"}}}
	spec := newPod(&v1alpha1.ImagePrefetch{}, images, "n1", 5, 0, &Options{}).Spec
	for i, volume := range spec.Volumes {
		mount := spec.Containers[0].VolumeMounts[i]
		if volume.Image.Reference != images.images[i].Name || mount.Name != volume.Name || !strings.HasPrefix(mount.MountPath, "/images/") {
			t.Errorf("image %d: volume %+v, mount %+v", i, volume, mount)
		}
	}
	if len(spec.Volumes) != 2 || len(spec.Containers[0].VolumeMounts) != 2 {
		t.Errorf("%d volumes, %d mounts", len(spec.Volumes), len(spec.Containers[0].VolumeMounts))
	}
}

// TestOnlyOurPods: pods that a tenant makes with the label, and changes of annotations, say nothing about nodes.
func TestOnlyOurPods(t *testing.T) {
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "1"}}
	images := &target{images: []imageref.PodImage{{Name: "app:1"}}}
	made := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := newPod(object, images, "n1", 5, 0, &Options{})
		if change != nil {
			change(pod)
		}
		return pod
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"ours":                  {made(nil), "n1"},
		"annotations of others": {made(func(p *corev1.Pod) { p.Annotations[v1alpha1.PrefetchNodeAnnotation] = "n2" }), "n1"},
		"no owner":              {made(func(p *corev1.Pod) { p.OwnerReferences = nil }), ""},
		"of something else":     {made(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }), ""},
		"another group":         {made(func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }), ""},
		"no label":              {made(func(p *corev1.Pod) { p.Labels = nil }), ""},
		"one that initializes":  {made(func(p *corev1.Pod) { p.Spec.InitContainers = p.Spec.Containers }), ""},
		"two containers":        {made(func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }), ""},
		"without an end":        {made(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil }), ""},
		"no affinity":           {made(func(p *corev1.Pod) { p.Spec.Affinity = nil }), ""},
		"empty affinity":        {made(func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}} }), ""},
		"any of two nodes": {made(func(p *corev1.Pod) {
			fields := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields
			fields[0].Values = append(fields[0].Values, "n2")
		}), ""},
	} {
		if got := nodeOf(test.pod); got != test.want {
			t.Errorf("%s: node %q, want %q", name, got, test.want)
		}
	}
	for bytes, seconds := range map[int64]int64{0: 600, 100 << 20: 700, 1 << 40: 7200} {
		if got := *newPod(object, images, "n1", bytes, 0, &Options{}).Spec.ActiveDeadlineSeconds; got != seconds {
			t.Errorf("%d bytes may take %d s, want %d", bytes, got, seconds)
		}
	}
	if user := made(nil).Spec.SecurityContext.RunAsUser; user == nil || *user != 0 {
		t.Errorf("user %v", user)
	}
	if context := newPod(object, images, "n1", 5, 0, &Options{PodUser: -1}).Spec.SecurityContext; context.RunAsUser != nil || context.RunAsGroup != nil || !*context.RunAsNonRoot {
		t.Errorf("user and group are those of the namespace, not %v", context)
	}
}

// TestBegin: time counts anew for another spec and after a pause, and not for another template; what has ended stays.
func TestBegin(t *testing.T) {
	r := &Reconciler{}
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	of := func(names ...string) *target {
		var t target
		for _, name := range names {
			t.images = imageref.Append(t.images, name, "")
		}
		return &t
	}
	expect := func(what string, t1 *target, at time.Time, start *time.Time, nodes int, images ...string) {
		t.Helper()
		r.begin(object, t1, at)
		s := &object.Status
		if (s.StartTime == nil) != (start == nil) || start != nil && !s.StartTime.Time.Equal(*start) || len(s.Nodes) != nodes || strings.Join(s.Images, " ") != strings.Join(images, " ") {
			t.Errorf("%s: start %v, nodes %v, images %v", what, s.StartTime, s.Nodes, s.Images)
		}
		s.Nodes = []v1alpha1.PrefetchedNode{{Name: "n1"}}
	}
	later := begin.Add(24 * time.Hour)
	expect("new", of("app:1"), begin, &begin, 0, "app:1")
	expect("again", of("app:1"), begin.Add(time.Second), &begin, 1, "app:1")
	expect("another template", of("app:2"), begin.Add(time.Second), &begin, 0, "app:2")
	expect("its workload is gone", of(), begin.Add(time.Second), &begin, 1, "app:2")
	object.Spec.Paused = true
	expect("paused", of("app:2"), begin.Add(time.Minute), nil, 1, "app:2")
	object.Spec.Paused = false
	expect("resumed", of("app:2"), later, &later, 1, "app:2")
	object.Status.CompletionTime = &metav1.Time{Time: later}
	next := of("app:3")
	expect("ended", next, later.Add(time.Hour), &later, 1, "app:2")
	if len(next.images) != 1 || next.images[0].Name != "app:2" {
		t.Errorf("what it brought: %v", next.images)
	}
	object.Generation = 2
	day2 := later.Add(2 * time.Hour)
	expect("another spec", of("app:3"), day2, &day2, 0, "app:3")
}

// What a registry wrote is one line of text, and no longer than there is room for.
func TestMessages(t *testing.T) {
	terminaltest.Check(t, atMost(1000, terminaltest.Hostile))
	if got := atMost(6, "äöü"); got != "äöü" {
		t.Errorf("%q is cut", got)
	}
	for bytes := range 6 {
		text := "äöü"
		if got := atMost(bytes, text); len(got) > bytes || got != text[:len(got)] {
			t.Errorf("%d bytes: %q", bytes, got)
		}
	}
}

// TestJudge: bytes are saved once pods use the images, of the workload that is named; a day later, or when the object expires, the
// others are wasted, and stay so.
func TestJudge(t *testing.T) {
	r, err := newReconciler(nil, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	r.cluster = &Cluster{pods: corelisters.NewPodLister(store)}
	pod := func(name, node, app string, after time.Duration) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{"app": app}, CreationTimestamp: metav1.NewTime(begin.Add(after))}}
		p.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "app:1"}}}
		if err := store.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	images := &target{images: []imageref.PodImage{{Name: "app:1"}}}
	web := &workload{Unstructured: unstructuredOf(t, "apps/v1", "Deployment", deployment("a", "web", "app:1")), selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	object := func(of *v1alpha1.WorkloadReference) *v1alpha1.ImagePrefetch {
		o := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "o"}, Spec: v1alpha1.ImagePrefetchSpec{Workload: of, TTLSecondsAfterFinished: ptr.To[int64](3600)}}
		for _, node := range []string{"n1", "n2"} {
			o.Status.Nodes = append(o.Status.Nodes, v1alpha1.PrefetchedNode{Name: node, Bytes: 100, Seconds: 8, Time: metav1.NewTime(begin)})
		}
		o.Status.Nodes = append(o.Status.Nodes, v1alpha1.PrefetchedNode{Name: "n3", Reason: "ErrImagePull", Attempts: 3, Time: metav1.NewTime(begin)})
		return o
	}
	anybody, named := object(nil), object(&v1alpha1.WorkloadReference{Kind: "Deployment", Name: "web"})
	expect := func(what string, o *v1alpha1.ImagePrefetch, w *workload, at time.Duration, saved int64, wasted ...string) {
		t.Helper()
		clear(r.counts)
		if err := r.count(r.judge(o, images, w, begin.Add(at))); err != nil {
			t.Fatal(err)
		}
		var are []string
		for _, n := range o.Status.Nodes {
			if n.Wasted {
				are = append(are, n.Name)
			}
		}
		if o.Status.BytesSaved != saved || !slices.Equal(are, wasted) {
			t.Errorf("%s: %d bytes saved, want %d; wasted on %q, want %q", what, o.Status.BytesSaved, saved, are, wasted)
		}
	}
	expect("nothing runs", anybody, nil, time.Minute, 0)
	pod("other", "n1", "other", time.Minute)
	expect("a pod uses it", anybody, nil, time.Minute, 100)
	expect("it is not of the workload", named, web, time.Minute, 0)
	pod("again", "n2", "web", time.Minute)
	pod("web", "n2", "web", 3*time.Second)
	expect("one of the workload", named, web, time.Minute, 100)
	expect("the workload is gone", named, nil, time.Hour, 100)
	anybody.Status.CompletionTime = &metav1.Time{Time: begin.Add(time.Hour)}
	expect("both are used", anybody, nil, 80*time.Minute, 200)
	if err := store.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	expect("the pods are gone", anybody, nil, 90*time.Minute, 200)
	expect("a day later", named, web, unusedAfter, 100, "n1")
	late := object(nil)
	late.Status.CompletionTime, late.Status.Nodes[0].UsedBytes = &metav1.Time{Time: begin.Add(time.Hour)}, 60
	expect("a pod is gone that used a part", late, nil, time.Hour, 60)
	expect("expired", late, nil, 2*time.Hour, 60, "n1", "n2")
	// On n1 and n2 pods used what came for anybody, on n2 later than in an hour; and on n2 what came for web. There the first one would
	// have had all but 3 s to wait.
	for name, want := range map[string]struct {
		counter *prometheus.CounterVec
		value   float64
	}{"used": {r.metrics.used, 300}, "used within an hour": {r.metrics.usedInHour, 200}, "seconds": {r.metrics.seconds, 8 + 3 + 3}, "wasted": {r.metrics.wasted, 240}} {
		if got := testutil.ToFloat64(want.counter.WithLabelValues(sourceObject)); got != want.value {
			t.Errorf("metric %s is %v, want %v", name, got, want.value)
		}
	}
}

// TestCountedOnce: a change that conflicts, or whose object is gone, counts only once it is written.
func TestCountedOnce(t *testing.T) {
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "o", UID: "1"}}
	object.Status.Nodes = []v1alpha1.PrefetchedNode{{Name: "n1", Bytes: 100, Time: metav1.NewTime(begin)}, {Name: "n2", Bytes: 50, Time: metav1.NewTime(begin)}}
	object.Spec.Images, object.Status.Images = []string{"app:1"}, []string{"app:1"}
	object.Spec.TTLSecondsAfterFinished, object.Status.CompletionTime = ptr.To[int64](3600), &metav1.Time{Time: begin}
	var refused error
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(object).WithStatusSubresource(object).Build(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, of string, object client.Object, opts ...client.SubResourceUpdateOption) error {
			if refused != nil {
				return refused
			}
			return c.SubResource(of).Update(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if refused != nil {
				return refused
			}
			return c.Delete(ctx, object, opts...)
		},
	})
	r, err := newReconciler(api, clusterOf(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "uses", CreationTimestamp: metav1.NewTime(begin)},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
	}), Options{Budget: DefaultBudget()})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after        time.Duration
		refused      error
		used, wasted float64
	}{
		{time.Minute, apierrors.NewConflict(schema.GroupResource{}, "o", nil), 0, 0},
		{time.Minute, nil, 100, 0},
		{time.Minute, nil, 100, 0},
		{2 * time.Hour, apierrors.NewNotFound(schema.GroupResource{}, "o"), 100, 0},
		{2 * time.Hour, nil, 100, 50},
		{2 * time.Hour, nil, 100, 50},
	} {
		refused, r.clock = step.refused, clocktesting.NewFakePassiveClock(begin.Add(step.after))
		if _, err := r.reconcile(t.Context(), client.ObjectKeyFromObject(object)); err != nil {
			t.Fatal(err)
		}
		used, wasted := testutil.ToFloat64(r.metrics.used.WithLabelValues(sourceObject)), testutil.ToFloat64(r.metrics.wasted.WithLabelValues(sourceObject))
		if used != step.used || wasted != step.wasted {
			t.Errorf("%+v: %v used, %v wasted", step, used, wasted)
		}
	}
}

// TestPullTime: a pull takes from when the kubelet began with its pod, if that is known, not from when the pod was made.
func TestPullTime(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(begin)}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(begin.Add(10 * time.Second))}}}}
	if got := pullTime(pod); got != 10*time.Second {
		t.Errorf("%s", got)
	}
	pod.Status.StartTime = ptr.To(metav1.NewTime(begin.Add(2 * time.Second)))
	if got := pullTime(pod); got != 8*time.Second {
		t.Errorf("with a start %s", got)
	}
}

// TestFail: attempts add up to as many as there are, at which one event says why; what can never succeed takes all of them at once.
func TestFail(t *testing.T) {
	r, err := newReconciler(nil, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(10)
	r.events = recorder
	object := &v1alpha1.ImagePrefetch{}
	for i, attempts := range []int32{1, 1, maxAttempts} {
		r.fail(object, "n1", "ErrImagePull", "not found", metav1.NewTime(begin), attempts)
		if got, want := object.Status.Nodes[0].Attempts, min(int32(i+1), maxAttempts); got != want || len(object.Status.Nodes) != 1 {
			t.Errorf("%d attempts, want %d", got, want)
		}
	}
	if len(recorder.Events) != 1 {
		t.Errorf("%d events, want 1", len(recorder.Events))
	}
}
