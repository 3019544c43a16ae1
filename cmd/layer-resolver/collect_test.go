package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/dataset"
)

// TestCollect: what is collected is what internal/dataset reads.
func TestCollect(t *testing.T) {
	l := newLab(t)
	app, other := l.image(base, shared, "app"), l.image(base, "other")
	index := map[string]v1.Image{"linux/amd64": l.image(base, "amd"), "linux/arm64": l.image(base, "arm")}
	stable, latest := l.push("app:stable", app), l.push("app:latest", app)
	multi, _ := l.pushIndex("multi:1", index)
	pinned := strings.TrimSuffix(l.push("other:1", other), ":1") + "@" + digest(t, other)

	want := []dataset.Image{
		{Image: latest, Digest: digest(t, app), Aliases: []string{stable},
			Layers: []dataset.Layer{{Digest: layer(t, base), Size: 1000}, {Digest: layer(t, shared), Size: 60}, {Digest: layer(t, "app"), Size: 3}}},
		{Image: multi, Digest: digest(t, index["linux/amd64"]),
			Layers: []dataset.Layer{{Digest: layer(t, base), Size: 1000}, {Digest: layer(t, "amd"), Size: 3}}},
		{Image: pinned, Digest: digest(t, other),
			Layers: []dataset.Layer{{Digest: layer(t, base), Size: 1000}, {Digest: layer(t, "other"), Size: 5}}},
	}
	dir := t.TempDir()
	plain, compressed := filepath.Join(dir, "images.jsonl"), filepath.Join(dir, "images.jsonl.gz")
	l.write(plain, "what was there before")
	for _, run := range []struct {
		output, stdin string
		args          []string
	}{
		{plain, "# comment\n\n" + pinned + "\n  " + multi + "\n", []string{stable, "-", "app"}}, // app:latest, by its short name
		{compressed, "", []string{pinned, multi, latest, stable, stable}},
	} {
		l.forget()
		stdout, stderr, err := l.run(newCollectCommand(), strings.NewReader(run.stdin), append(run.args, "-o", run.output)...)
		if err != nil || stdout != "" || stderr != "3 images written; registries were asked about 4; 0 failed\n" {
			t.Errorf("%s: error %v, output %q, %s", run.output, err, stdout, stderr)
		}
		if got, err := dataset.Load(run.output); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: error %v\ngot  %+v\nwant %+v", run.output, err, got, want)
		}
		for question, n := range l.questions() {
			if n != 1 {
				t.Errorf("%s was asked %d times", question, n)
			}
		}
	}

	// The same images, the same bytes, whatever the order.
	text, err := os.ReadFile(plain)
	l.must(err)
	file, err := os.Open(compressed)
	l.must(err)
	defer file.Close()
	reader, err := gzip.NewReader(file)
	l.must(err)
	if inside, err := io.ReadAll(reader); err != nil || string(inside) != string(text) || !reader.ModTime.IsZero() {
		t.Errorf("compressed: error %v, time %v\n%s\nplain\n%s", err, reader.ModTime, inside, text)
	}
	stdout, _, err := l.run(newCollectCommand(), nil, multi, pinned, stable, latest)
	if err != nil || stdout != string(text) {
		t.Errorf("standard output: error %v\n%s", err, stdout)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}

	// Another platform is another manifest.
	stdout, _, err = l.run(newCollectCommand(), nil, "--platform", "linux/arm64", multi)
	if got, readErr := dataset.Read(strings.NewReader(stdout)); err != nil || readErr != nil || got[0].Digest != digest(t, index["linux/arm64"]) {
		t.Errorf("arm64: error %v, %v, got %+v", err, readErr, got)
	}
}

func TestCollectFailures(t *testing.T) {
	l := newLab(t)
	good, empty := l.push("good:1", l.image(base)), l.push("empty:1", l.image())
	file := filepath.Join(t.TempDir(), "images.jsonl")

	_, stderr, err := l.run(newCollectCommand(), nil, "-o", file, l.host+"/missing:1", good, "Not A Name", empty)
	if err == nil {
		t.Error("no error although images are missing")
	}
	for _, line := range []string{"Error: " + l.host + "/missing:1: ", "Error: Not A Name: ", "Error: " + empty + ": the image has no layers\n", "1 images written; registries were asked about 3; 3 failed\n"} {
		if strings.Count(stderr, line) != 1 {
			t.Errorf("%q is not told once in\n%s", line, stderr)
		}
	}
	if got, err := dataset.Load(file); err != nil || len(got) != 1 || got[0].Image != good {
		t.Errorf("written: %+v, error %v", got, err)
	}

	// Nothing to write: what was there stays.
	l.write(file, "before")
	if _, stderr, err := l.run(newCollectCommand(), nil, "-o", file, empty); err == nil || !strings.Contains(stderr, "0 images written") {
		t.Errorf("error %v, %s", err, stderr)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "before" {
		t.Errorf("file is %q, error %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	command := newCollectCommand()
	command.SetArgs([]string{"--registries-conf", l.conf, "-o", file, good})
	command.SilenceUsage, command.SilenceErrors = true, true
	if err := command.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "nothing is written") {
		t.Errorf("interrupted: error %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "before" {
		t.Errorf("file is %q, error %v", text, err)
	}

	for _, arguments := range [][]string{{}, {"--platform", "arm64", good}, {"-o", t.TempDir(), good}, {"-o", os.DevNull, good}, {"--from-cluster", "--kubeconfig", "/does/not/exist"}} {
		l.forget()
		if stdout, _, err := l.run(newCollectCommand(), nil, arguments...); err == nil || stdout != "" || len(l.questions()) > 0 {
			t.Errorf("%q: error %v, output %q, asked %v", arguments, err, stdout, l.questions())
		}
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("%s is %v, error %v", os.DevNull, info, err)
	}
}

// TestCollectLimited: a registry that asks to be left alone is.
func TestCollectLimited(t *testing.T) {
	l := newLab(t)
	l.limited = true
	var images []string
	for i := range 10 * concurrency {
		images = append(images, fmt.Sprintf("%s/app:%d", l.host, i))
	}
	_, stderr, err := l.run(newCollectCommand(), nil, images...)
	if err == nil || strings.Count(stderr, "\n") < len(images)+1 {
		t.Errorf("error %v, %s", err, stderr)
	}
	// Those that were on their way.
	if asked := len(l.questions()); asked < 1 || asked > concurrency {
		t.Errorf("%d of %d images were asked", asked, len(images))
	}
	if notAsked := strings.Count(stderr, ": not asked: registry "+l.host+" limits the rate"); notAsked < len(images)-concurrency {
		t.Errorf("%d of %d images were not asked:\n%s", notAsked, len(images), stderr)
	}
}

func pod(images ...string) corev1.PodSpec {
	spec := corev1.PodSpec{}
	for i, image := range images {
		spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: image})
	}
	return spec
}

// newCluster is an API server with the objects.
func newCluster(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

func TestInventory(t *testing.T) {
	m := metav1.ObjectMeta{Namespace: "default", Name: "x"}
	everywhere := pod("container", "")
	everywhere.InitContainers = []corev1.Container{{Image: "init"}}
	everywhere.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "ephemeral"}}}
	everywhere.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "volume"}}}, {}}
	template := func(image string) corev1.PodTemplateSpec { return corev1.PodTemplateSpec{Spec: pod(image)} }
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"a@sha256:1", "a:1"}}, {Names: []string{"b:1"}}}
	manifest := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: "sha256-1"}}
	cronJob := &batchv1.CronJob{ObjectMeta: m}
	cronJob.Spec.JobTemplate.Spec.Template = template("cronjob")
	objects := []client.Object{
		&corev1.Pod{ObjectMeta: m, Spec: everywhere}, node, manifest, cronJob,
		&appsv1.Deployment{ObjectMeta: m, Spec: appsv1.DeploymentSpec{Template: template("deployment")}},
		&appsv1.StatefulSet{ObjectMeta: m, Spec: appsv1.StatefulSetSpec{Template: template("statefulset")}},
		&appsv1.DaemonSet{ObjectMeta: m, Spec: appsv1.DaemonSetSpec{Template: template("daemonset")}},
		&batchv1.Job{ObjectMeta: m, Spec: batchv1.JobSpec{Template: template("job")}},
	}
	// In two pages, the first without items; the fake has none of its own.
	pages := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		var o client.ListOptions
		o.ApplyOptions(options)
		if o.Limit == 0 {
			t.Errorf("%T is read in one piece", list)
		}
		if o.Continue == "" {
			list.SetContinue("more")
			return nil
		}
		return c.List(ctx, list)
	}}
	found, err := readInventory(t.Context(), newCluster(t, pages, objects...))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found.images)
	if want := []string{"container", "cronjob", "daemonset", "deployment", "ephemeral", "init", "job", "statefulset", "volume"}; !slices.Equal(found.images, want) {
		t.Errorf("images %q, want %q", found.images, want)
	}
	if want := [][]string{{"a@sha256:1", "a:1"}, {"b:1"}}; !reflect.DeepEqual(found.nodes, want) {
		t.Errorf("on nodes %q", found.nodes)
	}
	if len(found.manifests) != 1 || found.manifests[0].Name != "sha256-1" {
		t.Errorf("manifests %+v", found.manifests)
	}

	failing := func(err error, of client.ObjectList) interceptor.Funcs {
		return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if reflect.TypeOf(list) == reflect.TypeOf(of) {
				return err
			}
			return c.List(ctx, list, options...)
		}}
	}
	missing := &meta.NoKindMatchError{GroupKind: v1alpha1.GroupVersion.WithKind("ImageManifest").GroupKind()}
	found, err = readInventory(t.Context(), newCluster(t, failing(missing, &v1alpha1.ImageManifestList{}), objects...))
	if err != nil || len(found.images) != 9 || len(found.manifests) != 0 {
		t.Errorf("without the CRD: error %v, %+v", err, found)
	}
	if _, err := readInventory(t.Context(), newCluster(t, failing(os.ErrPermission, &appsv1.DaemonSetList{}), objects...)); err == nil {
		t.Error("a cluster that cannot be read in full has no error")
	}
}

// TestCollectKnown: what the cluster knows is not asked, and one question tells
// about all names of an image.
func TestCollectKnown(t *testing.T) {
	l := newLab(t)
	known, fresh := l.image(base, "known"), l.image(base, "fresh")
	knownDigest := digest(t, known)
	l.push("fresh:1", fresh)
	l.push("node:1", l.image(base, "moved")) // not what the node has
	onNode := l.image(base, "node")
	l.push("node:old", onNode)
	_, index := l.pushIndex("multi:1", map[string]v1.Image{"linux/amd64": l.image(base, "amd")})
	repository := func(name string) string { return l.host + "/" + name }

	spec := v1alpha1.ImageManifestSpec{Digest: knownDigest, Platform: "linux/amd64", Layers: []v1alpha1.ImageLayer{{Digest: layer(t, base), Size: 1000}}}
	otherPlatform := v1alpha1.ImageManifestSpec{Digest: digest(t, fresh), Platform: "linux/arm64", Layers: spec.Layers}
	references := func(names ...string) v1alpha1.ImageManifestStatus {
		var status v1alpha1.ImageManifestStatus
		for _, name := range names {
			status.References = append(status.References, v1alpha1.ImageReference{Name: repository(name), Digest: "sha256:" + strings.Repeat("1", 64)})
		}
		return status
	}
	found := inventory{
		images: []string{repository("known:1"), repository("fresh:1"), "fresh:1", repository("multi:1")},
		nodes: [][]string{
			{repository("known@" + knownDigest), repository("known:1"), repository("known:node")},
			{repository("known@sha256:" + strings.Repeat("1", 64))}, // the index that led there
			{repository("node@" + digest(t, onNode)), repository("node:1")},
			{repository("node@" + digest(t, onNode)), repository("node:other")},
			{repository("multi@" + index), repository("multi:1")},
			{"<none>@<none>"}, {},
		},
		manifests: []v1alpha1.ImageManifest{
			{Spec: spec, Status: references("known:1", "known:unused")},
			{Spec: otherPlatform, Status: references("fresh:1")},
			{Status: references("multi:1")}, // unresolved
		},
	}
	options := registryOptions{registriesConf: l.conf}
	asker, err := options.asker()
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector(asker, "linux/amd64")
	var progress strings.Builder
	c.progress = &progress
	c.learn(found.manifests)
	c.collect(t.Context(), found)

	type line struct {
		image   string
		aliases []string
		digest  string
	}
	var got []line
	for _, image := range c.images() {
		got = append(got, line{image.Image, image.Aliases, image.Digest})
	}
	none := []string{}
	if want := []line{
		{repository("fresh:1"), none, digest(t, fresh)},
		{repository("known:1"), []string{repository("known:node")}, knownDigest},
		{repository("multi:1"), none, digest(t, l.image(base, "amd"))},
		{repository("node:1"), []string{repository("node:other")}, digest(t, onNode)},
	}; !reflect.DeepEqual(got, want) || len(c.errs) > 0 {
		t.Errorf("errors %v\ngot  %v\nwant %v", c.errs, got, want)
	}
	if want := map[string]int{
		"fresh 1": 1, "multi 1": 1, "multi " + digest(t, l.image(base, "amd")): 1, "node " + digest(t, onNode): 1,
	}; !reflect.DeepEqual(l.questions(), want) || c.asked != 3 {
		t.Errorf("asked about %d: %v, want %v", c.asked, l.questions(), want)
	}
	if text := progress.String(); !strings.HasSuffix(text, "\r7 of 7 images\n") {
		t.Errorf("progress %q", text)
	}
}
