package qosaware

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeschedulerscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme" // kube-scheduler decodes the arguments
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

// Factory makes the plugin, once for each profile that enables it. All of them share one
// ledger, because they share one queue.
type Factory struct {
	mu   sync.Mutex           // one profile after the other
	host atomic.Pointer[host] // nil before the first profile
}

// NewFactory returns a Factory for one scheduler.
func NewFactory() *Factory { return &Factory{} }

// New makes the plugin of a profile; it is the factory function that kube-scheduler needs.
func (f *Factory) New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, ok := object.(*config.QosAwareArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s: want QosAwareArgs, got %T", Name, object)
	}
	if err := validation.QosAwareArgs(args); err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	shared := f.host.Load()
	switch {
	case shared == nil:
		var err error
		if shared, err = newHost(ctx, args, handle, f.DebugHandler()); err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
		f.host.Store(shared)
	case shared.informers != handle.SharedInformerFactory():
		return nil, fmt.Errorf("%s: one Factory serves one scheduler: make another with NewFactory", Name)
	case !equality.Semantic.DeepEqual(shared.args, args):
		return nil, fmt.Errorf("arguments of %s in profile %s: all profiles need the same, because they share one queue", Name, handle.ProfileName())
	}
	upstream, err := newUpstream(ctx, handle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	shared.profiles.Store(handle.ProfileName(), nil)
	return newPlugin(shared, upstream, handle), nil
}

// newUpstream returns upstream's preemption, with its default arguments.
func newUpstream(ctx context.Context, handle fwk.Handle) (*defaultpreemption.DefaultPreemption, error) {
	defaults, args := &kubeschedulerv1.DefaultPreemptionArgs{}, &kubescheduler.DefaultPreemptionArgs{}
	kubeschedulerscheme.Scheme.Default(defaults)
	if err := kubeschedulerscheme.Scheme.Convert(defaults, args, nil); err != nil {
		return nil, errors.Join(errors.New("defaults of DefaultPreemption"), err)
	}
	return defaultpreemption.New(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
}
