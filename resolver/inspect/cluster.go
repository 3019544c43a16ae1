package inspect

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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// Inventory is the set of images in a cluster, and what the cluster has about
// them.
type Inventory struct {
	// Images are the image names in pods and pod templates. A name may occur more
	// than once.
	Images []string
	// Nodes has all names of each image on a node.
	Nodes [][]string
	// Manifests are the ImageManifests. There are none without layer-resolver.
	Manifests []v1alpha1.ImageManifest
}

// RESTConfig returns the client configuration for the cluster of a kubeconfig
// file. If kubeconfig is empty, it uses $KUBECONFIG, ~/.kube/config, or the
// pod's service account. It fails if none of them exists.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster: %w", err)
	}
	// No client-side rate limit: the API server has priority and fairness, and
	// callers limit their concurrent requests.
	config.QPS = -1
	return config, nil
}

// ClusterInventory reads the Inventory of a cluster.
func ClusterInventory(ctx context.Context, config *rest.Config) (Inventory, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return Inventory{}, err
		}
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return Inventory{}, fmt.Errorf("no cluster: %w", err)
	}
	return ReadInventory(ctx, reader)
}

// ReadInventory is like ClusterInventory, but takes a client that has the
// built-in resources and ours. It fails if a kind cannot be read in full,
// except for ImageManifests if the cluster does not have that resource.
func ReadInventory(ctx context.Context, reader client.Reader) (found Inventory, err error) {
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{},
		&batchv1.JobList{}, &batchv1.CronJobList{}, &corev1.NodeList{}, &v1alpha1.ImageManifestList{},
	} {
		// Read in pages: the list of 5,000 nodes with their images is large.
		pages := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
			page := list.DeepCopyObject().(client.ObjectList)
			return page, reader.List(ctx, page, &client.ListOptions{Limit: options.Limit, Continue: options.Continue})
		}))
		err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
			found.add(object)
			return nil
		})
		if _, ours := list.(*v1alpha1.ImageManifestList); ours && meta.IsNoMatchError(err) {
			continue // without a resolver there is no such resource
		}
		if err != nil {
			return Inventory{}, fmt.Errorf("cannot read the cluster: %w", err)
		}
	}
	return found, nil
}

func (i *Inventory) add(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		i.addPod(&o.Spec)
		// Ephemeral containers are added to a pod that already has a node. Placement
		// ignores them, but the cluster runs their images.
		for _, container := range o.Spec.EphemeralContainers {
			i.Images = append(i.Images, container.Image)
		}
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
			i.Nodes = append(i.Nodes, image.Names)
		}
	case *v1alpha1.ImageManifest:
		i.Manifests = append(i.Manifests, *o)
	}
}

func (i *Inventory) addPod(spec *corev1.PodSpec) {
	for _, image := range imageref.PulledByPod(spec) {
		i.Images = append(i.Images, image.Name)
	}
}
