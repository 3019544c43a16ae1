package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// mostEvents are written at once, and one more every eventsEvery.
	mostEvents, eventsEvery = 10, 6 * time.Minute
	// eventTime is what an apiserver has to take one.
	eventTime = 10 * time.Second
)

// Events are written on the Nodes of peers that sent something else. The nil Events are not.
type Events struct {
	client rest.Interface
	self   string
	limit  *rate.Limiter
}

// NewEvents returns those of the node with that name.
func NewEvents(base *rest.Config, self string) (*Events, error) {
	config := rest.CopyConfig(base)
	config.APIPath, config.GroupVersion = "/api", &schema.GroupVersion{Version: "v1"}
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	return &Events{client: client, self: self, limit: rate.NewLimiter(rate.Every(eventsEvery), mostEvents)}, err
}

// wrong writes that a node sent something else, unless there were too many.
func (e *Events) wrong(ctx context.Context, node, layer string) {
	if e == nil || !e.limit.Allow() {
		return
	}
	now := metav1.Now()
	text, err := json.Marshal(map[string]any{ // without k8s.io/api, which layer-agent does not have
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"generateName": "layer-agent-", "namespace": metav1.NamespaceDefault},
		// kubectl describe node looks for the name where others have a UID, as kubelets write it.
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
		"type":           "Warning", "reason": "WrongLayer",
		"message":        fmt.Sprintf("Node %s got something else for layer %s, and will not ask this node for layers for %s", e.self, layer, wrongPause),
		"source":         map[string]any{"component": "layer-agent", "host": e.self},
		"firstTimestamp": now, "lastTimestamp": now, "count": 1,
	})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, eventTime)
		defer cancel()
		err = e.client.Post().Namespace(metav1.NamespaceDefault).Resource("events").SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Error()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "No event on the Node of a peer", "node", node)
	}
}
