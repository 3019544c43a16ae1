package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Apply creates or updates the objects of YAML documents, as "kubectl apply
// --server-side" does. Namespaced objects that do not name a namespace go into
// the one given.
func (c *Cluster) Apply(ctx context.Context, namespace string, manifests []byte) error {
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	writer, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	for _, object := range objects {
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
	return nil
}

// decode reads the objects of YAML documents.
func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := new(unstructured.Unstructured)
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(object.Object) > 0: // not only comments
			objects = append(objects, object)
		}
	}
}
