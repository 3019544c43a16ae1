package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// inventory is which images there are, and what is known of them.
type inventory struct {
	// images by names as in pods.
	images []string
	// nodes has all names of each image on a node.
	nodes     [][]string
	manifests []v1alpha1.ImageManifest
}

// clusterInventory reads the inventory of a cluster.
func clusterInventory(ctx context.Context, kubeconfig string) (inventory, error) {
	config, err := (&runOptions{kubeconfig: kubeconfig}).restConfig()
	if err != nil {
		return inventory{}, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return inventory{}, err
		}
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return inventory{}, fmt.Errorf("no cluster: %w", err)
	}
	return readInventory(ctx, reader)
}

func readInventory(ctx context.Context, reader client.Reader) (found inventory, err error) {
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{},
		&batchv1.JobList{}, &batchv1.CronJobList{}, &corev1.NodeList{}, &v1alpha1.ImageManifestList{},
	} {
		// In pages: of 5,000 nodes with their images, the whole list is large.
		pages := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
			page := list.DeepCopyObject().(client.ObjectList)
			return page, reader.List(ctx, page, &client.ListOptions{Limit: options.Limit, Continue: options.Continue})
		}))
		err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
			found.add(object)
			return nil
		})
		if _, ours := list.(*v1alpha1.ImageManifestList); ours && meta.IsNoMatchError(err) {
			continue // without a resolver there are none
		}
		if err != nil {
			return inventory{}, fmt.Errorf("cannot read the cluster: %w", err)
		}
	}
	return found, nil
}

func (i *inventory) add(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		i.addPod(&o.Spec)
	case *appsv1.Deployment:
		i.addPod(&o.Spec.Template.Spec)
	case *appsv1.StatefulSet:
		i.addPod(&o.Spec.Template.Spec)
	case *appsv1.DaemonSet:
		i.addPod(&o.Spec.Template.Spec)
	case *batchv1.Job:
		i.addPod(&o.Spec.Template.Spec)
	case *batchv1.CronJob:
		i.addPod(&o.Spec.JobTemplate.Spec.Template.Spec)
	case *corev1.Node:
		for _, image := range o.Status.Images {
			i.nodes = append(i.nodes, image.Names)
		}
	case *v1alpha1.ImageManifest:
		i.manifests = append(i.manifests, *o)
	}
}

func (i *inventory) addPod(spec *corev1.PodSpec) {
	add := func(image string) {
		if image != "" { // templates may leave it to who uses them
			i.images = append(i.images, image)
		}
	}
	for _, container := range spec.InitContainers {
		add(container.Image)
	}
	for _, container := range spec.Containers {
		add(container.Image)
	}
	for _, container := range spec.EphemeralContainers {
		add(container.Image)
	}
	for _, volume := range spec.Volumes {
		if volume.Image != nil {
			add(volume.Image.Reference)
		}
	}
}
