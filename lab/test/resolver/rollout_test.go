//go:build e2e

package resolver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestRollingUpdate updates a Deployment, whose pods and base are on one node, to
// tags that no node has pulled: three times, with stock for comparison.
func TestRollingUpdate(t *testing.T) {
	const holder, replicas, updates = "n1", 2, 3
	rows := [][]string{{"scheduler", "tag", "nodes", "pulled"}}
	for _, way := range []struct {
		name, short, scheduler string
		// paused: the rollout is paused until the resolver has the image.
		paused, local bool
	}{
		{"LayerLocality, rollout paused until the image is known", "roll-paused", scenario.Layers, true, true},
		{"LayerLocality, waitForManifest", "roll-waits", patient, false, true},
		{"stock", "roll-stock", scenario.Stock, false, false},
	} {
		shared := base(way.short)
		first := holds(t, holder, shared)
		// At the beginning all are equal: the pods are where their image is.
		deployment := scenario.Deployment(way.short, replicas, scenario.Pod{Image: first.Reference, Scheduler: scenario.Layers})
		deployments := lab.Client.AppsV1().Deployments(deployment.Namespace)
		livetest.WithdrawAtEnd(t, lab, way.short)
		_, err := deployments.Create(t.Context(), deployment, metav1.CreateOptions{})
		must(t, err)
		if nodes := rolledOut(t, way.short, first.Reference); slices.ContainsFunc(nodes, func(node string) bool { return node != holder }) {
			t.Fatalf("%s: the image is on %s, the first pods are on %v", way.name, holder, nodes)
		}

		patch := func(spec string) {
			_, err := deployments.Patch(t.Context(), way.short, types.StrategicMergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
			must(t, err)
		}
		for i := range updates {
			tag := fmt.Sprintf("%s:v%d", way.short, i+1)
			image, err := scenario.PushOnBase(t.Context(), c, tag, shared, ownBytes)
			must(t, err)
			before, err := scenario.Pulled(c, way.short)
			must(t, err)
			if way.paused {
				patch(`{"paused":true}`)
			}
			patch(fmt.Sprintf(`{"template":{"spec":{"schedulerName":%q,"containers":[{"name":"main","image":%q}]}}}`, way.scheduler, image.Reference))
			if way.paused {
				must(t, lab.Present(t.Context(), image.Reference, holder, baseBytes))
				patch(`{"paused":false}`)
			}
			nodes := rolledOut(t, way.short, image.Reference)
			after, err := scenario.Pulled(c, way.short)
			must(t, err)
			pulled := after.Total() - before.Total()
			rows = append(rows, []string{way.name, tag, strings.Join(nodes, ", "), livetest.Megabytes(pulled)})
			if !way.local {
				continue
			}
			if slices.ContainsFunc(nodes, func(node string) bool { return node != holder }) {
				t.Errorf("%s: the base is on %s, the new pods are on %v", way.name, holder, nodes)
			}
			if pulled < ownBytes || pulled > ownBytes+tolerance {
				t.Errorf("%s: %d bytes pulled, the image has %d of its own", way.name, pulled, ownBytes)
			}
		}
	}
	livetest.Table(t, rows...)
}

// rolledOut waits until all pods of a Deployment have the image and no others are
// left, and returns their nodes.
func rolledOut(t *testing.T, name, image string) (nodes []string) {
	t.Helper()
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		deployment, err := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		nodes = nil
		for _, pod := range pods.Items {
			if pod.Spec.Containers[0].Image != image {
				return fmt.Errorf("pod %s still has %s", pod.Name, pod.Spec.Containers[0].Image)
			}
			nodes = append(nodes, pod.Spec.NodeName)
		}
		if want := *deployment.Spec.Replicas; len(nodes) != int(want) || deployment.Status.ReadyReplicas != want || deployment.Status.UpdatedReplicas != want {
			status, _ := json.Marshal(deployment.Status)
			return fmt.Errorf("deployment %s: %s", name, status)
		}
		return nil
	}))
	return nodes
}
