//go:build e2e

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestRights: in all of these tests, agents asked for what deploy/agent allows, all of it, and nothing
// else. Nobody else gives them more.
func TestRights(t *testing.T) {
	agents(t, len(c.Nodes()))
	livetest.Rights(t, c, lab.Client, user, nil)
	access := func(verb, group, resource string) bool {
		t.Helper()
		review, err := lab.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource},
		}}, metav1.CreateOptions{})
		must(t, err)
		return review.Status.Allowed
	}
	for right, want := range map[[3]string]bool{
		{"create", "layerlocality.io", "nodelayers"}: true, {"update", "layerlocality.io", "nodelayers"}: true,
		{"delete", "layerlocality.io", "nodelayers"}: true, {"get", "layerlocality.io", "nodelayers"}: false,
		{"patch", "layerlocality.io", "nodelayers"}: false, {"list", "layerlocality.io", "nodelayers"}: false,
		{"get", "", "nodes"}: false, {"list", "", "pods"}: false, {"get", "", "secrets"}: false, {"create", "layerlocality.io", "imagemanifests"}: false,
	} {
		if got := access(right[0], right[1], right[2]); got != want {
			t.Errorf("%v: %t", right, got)
		}
	}
}

// TestUninstall: what was applied is deleted, as kubectl delete -k does, and so are the labels of
// nodes. Nothing is left, and NodeStatus counts.
func TestUninstall(t *testing.T) {
	config, err := c.RESTConfig()
	must(t, err)
	all, err := client.New(config, client.Options{})
	must(t, err)
	var deleted []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(installed), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); err != nil {
			break
		}
		must(t, all.Delete(t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		deleted = append(deleted, object)
	}
	if len(deleted) < 8 {
		t.Fatalf("only %d objects were installed", len(deleted))
	}
	livetest.Eventually(t, 2*time.Minute, "nothing is left", func(ctx context.Context) error {
		for _, object := range deleted {
			if err := all.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopy()); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s is left, or cannot be looked for: %w", object.GetKind(), object.GetName(), cmp.Or(err, errors.New("it was found")))
			}
		}
		if err := objects.List(ctx, &v1alpha1.NodeLayersList{}); !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			return fmt.Errorf("NodeLayers: %w", cmp.Or(err, errors.New("they are still served")))
		}
		pods, err := lab.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labelled})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	livetest.Eventually(t, 3*renew+seen, "no agent counts", func(ctx context.Context) error {
		got, err := state(ctx)
		if err == nil && got["fresh"] != 0 {
			err = fmt.Errorf("%v", got)
		}
		return err
	})
	for _, node := range c.Nodes() {
		unlabel(t, node.Name)
		object, err := lab.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
		must(t, err)
		for _, left := range []map[string]string{object.Labels, object.Annotations} {
			for key := range left {
				if strings.Contains(key, v1alpha1.GroupVersion.Group) {
					t.Errorf("%s still has %s", node.Name, key)
				}
			}
		}
		// The brackets keep the pattern from finding itself.
		if out, err := node.Exec(t.Context(), "pgrep", "-a", "-f", "[l]ayer-agent"); err == nil && strings.TrimSpace(string(out)) != "" {
			t.Errorf("%s: %s", node.Name, out)
		}
	}
}
