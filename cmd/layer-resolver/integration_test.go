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
	"github.com/layer-locality/layer-locality/internal/dataset"
)

// TestShipped: an API server takes what deploy/resolver ships; with the rights of
// its service account the shipped command does its work, and reads pull secrets
// where it may and nowhere else; collect writes what it learned.
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
	l := newLab(t)
	scheme := runtime.NewScheme()
	l.must(clientgoscheme.AddToScheme(scheme))
	l.must(v1alpha1.AddToScheme(scheme))
	cluster, err := client.New(plane.Config, client.Options{Scheme: scheme})
	l.must(err)

	apply := func(namespace, text string) {
		object := &unstructured.Unstructured{}
		l.must(utilyaml.Unmarshal([]byte(text), &object.Object))
		if namespace != "" {
			object.SetNamespace(namespace)
		}
		strict := client.WithFieldValidation(cluster, metav1.FieldValidationStrict)
		l.must(strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership))
	}
	built := shipped(t)
	for _, resource := range built.Resources() {
		apply("", resource.MustYaml())
	}
	binding, err := os.ReadFile("../../deploy/resolver/components/pull-secrets/rolebinding.yaml")
	l.must(err)
	apply("default", string(binding))

	// The registry wants a password, which one namespace may show.
	ours, theirs := l.push("ours:1", l.image(base, "ours")), l.push("theirs:1", l.image(base, "theirs"))
	l.user, l.password = "user", "secret-word"
	config := fmt.Sprintf(`{"auths":{%q:{"username":"user","password":"secret-word"}}}`, l.host)
	l.must(cluster.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}))
	for namespace, image := range map[string]string{"default": ours, "other": theirs} {
		l.must(cluster.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)},
		}))
		spec := pod(image)
		spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		l.must(cluster.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod"}, Spec: spec}))
	}

	admin := filepath.Join(t.TempDir(), "admin")
	l.write(admin, string(plane.Kubeconfig()))
	kubeconfig, err := clientcmd.LoadFromFile(admin)
	l.must(err)
	for _, user := range kubeconfig.AuthInfos {
		user.Impersonate = "system:serviceaccount:kube-system:layer-resolver"
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	}
	account := filepath.Join(t.TempDir(), "account")
	l.must(clientcmd.WriteToFile(*kubeconfig, account))

	ctx, cancel := context.WithCancel(t.Context())
	empty := filepath.Join(t.TempDir(), "config.json")
	l.write(empty, `{"auths":{}}`)
	command := newRunCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	// What differs outside of a pod; the last of a flag counts.
	command.SetArgs(append(arguments(t, built), "--kubeconfig", account, "--leader-election-namespace", "kube-system",
		"--metrics-bind-address", "0", "--health-probe-bind-address", "0",
		"--registries-conf", l.conf, "--docker-config", empty, "--allow-network", "127.0.0.0/8"))
	var result error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result = command.ExecuteContext(ctx)
	}()
	// Before the API server, which waits for its clients. A manager without the
	// right to list something does not end (controller-runtime 0.24).
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
		return cluster.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ManifestName(digest(t, l.image(base, "ours")))}, &manifest)
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
	l.must(cluster.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "layer-resolver"}, &lease))

	// Without the password, and without the registry for what is known.
	l.forget()
	stdout, stderr, err := l.run(newCollectCommand(), nil, "--from-cluster", "--kubeconfig", admin)
	if err == nil || !strings.Contains(stderr, theirs) {
		t.Errorf("error %v, %s", err, stderr)
	}
	got, err := dataset.Read(strings.NewReader(stdout))
	if err != nil || len(got) != 1 || got[0].Image != ours || len(got[0].Layers) != 2 || got[0].Layers[0] != (dataset.Layer{Digest: layer(t, base), Size: 1000}) {
		t.Errorf("collected %+v, error %v", got, err)
	}
	if questions := l.questions(); questions["ours 1"] > 0 {
		t.Errorf("asked: %v", questions)
	}

	cancel()
	if <-ended; result != nil {
		t.Errorf("the resolver ended: %v", result)
	}
}
