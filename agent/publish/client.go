package publish

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Client writes NodeLayers. It does not try again itself, and the apiserver answers with metadata
// alone: the lists, of up to 128 KiB, need not come back.
type Client struct{ rest rest.Interface }

// onlyMetadata is the media type of answers: see "Receiving resources as Table and
// PartialObjectMetadata" in https://kubernetes.io/docs/reference/using-api/api-concepts/.
const onlyMetadata = runtime.ContentTypeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// NewClient returns a client of NodeLayers.
func NewClient(base *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(base)
	config.APIPath, config.GroupVersion = "/apis", &v1alpha1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, onlyMetadata
	config.Timeout = requestTimeout
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}

// Update replaces an object and returns its new resourceVersion.
func (c *Client) Update(ctx context.Context, object *v1alpha1.NodeLayers, token string) (string, error) {
	return send(ctx, c.rest.Put().Name(object.Name).Body(object), token)
}

// Create creates an object and returns its resourceVersion.
func (c *Client) Create(ctx context.Context, object *v1alpha1.NodeLayers, token string) (string, error) {
	return send(ctx, c.rest.Post().Body(object), token)
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, name, token string) error {
	_, err := send(ctx, c.rest.Delete().Name(name), token)
	return err
}

// send sends a request with a token, or with what the configuration has if that is empty.
func send(ctx context.Context, request *rest.Request, token string) (version string, err error) {
	if token != "" {
		request.SetHeader("Authorization", "Bearer "+token)
	}
	text, err := request.Resource(v1alpha1.NodeLayersResource.Resource).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var answer metav1.PartialObjectMetadata
	err = json.Unmarshal(text, &answer)
	return answer.ResourceVersion, err
}
