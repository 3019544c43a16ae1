//go:build integration

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/eval/collect"
	"github.com/layer-locality/layer-locality/internal/eval/dataset"
	"github.com/layer-locality/layer-locality/internal/inspect"
	"github.com/layer-locality/layer-locality/internal/registrytest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestShipped: an API server accepts the manifests of deploy/resolver. With the
// rights of its service account, the shipped command does its work, and reads
// pull secrets where it may and nowhere else. A data set can be made from the
// ImageManifests that it wrote.
func TestShipped(t *testing.T) {
	plane, err := controlplane.Start("../..")
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
	built := shipped(t)
	for _, resource := range built.Resources() {
		apply("", resource.MustYaml())
	}
	binding, err := os.ReadFile("../../deploy/resolver/components/pull-secrets/rolebinding.yaml")
	must(t, err)
	apply("default", string(binding))

	// The registry requires a password. Only one namespace gives access to it.
	ours, theirs := r.Push("ours:1", r.Image("base", "ours")), r.Push("theirs:1", r.Image("base", "theirs"))
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

	admin := filepath.Join(t.TempDir(), "admin")
	must(t, os.WriteFile(admin, plane.Kubeconfig(), 0o600))
	kubeconfig, err := clientcmd.LoadFromFile(admin)
	must(t, err)
	for _, user := range kubeconfig.AuthInfos {
		user.Impersonate = "system:serviceaccount:kube-system:layer-resolver"
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	}
	account := filepath.Join(t.TempDir(), "account")
	must(t, clientcmd.WriteToFile(*kubeconfig, account))

	ctx, cancel := context.WithCancel(t.Context())
	empty := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(empty, []byte(`{"auths":{}}`), 0o600))
	command := newRunCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	// Flags that differ outside of a pod; of a repeated flag the last one counts.
	command.SetArgs(append(arguments(t, built), "--kubeconfig", account, "--leader-election-namespace", "kube-system",
		"--metrics-bind-address", "0", "--health-probe-bind-address", "0",
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
		case <-time.After(10 * time.Second):
		}
	})

	eventually := func(what string, check func() error) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			err := check()
			if err == nil {
				return
			}
			select {
			case <-ended:
				t.Fatalf("the resolver ended: %v", result)
			case <-time.After(100 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	eventually("an image of a namespace that shows its secrets", func() error {
		var manifest v1alpha1.ImageManifest
		return cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ManifestName(registrytest.Digest(t, r.Image("base", "ours")))}, &manifest)
	})
	eventually("an image of another one", func() error {
		var manifest v1alpha1.ImageManifest
		if err := cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.UnresolvedName(theirs)}, &manifest); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(manifest.Status.Conditions, v1alpha1.ConditionResolved)
		if condition == nil || condition.Reason != v1alpha1.ReasonUnauthorized || !strings.Contains(condition.Message, "layer-resolver-pull-secrets") {
			t.Fatalf("condition %+v", condition)
		}
		return nil
	})
	eventually("an event on the pod", func() error {
		var events eventsv1.EventList
		if err := cluster.List(t.Context(), &events, client.InNamespace("other")); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool { return e.Regarding.Name == "pod" && e.Reason == "ImageNotResolved" }) {
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
	var lease coordinationv1.Lease
	must(t, cluster.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "layer-resolver"}, &lease))

	// The data set has the images that the command resolved, without the password
	// and without requests to the registry.
	r.Forget()
	found, err := inspect.ClusterInventory(t.Context(), plane.Config)
	must(t, err)
	shell, err := inspect.NewClient(inspect.Options{RegistriesConf: r.Conf})
	must(t, err)
	collected := collect.Images(t.Context(), collect.Config{Client: shell, Platform: "linux/amd64"}, found)
	if !slices.ContainsFunc(collected.Errs, func(err error) bool { return strings.Contains(err.Error(), theirs) }) {
		t.Errorf("errors %v", collected.Errs)
	}
	if got := collected.Images; len(got) != 1 || got[0].Image != ours || len(got[0].Layers) != 2 || got[0].Layers[0] != (dataset.Layer{Digest: registrytest.Layer(t, "base"), Size: 4}) {
		t.Errorf("collected %+v", got)
	}
	if questions := r.Questions(); questions["ours 1"] > 0 {
		t.Errorf("asked: %v", questions)
	}

	cancel()
	if <-ended; result != nil {
		t.Errorf("the resolver ended: %v", result)
	}
}
