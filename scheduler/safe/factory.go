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
)

// DebugPath is where the ratings of nodes are served.
const DebugPath = "/debug/safe"

// Factory makes the plugin, once for each profile that enables it.
type Factory struct {
	page *debugpage.Page

	// What the plugins of all profiles share; nil before the first.
	mu       sync.Mutex
	problems *problems.Reporter
}

// NewFactory returns a Factory for one scheduler.
func NewFactory() *Factory { return &Factory{page: debugpage.New(Name)} }

// New makes the plugin of a profile; it is the factory function that kube-scheduler needs.
func (f *Factory) New(_ context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, ok := object.(*config.SafeArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s: want SafeArgs, got %T", Name, object)
	}
	if err := validation.SafeArgs(args); err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problems == nil {
		f.problems = problems.New(Name)
	}
	pl := newPlugin(args, f.problems)
	f.page.Add(handle, pl)
	return pl, nil
}

// DebugHandler serves how the plugin rates all nodes for a pod.
func (f *Factory) DebugHandler() http.Handler { return f.page }
