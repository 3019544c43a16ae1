// Package nodeimages reads image layers from a Node. The types of the stock
// client do not have them, so it reads the object's JSON.
package nodeimages

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/client-go/kubernetes"
)

// Image is an entry of NodeStatus.images.
type Image struct {
	Names []string `json:"names"`
	// SizeBytes is the uncompressed size of the image.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Layers are sorted by digest; small ones may be missing.
	Layers []Layer `json:"layers,omitempty"`
}

// Layer is a layer of an image as the Node states it.
type Layer struct {
	Digest string `json:"digest"`
	// SizeBytes is the compressed size.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
}

// Get returns the images in the status of the named Node.
func Get(ctx context.Context, client kubernetes.Interface, node string) ([]Image, error) {
	data, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	var object struct {
		Status struct {
			Images []Image `json:"images"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return object.Status.Images, nil
}
