// Package template is an agent of layer-extender: a plugin that gives every node the same points.
package template

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the name of the plugin.
const Name = "Template"

// Template is the plugin.
type Template struct{}

var (
	_ fwk.FilterPlugin = Template{}
	_ fwk.ScorePlugin  = Template{}
	_ fwk.SignPlugin   = Template{}
)

// New makes the plugin. It has no arguments.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return Template{}, nil }

// Name returns the name of the plugin.
func (Template) Name() string { return Name }

// Filter returns nil for a node to which the pod may go, and otherwise why it may not.
func (Template) Filter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
	return nil
}

// Score returns the points of a node, from 0 to 100.
func (Template) Score(_ context.Context, _ fwk.CycleState, _ *v1.Pod, _ fwk.NodeInfo) (int64, *fwk.Status) {
	return fwk.MaxScore / 10, nil
}

// ScoreExtensions returns nil: points stay as they are.
func (Template) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod returns what the decisions above depend on in a pod, here nothing: kube-scheduler may place pods with the
// same signatures in a batch. One plugin of a profile without this method has it place every pod alone (KEP-5598).
func (Template) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) { return nil, nil }
