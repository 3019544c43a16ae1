package scenario

import (
	"context"
	"fmt"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// Agent is the name of layer-agent's objects, AgentNamespace where they are.
const (
	Agent          = "layer-agent"
	AgentNamespace = "kube-system"
)

// RuntimeLabel is the label by which the overlay mixed of deploy/agent selects nodes, and that of
// its DaemonSets.
const RuntimeLabel = "layerlocality.io/runtime"

// mixed is the overlay of deploy/agent for several container runtimes.
const mixed = "mixed"

// Overlay returns the overlay of deploy/agent for a node, which is also the value of its label.
func Overlay(node *cluster.Node) string {
	if node.ContainerRuntime() == cluster.CRIO {
		return "cri-o"
	}
	return "containerd"
}

// LabelRuntimes gives nodes the label that mixed needs, also one that was made again.
func (l *Lab) LabelRuntimes(ctx context.Context) error {
	for _, node := range l.Cluster.Nodes() {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, RuntimeLabel, Overlay(node))
		if _, err := l.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("label node %s: %w", node.Name, err)
		}
	}
	return nil
}

// Agents returns what a user applies for layer-agent, with an image that was pushed, and further
// arguments of the container that writes. root is the folder of the repository. On a cluster with
// several container runtimes that is the overlay mixed, and the nodes get its label.
func (l *Lab) Agents(ctx context.Context, root string, image *images.Pushed, publishArgs ...string) ([]*unstructured.Unstructured, error) {
	overlay := ""
	for _, node := range l.Cluster.Nodes() {
		if of := Overlay(node); overlay == "" {
			overlay = of
		} else if overlay != of {
			overlay = mixed
		}
	}
	if overlay == mixed {
		if err := l.LabelRuntimes(ctx); err != nil {
			return nil, err
		}
	}
	built, err := kustomize.Build(filepath.Join(root, "deploy", "agent", overlay), map[string]any{
		"images": []any{kustomize.Image(kustomize.Shipped+Agent, image.Reference+"@"+image.Digest.String())},
	})
	if err != nil {
		return nil, err
	}
	return built, AgentArgs(built, "publish", publishArgs...)
}

// AgentArgs gives a container of layer-agent further arguments, in all DaemonSets among objects.
func AgentArgs(objects []*unstructured.Unstructured, container string, args ...string) error {
	for _, object := range objects {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		var set appsv1.DaemonSet
		if err := kruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set); err != nil {
			return err
		}
		for i := range set.Spec.Template.Spec.Containers {
			if c := &set.Spec.Template.Spec.Containers[i]; c.Name == container {
				c.Args = append(c.Args, args...)
			}
		}
		content, err := kruntime.DefaultUnstructuredConverter.ToUnstructured(&set)
		if err != nil {
			return err
		}
		unstructured.RemoveNestedField(content, "status")
		object.Object = content
	}
	return nil
}
