package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// SecondScheduler is the name of the scheduler that deploy/scheduler/second-scheduler installs,
// and of its objects.
const SecondScheduler = "layer-locality-scheduler"

// PushProgram pushes an image of one of our programs to the cluster's registry. root is the folder
// of the repository.
func PushProgram(ctx context.Context, c *cluster.Cluster, root, name string) (*images.Pushed, error) {
	binary, err := os.ReadFile(filepath.Join(root, "_build", "bin", "patched", name))
	if err != nil {
		return nil, fmt.Errorf("%w: scripts/build.sh patched %s makes it", err, name)
	}
	path := "/usr/local/bin/" + name
	image, err := images.Build(images.Image{Entrypoint: []string{path}, Layers: []images.Layer{{Name: name, Files: map[string][]byte{path: binary}}}})
	if err != nil {
		return nil, err
	}
	return images.Push(ctx, c.Registry().Address+"/"+name+":v1", image)
}

// SchedulerObjects returns what a user applies for the second scheduler, with one replica and an
// image that was pushed. root is the folder of the repository.
func SchedulerObjects(root string, image *images.Pushed) ([]*unstructured.Unstructured, error) {
	return kustomize.Build(filepath.Join(root, "deploy", "scheduler", "second-scheduler"), map[string]any{
		"images":   []any{kustomize.Image(kustomize.Shipped+"kube-scheduler", image.Reference+"@"+image.Digest.String())},
		"replicas": []any{map[string]any{"name": SecondScheduler, "count": 1}},
	})
}

// Apply applies objects; those that name no namespace in that of the agents.
func (l *Lab) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		text, err := object.MarshalJSON()
		if err != nil {
			return err
		}
		if err := l.Cluster.Apply(ctx, AgentNamespace, text); err != nil {
			return err
		}
	}
	return nil
}

// AppReady waits until so many pods of an application are ready, in the namespace of the agents.
func (l *Lab) AppReady(ctx context.Context, name string, n int) error {
	return Poll(ctx, func(ctx context.Context) error {
		list, err := l.Client.CoreV1().Pods(AgentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
		if err != nil {
			return err
		}
		ready, why := 0, ""
		for _, pod := range list.Items {
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
			for _, status := range pod.Status.ContainerStatuses {
				if !status.Ready {
					why += fmt.Sprintf(" %s on %s: %+v", status.Name, pod.Spec.NodeName, status.State)
				}
			}
		}
		if ready < n {
			return fmt.Errorf("%d of %d pods of %s are ready:%s", ready, n, name, why)
		}
		return nil
	})
}

// KubectlLayers runs kubectl layers with an admin's rights, and returns what it prints. root is
// the folder of the repository.
func (l *Lab) KubectlLayers(ctx context.Context, root string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, filepath.Join(root, "_build", "bin", "patched", "kubectl-layers"), append(args, "--kubeconfig", l.Cluster.Kubeconfig())...)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("kubectl layers %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.Bytes(), nil
}

// AskKubectlLayers runs kubectl layers, and reads its answer into the structure that the command
// prints as JSON: see the packages below kubectllayers.
func (l *Lab) AskKubectlLayers(ctx context.Context, root string, answer any, args ...string) error {
	out, err := l.KubectlLayers(ctx, root, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, &struct {
		Answer any `json:"answer"`
	}{answer})
}
