package workloads

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// The object that the cache keeps gives the same images as the original, and
// informers know it by the same name.
func TestTransformKeepsTheClaim(t *testing.T) {
	meta := metav1.ObjectMeta{
		Name: "one", Namespace: "ns", UID: "1", ResourceVersion: "7", Labels: map[string]string{"app": "x"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Controller: ptr.To(true)}},
	}
	spec := corev1.PodSpec{
		ServiceAccountName: "account",
		ImagePullSecrets:   []corev1.LocalObjectReference{{Name: "b"}, {Name: "a"}},
		InitContainers:     []corev1.Container{{Image: "reg/init:1"}},
		Containers:         []corev1.Container{{Image: "reg/x:1"}, {Image: "reg/y:1"}, {Image: "reg/x:1"}},
		Volumes:            []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "reg/data:1"}}}},
	}
	template := corev1.PodTemplateSpec{Spec: spec}
	objects := []metav1.Object{
		&corev1.Pod{ObjectMeta: meta, Spec: spec},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: template}},
		&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Template: template}},
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: template}},
		&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: template}},
		&batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}},
	}
	if len(objects) != len(kinds) {
		t.Fatalf("%d objects of %d kinds", len(objects), len(kinds))
	}
	for i, object := range objects {
		k := &kinds[i]
		want := usage.WorkloadImages{
			Workload:   corev1.ObjectReference{APIVersion: k.apiVersion, Kind: k.name, Namespace: "ns", Name: "one", UID: "1"},
			Controlled: true, Pull: usage.Pull{Namespace: "ns", ServiceAccount: "account", Secrets: "a,b"},
			Images: []string{"reg/init:1", "reg/x:1", "reg/y:1", "reg/data:1"},
		}
		short, err := k.transform(object)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := short.(*workload); !ok {
			t.Errorf("%s is kept as %T, which takes four times the memory", k.name, short)
		}
		again, err := k.transform(short)
		if err != nil {
			t.Fatal(err)
		}
		for what, of := range map[string]any{"object": object, "kept": short, "kept twice": again} {
			if got, ok := k.ImagesOf(of); !ok || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: %+v, want %+v", k.name, what, got, want)
			}
		}
		kept, ok := short.(metav1.Object)
		if !ok || kept.GetNamespace() != "ns" || kept.GetName() != "one" || kept.GetUID() != "1" || kept.GetResourceVersion() != "7" {
			t.Errorf("%s is kept as %+v", k.name, short)
		}
	}
	ended, err := kinds[0].transform(&corev1.Pod{ObjectMeta: meta, Spec: spec, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}})
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := kinds[0].ImagesOf(ended); ok {
		t.Errorf("a pod that has ended needs %+v", c)
	}
}

// Whose pods are all made from the template of now; kinds without such a status never are.
func TestSettled(t *testing.T) {
	meta := metav1.ObjectMeta{Generation: 3}
	deployment := func(observed int64, all, updated int32) any {
		return &appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: all, UpdatedReplicas: updated}}
	}
	stateful := func(observed int64, all, updated int32) any {
		return &appsv1.StatefulSet{ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: observed, Replicas: all, UpdatedReplicas: updated}}
	}
	daemon := func(observed int64, all, updated int32) any {
		return &appsv1.DaemonSet{ObjectMeta: meta, Status: appsv1.DaemonSetStatus{ObservedGeneration: observed, CurrentNumberScheduled: all, UpdatedNumberScheduled: updated}}
	}
	for kind, object := range map[int]func(int64, int32, int32) any{1: deployment, 2: stateful, 3: daemon} {
		for status, want := range map[[3]int]bool{
			{3, 2, 2}: true,
			{2, 2, 2}: false, // of the template before
			{3, 2, 1}: false, // a pod is still of that one
			{3, 0, 0}: false, // there are none
		} {
			if got := kinds[kind].settled(object(int64(status[0]), int32(status[1]), int32(status[2]))); got != want {
				t.Errorf("%s, observed, pods, updated %v: %v", kinds[kind].name, status, got)
			}
		}
	}
	for active, want := range map[int32]bool{0: false, 1: true} {
		if got := kinds[4].settled(&batchv1.Job{Status: batchv1.JobStatus{Active: active}}); got != want {
			t.Errorf("a Job with %d pods: %v", active, got)
		}
	}
	for _, kind := range []int{0, 5} {
		if kinds[kind].settled != nil {
			t.Errorf("%s is settled", kinds[kind].name)
		}
	}
	// It is part of it, also of what the cache keeps.
	object := deployment(3, 2, 2).(*appsv1.Deployment)
	object.Spec.Template.Spec.Containers = []corev1.Container{{Image: "reg/x:1"}}
	short, err := kinds[1].transform(object)
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := kinds[1].ImagesOf(short); !ok || !c.Settled {
		t.Errorf("images %+v", c)
	}
}

// Each pull secret counts once, in whatever order they are named, and a workload without images
// needs nothing.
func TestClaim(t *testing.T) {
	names := func(all ...string) (secrets []corev1.LocalObjectReference) {
		for _, name := range all {
			secrets = append(secrets, corev1.LocalObjectReference{Name: name})
		}
		return secrets
	}
	a, b := deploymentOf("", "reg/x:1"), deploymentOf("default", "reg/x:1")
	a.Spec.Template.Spec.ImagePullSecrets = names("two", "one", "two")
	b.Spec.Template.Spec.ImagePullSecrets = names("one", "two")
	first, ok := kinds[1].ImagesOf(a)
	second, also := kinds[1].ImagesOf(b)
	if !ok || !also || first.Pull != second.Pull || first.Pull.Secrets != "one,two" {
		t.Errorf("%+v and %+v", first.Pull, second.Pull)
	}
	b.Spec.Template.Spec.Containers = nil
	if c, ok := kinds[1].ImagesOf(b); ok {
		t.Errorf("without images: %+v", c)
	}
}

// Of all kinds the cache keeps only what is needed.
func TestCacheTransforms(t *testing.T) {
	for object, by := range CacheOptions().ByObject {
		if by.Transform == nil {
			t.Errorf("%T is kept as it is", object)
		}
	}
	if n := len(CacheOptions().ByObject); n != len(kinds)+2 {
		t.Errorf("%d kinds, want the %d of workloads, Node and ImageManifest", n, len(kinds))
	}
}

// A Deployment's template names no service account, its pods "default".
func TestDefaultServiceAccount(t *testing.T) {
	template, _ := kinds[1].ImagesOf(deploymentOf("", "reg/x:1"))
	pod, _ := kinds[1].ImagesOf(deploymentOf("default", "reg/x:1"))
	if template.Pull != pod.Pull {
		t.Errorf("%+v and %+v are the same account; as two, a refused image is asked for twice", template.Pull, pod.Pull)
	}
}

// A Job that failed has ended, too.
func TestFailedJob(t *testing.T) {
	job := &batchv1.Job{}
	job.Spec.Template.Spec.Containers = []corev1.Container{{Image: "reg/x:1"}}
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	short, err := kinds[4].transform(job)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := kinds[4].ImagesOf(short); ok {
		t.Error("a Job that failed (BackoffLimitExceeded) keeps its image in use for ever: only the successful have a completionTime")
	}
}

// A Job ends when it is complete or failed, not when it is about to, nor when it is suspended.
func TestEnded(t *testing.T) {
	for condition, want := range map[batchv1.JobCondition]bool{
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}:           true,
		{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}:             true,
		{Type: batchv1.JobComplete, Status: corev1.ConditionFalse}:          false,
		{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}:          false,
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}: false,
	} {
		job := &batchv1.Job{}
		job.Status.Conditions = []batchv1.JobCondition{condition}
		if got := ended(job); got != want {
			t.Errorf("%s %s: ended is %v", condition.Type, condition.Status, got)
		}
	}
	if ended(&batchv1.Job{}) {
		t.Error("a Job without conditions has ended")
	}
}

// The platform that a node reports gets into every object.
func TestPlatformOfNode(t *testing.T) {
	node := &corev1.Node{}
	node.Status.NodeInfo.OperatingSystem, node.Status.NodeInfo.Architecture = "linux", strings.Repeat("a", 100_000)
	if p := PlatformOf(node); len(p) > 64 {
		t.Errorf("a node reports a platform of %d bytes: with it each reference of each index would be written", len(p))
	}
}

// A very large pod that the API server accepts.
func TestManyImagesOfAPod(t *testing.T) {
	pod := &corev1.Pod{}
	for i := range 10_000 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: fmt.Sprintf("reg/x:%d", i)})
	}
	begin := time.Now()
	c, _ := kinds[0].ImagesOf(pod)
	if len(c.Images) > 256 {
		t.Errorf("one object makes the resolver ask for %d images (%v for the list alone); the scheduler takes 256", len(c.Images), time.Since(begin).Round(time.Millisecond))
	}
}

// Names longer than possible take no memory.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	c, ok := kinds[1].ImagesOf(deploymentOf("", long))
	if n := len(c.Images[0]); !ok || n > imageref.MaxLength+1 {
		t.Errorf("%d characters of a name are kept", n)
	}
	if _, err := imageref.Full(c.Images[0]); err == nil {
		t.Error("what is left of a name that is too long is a name")
	}
}

// What the cache keeps of a CronJob is bounded, however many and long the names in it are: a namespace may
// have thousands, each with a quarter of a MiB of names.
func TestNamesTakeBoundedMemory(t *testing.T) {
	const objects, limit = 300, 2 * imageref.MaxNames
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // interned strings go in a second round
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before, kept := heap(), make([]any, objects)
	for i := range kept {
		job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "hostile", Name: fmt.Sprint("job-", i)}}
		spec := &job.Spec.JobTemplate.Spec.Template.Spec
		for c := range 256 {
			spec.Containers = append(spec.Containers, corev1.Container{Image: fmt.Sprintf("reg/%0*d:1", imageref.MaxLength-6, i*256+c)})
		}
		short, err := kinds[5].transform(job)
		if err != nil {
			t.Fatal(err)
		}
		kept[i] = short
	}
	each := (int64(heap()) - int64(before)) / objects
	if each < 1<<10 || each > limit {
		t.Errorf("%d bytes are kept of each CronJob, want some, and at most %d", each, limit)
	}
	runtime.KeepAlive(kept)
}

// podRunning is a pod whose containers run images with these IDs.
func podRunning(ids ...string) *corev1.Pod {
	pod := &corev1.Pod{}
	for _, id := range ids {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{ImageID: id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	return pod
}

// What containerd names an image that was imported without a name is asked for nowhere.
func TestImported(t *testing.T) {
	loaded, pulled := byDigest("import-2026-11-28", "a"), byDigest("quay.io/b", "b")
	node := nodeWith(byDigest("docker.io/library/import-2026-11-28", "a")+" import-2026-11-28:latest", loaded+" "+pulled)
	if got := ImagesOn(node); !slices.Equal(got, []string{pulled}) {
		t.Errorf("held: %q", got)
	}
	if got := RegistriesOf(node); !slices.Equal(got, []string{"quay.io"}) {
		t.Errorf("registries: %q", got)
	}
	own := byDigest("docker.io/library/import-2026-11-28-b", "a")
	if got := ImagesOn(nodeWith(own, byDigest("quay.io/import-2026-11-28", "b"))); len(got) != 2 {
		t.Errorf("held: %q", got)
	}
}

func TestImagesOn(t *testing.T) {
	a, b := byDigest("docker.io/library/a", "a"), byDigest("quay.io/b", "b")
	mirror := byDigest("quay.io/mirror/a", "c")
	node := nodeWith("docker.io/library/a:1 "+a+" "+byDigest("docker.io/library/a", "d")+" "+mirror, "docker.io/library/tag:only",
		"<none>@<none>", "quay.io/bad@sha256:12", b, byDigest("docker.io/library/a", "a"),
		byDigest("docker.io/library/import-2026-11-28", "e")+" docker.io/library/mine:dev")
	if got := ImagesOn(node); !slices.Equal(got, []string{a, mirror, b}) {
		t.Errorf("held: %q", got)
	}
	if got := RegistriesOf(node); !slices.Equal(got, []string{"docker.io", "quay.io"}) {
		t.Errorf("registries: %q", got)
	}
	if got := RegistriesOf(nodeWith("quay.io/b:1", "docker.io/library/a:1")); !slices.Equal(got, []string{"docker.io", "quay.io"}) {
		t.Errorf("registries of the same images in another order: %q", got)
	}
	running := podRunning("quay.io/b@"+hash("b"), "docker.io/library/a@"+hash("a"))
	if got := RunningFrom(running); !slices.Equal(got, []string{"docker.io", "quay.io"}) {
		t.Errorf("registries that a pod runs images of: %q", got)
	}
	var many []string
	for i := range MaxImagesPerNode + 10 {
		many = append(many, fmt.Sprintf("quay.io/a@sha256:%064x", i))
	}
	if got := ImagesOn(nodeWith(many...)); len(got) != MaxImagesPerNode {
		t.Errorf("%d images of a node", len(got))
	}
}

// TestNeverPulled: no registry learns the name of an image that no node may pull.
func TestNeverPulled(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p", UID: "u"}}
	add := func(image string, policy corev1.PullPolicy) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: image, ImagePullPolicy: policy})
	}
	kind := Kinds(nil)[0]
	add("secret-project:dev", corev1.PullNever)
	if c, ok := kind.ImagesOf(pod); ok {
		t.Errorf("registries are asked for %q", c.Images)
	}
	// Another container may have it pulled.
	add("secret-project:dev", corev1.PullIfNotPresent)
	add("other:dev", corev1.PullNever)
	if c, ok := kind.ImagesOf(pod); !ok || !slices.Equal(c.Images, []string{"secret-project:dev"}) {
		t.Errorf("registries are asked for %q", c.Images)
	}
}

// nodeWith returns a node that lists images, each given by its names.
func nodeWith(images ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, names := range images {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: strings.Fields(names)})
	}
	return node
}

func hash(letter string) string { return "sha256:" + strings.Repeat(letter, 64) }

func byDigest(repository, letter string) string { return repository + "@" + hash(letter) }

func deploymentOf(account, image string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns"}}
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Image: image}}}
	return d
}
