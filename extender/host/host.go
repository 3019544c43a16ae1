// Package host puts the parts of layer-extender together: a cluster that is followed,
// agents, and the HTTP server before them.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/cluster"
	"github.com/layer-locality/layer-locality/extender/handler"
	"github.com/layer-locality/layer-locality/extender/metrics"
)

// GCPercent is Go's GOGC for a process that serves a Host. Names of nodes, which come and go
// with each request, are most of what it allocates; it is among the programs of a control plane,
// which are short of memory before they are short of processors.
const GCPercent = 50

// Config describes a Host.
type Config struct {
	// Client and REST reach the apiserver.
	Client kubernetes.Interface
	REST   *rest.Config
	// Kinds are those of the agents that are to run.
	Kinds []agent.Kind
	// PluginConfig has the arguments of their plugins.
	PluginConfig []agent.PluginConfig
	// MaxScore is the answer for the best score.
	MaxScore int64
	// Debug has further handlers for GET, by path.
	Debug map[string]http.Handler
	// Clock is for the time that answers count; nil means the real one.
	Clock clock.PassiveClock
}

// Host runs agents.
type Host struct {
	cluster *cluster.Cluster
	agents  []*agent.Agent
	handler *handler.Handler
	debug   map[string]http.Handler
	running sync.WaitGroup
}

// Choose returns the kinds that have the names.
func Choose(kinds []agent.Kind, names []string) ([]agent.Kind, error) {
	var chosen []agent.Kind
	var known []string
	for _, kind := range kinds {
		known = append(known, kind.Names()...)
	}
	for _, name := range names {
		i := slices.IndexFunc(kinds, func(k agent.Kind) bool { return slices.Contains(k.Names(), name) })
		if i < 0 {
			return nil, fmt.Errorf("no agent %q: want some of %s", name, strings.Join(known, ", "))
		}
		if !slices.ContainsFunc(chosen, func(k agent.Kind) bool { return k.Name == kinds[i].Name }) {
			chosen = append(chosen, kinds[i])
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no agents: want some of %s", strings.Join(known, ", "))
	}
	return chosen, nil
}

// New returns a Host that follows nothing before Start. An agent whose arguments are wrong is logged, and
// answers why it does not run; the error is about that if no agent is left.
func New(ctx context.Context, c Config) (*Host, error) {
	metrics.Register()
	schedulermetrics.Register() // the framework writes some of them
	for _, p := range c.PluginConfig {
		if !slices.ContainsFunc(c.Kinds, func(k agent.Kind) bool { return k.Plugin == p.Name }) {
			var plugins []string
			for _, kind := range c.Kinds {
				plugins = append(plugins, kind.Plugin)
			}
			klog.FromContext(ctx).Error(nil, "Arguments are ignored: no agent of --agents has their plugin", "plugin", p.Name, "plugins", plugins)
		}
	}
	followed, err := cluster.New(ctx, c.Client)
	if err != nil {
		return nil, err
	}
	h := &Host{cluster: followed, debug: c.Debug}
	broken := map[string]error{}
	var errs []error
	for _, kind := range c.Kinds {
		round := handler.Round
		if kind.RoundsDown {
			round = handler.RoundDown
		}
		a, err := agent.New(ctx, kind, agent.Config{Cluster: followed, Client: c.Client, REST: c.REST, PluginConfig: c.PluginConfig, Clock: c.Clock,
			Round: func(score int64) int64 { return round(score, c.MaxScore) }})
		if err != nil {
			klog.FromContext(ctx).Error(err, "An agent does not run", "agent", kind.Name)
			errs = append(errs, err)
			for _, name := range kind.Names() {
				broken[name] = err
			}
			continue
		}
		h.agents = append(h.agents, a)
	}
	if len(h.agents) == 0 {
		return nil, errors.Join(append(errs, h.Close())...)
	}
	if h.handler, err = handler.New(klog.FromContext(ctx), h.agents, broken, c.MaxScore); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Start begins to follow the cluster, until the context is done.
func (h *Host) Start(ctx context.Context) {
	h.cluster.Start(ctx)
	for _, a := range h.agents {
		h.running.Go(func() { a.Run(ctx) })
	}
}

// Close waits for what Start began, whose context must be done, and ends the plugins.
func (h *Host) Close() error {
	h.running.Wait()
	h.cluster.Wait()
	var errs []error
	for _, a := range h.agents {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}

// HasSynced reports whether all agents can answer.
func (h *Host) HasSynced() bool {
	return !slices.ContainsFunc(h.agents, func(a *agent.Agent) bool { return !a.HasSynced() })
}

// Handler serves verbs, and what people and their tools ask for. secured, if not nil, is
// put before everything but health and version.
func (h *Host) Handler(secured func(http.Handler) http.Handler) http.Handler {
	if secured == nil {
		secured = func(next http.Handler) http.Handler { return next }
	}
	mux := http.NewServeMux()
	mux.Handle(handler.Prefix, h.counted(secured))
	get := func(path string, next http.Handler) { mux.Handle("GET "+path, next) }
	get("/metrics", secured(legacyregistry.Handler()))
	for path, next := range h.debug {
		get(path, secured(next))
	}
	get("/version", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(version.Get()) // the client went away
	}))
	get("/livez", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	get("/readyz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !h.HasSynced() {
			http.Error(w, "not all nodes and pods are known yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}))
	return mux
}

// counted serves verbs behind secured. What that keeps out is counted as well: it is all that
// shows of a scheduler without a certificate, which only logs it at level 5.
func (h *Host) counted(secured func(http.Handler) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		let := false
		secured(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			let = true
			h.handler.ServeHTTP(w, r)
		})).ServeHTTP(w, r)
		if !let {
			h.handler.Refused(r, http.StatusUnauthorized)
		}
	})
}
