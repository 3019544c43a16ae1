//go:build integration

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/resolver/inspect"
)

var must = testkit.Must

// TestShipped: an API server accepts the manifests of deploy/resolver. With the
// rights of its service account, the shipped command does its work, and reads
// pull secrets where it may and nowhere else. A data set can be made from the
// ImageManifests that it wrote.
func TestShipped(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	plane, err := controlplane.StartWith("../..", controlplane.Settings{AuditLog: audit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	r := registrytest.New(t)
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	cluster, err := client.New(plane.Config, client.Options{Scheme: scheme})
	must(t, err)

	apply := func(namespace, text string) {
		object := &unstructured.Unstructured{}
		must(t, utilyaml.Unmarshal([]byte(text), &object.Object))
		if namespace != "" {
			object.SetNamespace(namespace)
		}
		strict := client.WithFieldValidation(cluster, metav1.FieldValidationStrict)
		must(t, strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership))
	}
	must(t, cluster.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "openshift-config"}}))
	for _, kind := range [][3]string{
		{"argoproj.io", "v1alpha1", "Rollout"}, {"config.openshift.io", "v1", "ImageDigestMirrorSet"}, {"config.openshift.io", "v1", "ImageTagMirrorSet"},
		{"operator.openshift.io", "v1alpha1", "ImageContentSourcePolicy"},
		{"jobset.x-k8s.io", "v1alpha2", "JobSet"}, {"leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"}, {"ray.io", "v1", "RayCluster"}, {"ray.io", "v1", "RayJob"}, {"kubeflow.org", "v1", "PyTorchJob"},
	} {
		apply("", controlplane.OpenKind(kind[0], kind[1], kind[2]))
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: kind[0], Version: kind[1], Kind: kind[2] + "List"})
		must(t, poll.Until(t.Context(), 100*time.Millisecond, time.Minute, func(ctx context.Context) error { return cluster.List(ctx, list) }))
	}
	built := shipped(t)
	for _, resource := range built.Resources() {
		apply("", resource.MustYaml())
	}
	binding, err := os.ReadFile("../../deploy/resolver/components/pull-secrets/rolebinding.yaml")
	must(t, err)
	apply("default", string(binding))

	// The registry requires a password. Only one namespace gives access to it.
	ours, theirs := r.Push("ours:1", r.Image("base", "ours")), r.Push("theirs:1", r.Image("base", "theirs"))
	// A template of another kind, and one of an image that only a mirror of the cluster has,
	// for which the global pull secret is.
	rolled, mirrored := r.Push("rolled:1", r.Image("base", "rolled")), r.Push("mirrored:1", r.Image("base", "mirrored"))
	driver, worker := r.Push("driver:1", r.Image("base", "driver")), r.Push("worker:1", r.Image("base", "worker"))
	r.WantPassword("user", "secret-word")
	config := fmt.Sprintf(`{"auths":{%q:{"username":"user","password":"secret-word"}}}`, r.Host)
	must(t, cluster.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}))
	for namespace, image := range map[string]string{"default": ours, "other": theirs} {
		must(t, cluster.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)},
		}))
		spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}
		spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		must(t, cluster.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod"}, Spec: spec}))
	}

	must(t, cluster.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-config", Name: "pull-secret"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(strings.ReplaceAll(config, r.Host, r.Host+"/mirrored"))},
	}))
	apply("", fmt.Sprintf("{apiVersion: config.openshift.io/v1, kind: ImageTagMirrorSet, metadata: {name: m}, spec: {imageTagMirrors: [{source: source.example.com/team, mirrors: [%q]}]}}", r.Host))
	rollout := func(name, image, secrets string) {
		apply("default", fmt.Sprintf("{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: %s}, spec: {template: {spec: {imagePullSecrets: [%s], containers: [{name: main, image: %q}]}}}}", name, secrets, image))
	}
	rollout("rolled", rolled, "{name: pull}")
	job := func(name, image string) string {
		return fmt.Sprintf("{name: %s, template: {spec: {template: {spec: {imagePullSecrets: [{name: pull}], containers: [{name: main, image: %q}]}}}}}", name, image)
	}
	apply("default", fmt.Sprintf("{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: queued}, spec: {suspend: true, replicatedJobs: [%s, %s]}}", job("driver", driver), job("worker", worker)))
	rollout("mirrored", "source.example.com/team/"+strings.TrimPrefix(mirrored, r.Host+"/"), "")

	admin := filepath.Join(t.TempDir(), "admin")
	must(t, os.WriteFile(admin, plane.Kubeconfig(), 0o600))
	kubeconfig, err := clientcmd.LoadFromFile(admin)
	must(t, err)
	const user = "system:serviceaccount:kube-system:layer-resolver"
	for _, info := range kubeconfig.AuthInfos {
		info.Impersonate = user
		info.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	}
	account := filepath.Join(t.TempDir(), "account")
	must(t, clientcmd.WriteToFile(*kubeconfig, account))

	metrics := freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	empty := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(empty, []byte(`{"auths":{}}`), 0o600))
	command := newRunCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	// Flags that differ outside of a pod; of a repeated flag the last one counts. The files of
	// some are not there.
	ofPod := slices.DeleteFunc(arguments(t, built), func(argument string) bool {
		return strings.HasPrefix(argument, "--ca-bundle=") || strings.HasPrefix(argument, "--certs-dir=") || strings.HasPrefix(argument, "--image-credential-provider-")
	})
	command.SetArgs(append(ofPod, "--kubeconfig", account, "--leader-election-namespace", "kube-system",
		"--metrics-bind-address", metrics, "--health-probe-bind-address", "0", "--publish-private",
		"--template=absent.example/v1/Absent={.spec}", // its definition is not there
		"--registries-conf", r.Conf, "--docker-config", empty, "--allow-network", "127.0.0.0/8"))
	var result error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result = command.ExecuteContext(ctx)
	}()
	// Stop the command before the API server, which waits for its clients. A
	// manager without the right to list something does not end (controller-runtime
	// 0.24).
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Minute):
		}
	})

	eventually := func(what string, check func() error) {
		t.Helper()
		if err := poll.Until(t.Context(), 100*time.Millisecond, time.Minute, func(context.Context) error {
			select {
			case <-ended:
				return poll.Permanent(fmt.Errorf("the resolver ended: %w", result))
			default:
				return check()
			}
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	eventually("an image of a namespace that shows its secrets", func() error {
		var manifest v1alpha1.ImageManifest
		return cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ManifestName(registrytest.Digest(t, r.Image("base", "ours")))}, &manifest)
	})
	for _, name := range []string{"rolled", "mirrored", "driver", "worker"} {
		eventually("the image "+name+" of a custom kind", func() error {
			var manifest v1alpha1.ImageManifest
			return cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ManifestName(registrytest.Digest(t, r.Image("base", name)))}, &manifest)
		})
	}
	eventually("an image of another one", func() error {
		var manifest v1alpha1.ImageManifest
		if err := cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.UnresolvedName(theirs)}, &manifest); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(manifest.Status.Conditions, v1alpha1.ConditionResolved)
		if condition == nil || condition.Reason != v1alpha1.ReasonUnauthorized || strings.Contains(condition.Message, "pull") {
			t.Fatalf("condition %+v tells more than what everybody may know", condition)
		}
		return nil
	})
	eventually("an event on the pod", func() error {
		var events eventsv1.EventList
		if err := cluster.List(t.Context(), &events, client.InNamespace("other")); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == "pod" && e.Reason == "ImageNotResolved" && strings.Contains(e.Note, "other/pull may not be read: bind the ClusterRole layer-resolver-pull-secrets")
		}) {
			return fmt.Errorf("%d others", len(events.Items))
		}
		return nil
	})
	eventually("an event of the election", func() error {
		var events corev1.EventList
		if err := cluster.List(t.Context(), &events, client.InNamespace("kube-system")); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Kind == "Lease" && e.Reason == "LeaderElection" }) {
			return fmt.Errorf("%d others", len(events.Items))
		}
		return nil
	})
	// The metrics name registries: only those to whom the role is bound may read them.
	for who, want := range map[string]int{"nobody": http.StatusUnauthorized, "stranger": http.StatusForbidden, "prometheus": http.StatusOK} {
		token := ""
		if who != "nobody" {
			token = tokenFor(t, cluster, who)
		}
		if who == "prometheus" {
			must(t, cluster.Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: who},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "layer-resolver-metrics-reader"},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: who}},
			}))
		}
		eventually("metrics for "+who, func() error {
			code, text := scrape(t, metrics, token)
			if code != want || want == http.StatusOK && !strings.Contains(text, "layerlocality_resolver_images_in_use") {
				return fmt.Errorf("status %d, want %d: %.200s", code, want, text)
			}
			return nil
		})
	}
	var lease coordinationv1.Lease
	must(t, cluster.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "layer-resolver"}, &lease))

	// An inventory of the cluster has what pods name, and what is known of it.
	found, err := inspect.ClusterInventory(t.Context(), plane.Config)
	must(t, err)
	published := slices.ContainsFunc(found.Manifests, func(m v1alpha1.ImageManifest) bool {
		named := slices.ContainsFunc(m.Status.References, func(r v1alpha1.ImageReference) bool { return r.Name == ours })
		return named && len(m.Spec.Layers) == 2 && m.Spec.Layers[0].Digest == registrytest.Layer(t, "base")
	})
	if !published || !slices.Contains(found.Images, ours) || !slices.Contains(found.Images, theirs) {
		t.Errorf("inventory %+v", found)
	}

	// What somebody else changes is put back, and what is known at last is no longer unresolved.
	known := client.ObjectKey{Name: v1alpha1.ManifestName(registrytest.Digest(t, r.Image("base", "ours")))}
	var changed v1alpha1.ImageManifest
	must(t, cluster.Get(t.Context(), known, &changed))
	must(t, cluster.Patch(t.Context(), &changed, client.RawPatch(types.MergePatchType, []byte(`{"status":{"failures":7}}`))))
	eventually("the change is put back", func() error {
		if err := cluster.Get(t.Context(), known, &changed); err != nil || changed.Status.Failures == 0 {
			return err
		}
		return fmt.Errorf("%d failures", changed.Status.Failures)
	})
	must(t, cluster.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "theirs"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: theirs}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
	}}))
	eventually("an image is known at last", func() error {
		err := cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.UnresolvedName(theirs)}, &v1alpha1.ImageManifest{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it still is unresolved"))
	})

	cancel()
	if <-ended; result != nil {
		t.Errorf("the resolver ended: %v", result)
	}
	rights(t, audit, user, rulesOf(t, built))
}

// rights checks what the resolver asked for: what its roles name, all of it, and no more but the secrets of
// a namespace that does not show them.
func rights(t *testing.T, audit, user string, rules []rbacv1.PolicyRule) {
	t.Helper()
	log, err := auditlog.Read(audit)
	must(t, err)
	use := log.Use(user, rules)
	for _, request := range use.Forbidden {
		if !strings.HasPrefix(request, "get /api/v1/namespaces/other/") {
			t.Errorf("forbidden: %s", request)
		}
	}
	for _, request := range use.Unnamed {
		if !strings.HasPrefix(request, "get /api") && !strings.Contains(request, "/selfsubjectaccessreviews") && !strings.Contains(request, "/selfsubjectrulesreviews") { // who may do what is asked of nobody: all accounts may
			t.Errorf("no role names %s", request)
		}
	}
	reasons := map[string]string{
		"list":                       "this apiserver sends what there is as the beginning of a watch (WatchList); others are asked for lists",
		"patch events.k8s.io/events": "an event that is sent again is counted, a minute later",
	}
	for _, right := range use.Unused {
		if reasons[right.Verbs[0]] == "" && reasons[right.Verbs[0]+" "+strings.Join(right.APIGroups, "")+"/"+strings.Join(right.Resources, "")] == "" {
			t.Errorf("a role names what was not asked for: %v", right)
		}
	}
}

// rulesOf returns what the resolver may do by its shipped roles, but those that are for others.
func rulesOf(t *testing.T, built resmap.ResMap) (rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, resource := range built.Resources() {
		if kind := resource.GetKind(); kind != "Role" && kind != "ClusterRole" || strings.HasSuffix(resource.GetName(), "-reader") {
			continue
		}
		var role rbacv1.ClusterRole
		must(t, yaml.Unmarshal([]byte(resource.MustYaml()), &role))
		rules = append(rules, role.Rules...)
	}
	return rules
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	return listener.Addr().String()
}

// tokenFor makes a service account and returns a token of it.
func tokenFor(t *testing.T, cluster client.Client, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	must(t, cluster.Create(t.Context(), account))
	request := &authenticationv1.TokenRequest{}
	must(t, cluster.SubResource("token").Create(t.Context(), account, request))
	return request.Status.Token
}

// scrape asks for the metrics. Their certificate is one of the process's own.
func scrape(t *testing.T, address, token string) (code int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true} //nolint:gosec // a test
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(body)
}
