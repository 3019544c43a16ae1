package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/deploy/resolver"
)

const (
	resolverMetrics = "8080"
	resolverProbes  = "8081"
	// resolverNamespace is where deploy/resolver installs it.
	resolverNamespace = "kube-system"
	// resolverUser is the service account of deploy/resolver. A certificate with
	// that name is bound to its roles as a token would be.
	resolverUser = "system:serviceaccount:" + resolverNamespace + ":layer-resolver"
)

// resolverGroups are those of every service account of the namespace.
var resolverGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + resolverNamespace}

// Resolver is layer-resolver, nil in a cluster without. It has the rights of
// deploy/resolver and no others; those of components/pull-secrets come with
// Apply.
func (c *Cluster) Resolver() *Process { return c.process["layer-resolver"] }

// ResolverURL is where the resolver serves its metrics, without a path.
func (c *Cluster) ResolverURL() string {
	return "http://" + net.JoinHostPort(c.address().String(), resolverMetrics)
}

// HostAddress is that of this machine in the cluster's network: what listens
// there is reached from all of the cluster. Registries there, on any port, are
// taken to speak plain HTTP.
func (c *Cluster) HostAddress() netip.Addr { return host(c.subnet, 2).Addr() }

func (c *Cluster) resolverArguments(settings Component) ([]string, error) {
	return []string{
		"run",
		"--kubeconfig=" + c.path("pki", "layer-resolver.kubeconfig"),
		"--registries-conf=" + c.path("config", "registries.conf"),
		// Its addresses are none of the Internet.
		"--allow-network=" + c.subnet.String(),
		"--metrics-bind-address=" + net.JoinHostPort(c.address().String(), resolverMetrics),
		"--health-probe-bind-address=" + net.JoinHostPort(c.address().String(), resolverProbes),
	}, noConfig(settings)
}

// installResolver applies what layer-resolver and the scheduler need of
// deploy/resolver.
func (c *Cluster) installResolver(ctx context.Context, kube kubernetes.Interface) error {
	manifests := slices.Concat(resolver.CRD, []byte("\n---\n"), resolver.RBAC, []byte("\n---\n"), resolver.Readers)
	if err := c.Apply(ctx, resolverNamespace, manifests); err != nil {
		return fmt.Errorf("deploy/resolver: %w", err)
	}
	resource := v1alpha1.ImageManifestsResource
	return poll(ctx, resource.GroupResource().String(), func(ctx context.Context) error {
		return kube.Discovery().RESTClient().Get().AbsPath("/apis", resource.Group, resource.Version, resource.Resource).Do(ctx).Error()
	})
}

// Apply makes the objects of YAML documents, or brings them to what is written
// there, as "kubectl apply --server-side" does. Those that name no namespace but
// are in one are made in the one given.
func (c *Cluster) Apply(ctx context.Context, namespace string, manifests []byte) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	writer, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := new(unstructured.Unstructured)
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(object.Object) == 0:
			continue // nothing but comments
		}
		what := fmt.Sprintf("%s %s", object.GetKind(), object.GetName())
		namespaced, err := writer.IsObjectNamespaced(object)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
		if err := writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("layer-locality"), client.ForceOwnership); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
