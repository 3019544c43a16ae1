package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// PushOnBase pushes an image to the cluster's registry ("app:v1"): a base that
// others share, and its own layer. Sizes are approximate compressed bytes.
func PushOnBase(ctx context.Context, c *cluster.Cluster, name string, base images.Layer, ownBytes int64) (*images.Pushed, error) {
	image, err := images.Build(images.Image{Layers: []images.Layer{base, {Name: "of " + name, Size: ownBytes}}})
	if err != nil {
		return nil, err
	}
	return images.Push(ctx, c.Registry().Address+"/"+name, image)
}

// Deployment describes a Deployment in the namespace default: one container for
// each image.
func Deployment(name string, replicas int32, pod Pod, more ...string) *appsv1.Deployment {
	object, labels := pod.object(), map[string]string{"app": name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: object.Spec}
	for i, image := range more {
		template.Spec.Containers = append(template.Spec.Containers, corev1.Container{Name: fmt.Sprintf("more-%d", i+1), Image: image})
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template,
		},
	}
}

// Announce makes a Deployment of such pods with the pod's name, but without
// replicas: layer-resolver learns of the images, nodes do not.
func (l *Lab) Announce(ctx context.Context, pod Pod, more ...string) error {
	deployment := Deployment(pod.Name, 0, pod, more...)
	_, err := l.Client.AppsV1().Deployments(deployment.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
	return err
}

// Manifest returns the ImageManifest that has the full reference; nil if none has
// it.
func (l *Lab) Manifest(ctx context.Context, reference string) (*v1alpha1.ImageManifest, error) {
	var list v1alpha1.ImageManifestList
	if err := l.Objects.List(ctx, &list); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Items, func(m v1alpha1.ImageManifest) bool {
		return slices.ContainsFunc(m.Status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
	})
	if i < 0 {
		return nil, nil
	}
	return &list.Items[i], nil
}

// RemoveManifests removes all ImageManifests, and the Lease of layer-resolver: what a cluster
// never had that is without one.
func (l *Lab) RemoveManifests(ctx context.Context) error {
	err := l.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, addons.LayerResolver, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return l.Objects.DeleteAllOf(ctx, &v1alpha1.ImageManifest{})
}

// Resolved waits until ImageManifests have the layers of the references.
func (l *Lab) Resolved(ctx context.Context, references ...string) error {
	for _, reference := range references {
		err := Poll(ctx, func(ctx context.Context) error {
			manifest, err := l.Manifest(ctx, reference)
			if err != nil {
				return err
			}
			if manifest == nil || !meta.IsStatusConditionTrue(manifest.Status.Conditions, v1alpha1.ConditionResolved) {
				return fmt.Errorf("%s is not resolved: %s", reference, describeManifest(manifest))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Failed waits until an ImageManifest states that the reference was not resolved,
// with the given reason.
func (l *Lab) Failed(ctx context.Context, reference, reason string) (manifest *v1alpha1.ImageManifest, condition *metav1.Condition, err error) {
	err = Poll(ctx, func(ctx context.Context) (err error) {
		if manifest, err = l.Manifest(ctx, reference); err != nil {
			return err
		}
		if manifest != nil {
			condition = meta.FindStatusCondition(manifest.Status.Conditions, v1alpha1.ConditionResolved)
		}
		if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != reason {
			return fmt.Errorf("%s is not unresolved for the reason %s: %s", reference, reason, describeManifest(manifest))
		}
		return nil
	})
	return manifest, condition, err
}

func describeManifest(manifest *v1alpha1.ImageManifest) string {
	if manifest == nil {
		return "no ImageManifest has it"
	}
	var text []string
	for _, condition := range manifest.Status.Conditions {
		text = append(text, fmt.Sprintf("%s=%s %s %s", condition.Type, condition.Status, condition.Reason, condition.Message))
	}
	return manifest.Name + " " + strings.Join(text, ", ")
}

// Known waits until the scheduler has the layers of an image.
func (l *Lab) Known(ctx context.Context, image string) error { return l.Present(ctx, image, "", 0) }

// Present waits until the scheduler has the layers of an image, and counts at least
// atLeast bytes of them as present on a node.
func (l *Lab) Present(ctx context.Context, image, node string, atLeast int64) error {
	return Poll(ctx, func(ctx context.Context) error {
		ratings, err := l.Rate(ctx, image)
		if err != nil {
			return err
		}
		rating, _ := ratings.Node(node)
		if known := ratings.Images[0].Known; known != "layers" || rating.PresentBytes < atLeast {
			return fmt.Errorf("the scheduler has of %s: %s, and %d bytes on %s, want %d", image, known, rating.PresentBytes, node, atLeast)
		}
		return nil
	})
}

// Hold makes the pod's node pull its image, removes the pod, and waits until the
// scheduler counts so many bytes of the image as present on the node. First, a
// Deployment of the same name, which stays, makes the resolver ask for the image:
// when a pod has started, the scheduler counts only the layers as present that it
// had before.
func (l *Lab) Hold(ctx context.Context, pod Pod, bytes int64) error {
	if err := l.Announce(ctx, pod); err != nil {
		return err
	}
	if err := l.Known(ctx, pod.Image); err != nil {
		return err
	}
	if err := l.Submit(ctx, pod); err != nil {
		return err
	}
	if err := l.Ready(ctx, pod.Name); err != nil {
		return err
	}
	if err := l.Remove(ctx, pod.Name); err != nil {
		return err
	}
	return l.Present(ctx, pod.Image, pod.Node, bytes)
}

// ManifestTable returns what "kubectl get imagemanifests" prints about the
// references: the names of the columns, and a row for each ImageManifest.
func (l *Lab) ManifestTable(ctx context.Context, references ...string) ([][]string, error) {
	resource := v1alpha1.ImageManifestsResource
	var table metav1.Table
	err := l.Client.Discovery().RESTClient().Get().AbsPath("/apis", resource.Group, resource.Version, resource.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Into(&table)
	if err != nil {
		return nil, err
	}
	pick := func(cell func(i int) string) []string {
		var row []string
		for i, column := range table.ColumnDefinitions {
			if column.Priority == 0 {
				row = append(row, cell(i))
			}
		}
		return row
	}
	rows := [][]string{pick(func(i int) string { return strings.ToUpper(table.ColumnDefinitions[i].Name) })}
	for _, row := range table.Rows {
		if slices.ContainsFunc(row.Cells, func(cell any) bool { s, ok := cell.(string); return ok && slices.Contains(references, s) }) {
			rows = append(rows, pick(func(i int) string {
				if row.Cells[i] == nil {
					return ""
				}
				return fmt.Sprint(row.Cells[i])
			}))
		}
	}
	return rows, nil
}

// Way is a way of scheduling pods.
type Way struct {
	Name string
	// Short is the Name in names of objects.
	Short     string
	Scheduler string
	// Resolver reports whether layer-resolver runs.
	Resolver bool
}

// Ways are compared, in this order, because once pods of other ways have run, the
// scheduler remembers for a while that their nodes had the base too.
var Ways = []Way{
	{"LayerLocality with layer-resolver", "known", Layers, true},
	{"LayerLocality alone", "alone", Layers, false},
	{"stock", "stock", Stock, false},
}

// NeverPulled pushes n images, NAME-1:v1 and so on, that no node has, on a base
// that one node has. If the resolver runs in that way, a Deployment NAME without
// replicas names the images, and NeverPulled waits until the scheduler has
// their layers. If not, the resolver is stopped.
func (l *Lab) NeverPulled(ctx context.Context, way Way, name string, n int, base images.Layer, ownBytes int64, holder string) ([]*images.Pushed, error) {
	all, references := make([]*images.Pushed, n), make([]string, n)
	for i, name := range Names(name, n) {
		var err error
		if all[i], err = PushOnBase(ctx, l.Cluster, name+":v1", base, ownBytes); err != nil {
			return nil, err
		}
		references[i] = all[i].Reference
	}
	if !way.Resolver {
		return all, l.Cluster.Addon(addons.LayerResolver).Stop(ctx)
	}
	if err := l.Announce(ctx, Pod{Name: name, Image: references[0]}, references[1:]...); err != nil {
		return nil, err
	}
	if err := l.Resolved(ctx, references...); err != nil {
		return nil, err
	}
	for _, reference := range references {
		if err := l.Present(ctx, reference, holder, base.Size); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Started is the outcome of pods that were started together.
type Started struct {
	// Nodes of the pods, in the order of their images.
	Nodes []string
	// Pulled has compressed bytes by node.
	Pulled Bytes
}

// Together starts a pod with each image at the same time, waits until all are
// ready, and then removes pods and images, so that the next ones find the nodes
// unchanged.
func (l *Lab) Together(ctx context.Context, name, scheduler string, all []*images.Pushed) (Started, error) {
	started := Started{Pulled: Bytes{}}
	names := Names(name, len(all))
	for i, image := range all {
		if err := l.Submit(ctx, Pod{Name: names[i], Image: image.Reference, Scheduler: scheduler}); err != nil {
			return started, err
		}
	}
	if err := l.Ready(ctx, names...); err != nil {
		return started, err
	}
	nodes, err := l.Placed(ctx, names...)
	if err != nil {
		return started, err
	}
	for i, image := range all {
		started.Nodes = append(started.Nodes, nodes[names[i]])
		pulled, err := Pulled(l.Cluster, Repository(image))
		if err != nil {
			return started, err
		}
		for node, bytes := range pulled {
			started.Pulled[node] += bytes
		}
	}
	if err := l.Remove(ctx, names...); err != nil {
		return started, err
	}
	for i, image := range all {
		if err := l.RemoveImage(ctx, started.Nodes[i], image.Reference); err != nil {
			return started, err
		}
	}
	return started, nil
}
