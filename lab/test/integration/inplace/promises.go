//go:build inplace

// Package plugins is put into upstream's package of that name by ../upstream.sh: QosAware
// under the names of the plugins that it replaces.
package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/qosaware"
)

// promises makes the plugins of one scheduler.
type promises struct{ *qosaware.Factory }

func newPromises() promises { return promises{qosaware.NewFactory()} }

// sorting is QosAware in place of PrioritySort. It has only that method, or the framework
// would enable it at more points.
type sorting struct{ *promised }

func (sorting) Name() string { return queuesort.Name }

func (p sorting) Less(a, b fwk.QueuedPodInfo) bool { return p.plugin.Less(a, b) }

// preempting is QosAware in place of DefaultPreemption, with its name.
type preempting struct {
	*defaultpreemption.DefaultPreemption
	*promised
}

func (p preempting) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	return p.plugin.PostFilter(ctx, state, pod, nodes)
}

func (p preempting) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return p.plugin.Reserve(ctx, state, pod, node)
}

func (p preempting) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	p.plugin.Unreserve(ctx, state, pod, node)
}

func (p preempting) PostBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	p.plugin.PostBind(ctx, state, pod, node)
}

// promised hides the plugin's other methods.
type promised struct{ plugin *qosaware.QosAware }

func (p promises) sort(ctx context.Context, _ apiruntime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	plugin, err := p.make(ctx, handle)
	return sorting{&promised{plugin}}, err
}

func (p promises) preempt(ctx context.Context, _ apiruntime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	plugin, err := p.make(ctx, handle)
	if err != nil {
		return nil, err
	}
	return preempting{plugin.DefaultPreemption, &promised{plugin}}, nil
}

func (p promises) make(ctx context.Context, handle fwk.Handle) (*qosaware.QosAware, error) {
	unset, args := &configv1.QosAwareArgs{}, &config.QosAwareArgs{}
	configscheme.Scheme.Default(unset)
	if err := configscheme.Scheme.Convert(unset, args, nil); err != nil {
		return nil, err
	}
	plugin, err := p.New(ctx, args, handle)
	if err != nil {
		return nil, err
	}
	return plugin.(*qosaware.QosAware), nil
}

// NewPreemption returns what of QosAware stands for upstream's DefaultPreemption, as that
// type: for a test that makes upstream's plugin itself. The arguments are upstream's.
func NewPreemption(ctx context.Context, _ apiruntime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	plugin, err := newPromises().make(ctx, handle)
	if err != nil {
		return nil, err
	}
	return plugin.DefaultPreemption, nil
}
