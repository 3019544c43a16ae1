package safe

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme" // kube-scheduler decodes the arguments
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
	"github.com/layer-locality/layer-locality/scheduler/internal/debugpage"
	"github.com/layer-locality/layer-locality/scheduler/internal/problems"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// DebugPath is where the ratings of nodes are served.
const DebugPath = "/debug/safe"

// Option changes where plugins get their statistics.
type Option func(*Factory)

// WithSource has plugins take the statistics of nodes from a source, and not from the nodes'
// annotations. It is made once, for the first profile.
func WithSource(make func(context.Context) (usage.Source, error)) Option {
	return func(f *Factory) { f.newSource = make }
}

// Factory makes the plugin, once for each profile that enables it.
type Factory struct {
	newSource func(context.Context) (usage.Source, error)
	page      *debugpage.Page

	// What the plugins of all profiles share; nil before the first.
	mu       sync.Mutex
	source   usage.Source
	problems *problems.Reporter
}

// NewFactory returns a Factory for one scheduler.
func NewFactory(options ...Option) *Factory {
	f := &Factory{page: debugpage.New(Name), newSource: func(context.Context) (usage.Source, error) { return usage.Annotations{}, nil }}
	for _, option := range options {
		option(f)
	}
	return f
}

// New makes the plugin of a profile; it is the factory function that kube-scheduler needs.
func (f *Factory) New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, ok := object.(*config.SafeArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s: want SafeArgs, got %T", Name, object)
	}
	if err := validation.SafeArgs(args); err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source == nil {
		var err error
		if f.source, err = f.newSource(ctx); err != nil {
			return nil, fmt.Errorf("%s: statistics of nodes: %w", Name, err)
		}
		f.problems = problems.New(Name)
	}
	pl := newPlugin(args, f.source, f.problems)
	f.page.Add(handle, pl)
	return pl, nil
}

// DebugHandler serves how the plugin rates all nodes for a pod.
func (f *Factory) DebugHandler() http.Handler { return f.page }
