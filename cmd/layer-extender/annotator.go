package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/annotate"
	"github.com/layer-locality/layer-locality/cmd/layer-extender/prometheus"
)

// annotateOptions are the flags of "layer-extender annotate".
type annotateOptions struct {
	kubeconfig string
	prometheus prometheus.Config
	queries    []string
}

const (
	defaultWindow = 15 * time.Minute
	defaultLabel  = "node"
	// The requests that an apiserver gets at most: 5,000 nodes, twice in annotate.Valid, and what changes.
	qps, burst = 50, 100
)

func newAnnotateCommand() *cobra.Command {
	o := &annotateOptions{}
	cmd := &cobra.Command{
		Use:          "annotate",
		Short:        "Annotates nodes with their usage for Safe, as Prometheus or metrics.k8s.io reports it",
		Args:         cobra.NoArgs,
		RunE:         untilSignal(func(ctx context.Context, _ *pflag.FlagSet) error { return o.run(ctx) }),
		SilenceUsage: true,
	}
	o.addTo(cmd.Flags())
	verflag.AddFlags(cmd.Flags())
	return cmd
}

func (o *annotateOptions) addTo(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without, $KUBECONFIG or the pod's service account")
	f.DurationVar(&o.prometheus.Window, "window", defaultWindow, fmt.Sprintf("time over which mean and deviation are computed, %s to %s", prometheus.MinWindow, prometheus.MaxWindow))
	f.StringVar(&o.prometheus.Address, "prometheus-address", "", "URL of a Prometheus server with what nodes use; without, metrics.k8s.io is asked")
	f.StringVar(&o.prometheus.NodeLabel, "prometheus-node-label", defaultLabel, "label of series with the name of the node")
	f.StringArrayVar(&o.queries, "prometheus-query", nil, "NAME=QUERY: a query in place of the default one of a statistic, which is one of "+strings.Join(slices.Sorted(maps.Keys(prometheus.Queries())), ", ")+"; in cores and bytes that are used; may be given several times")
	f.StringVar(&o.prometheus.TokenFile, "prometheus-token-file", "", "file with the bearer token for Prometheus")
	f.StringVar(&o.prometheus.CAFile, "prometheus-ca-file", "", "certificate authorities of Prometheus; without, those of the system")
}

// source returns what measures nodes. metrics is a client for metrics.k8s.io.
func (o *annotateOptions) source(metrics rest.Interface) (annotate.Source, error) {
	config := o.prometheus
	if config.Window < prometheus.MinWindow || config.Window > prometheus.MaxWindow {
		return nil, fmt.Errorf("--window=%s: want %s to %s", config.Window, prometheus.MinWindow, prometheus.MaxWindow)
	}
	if config.Address == "" {
		if len(o.queries) > 0 {
			return nil, errors.New("--prometheus-query: there is no Prometheus to ask: set --prometheus-address")
		}
		return annotate.NewMetricsAPI(metrics, config.Window), nil
	}
	config.Queries = map[string]string{}
	for _, text := range o.queries {
		name, query, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--prometheus-query=%q: want NAME=QUERY", text)
		}
		config.Queries[name] = query
	}
	source, err := prometheus.New(config)
	if err != nil {
		return nil, fmt.Errorf("--prometheus-...: %w", err)
	}
	return source, nil
}

func (o *annotateOptions) run(ctx context.Context) error {
	config, _, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = qps, burst
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	source, err := o.source(client.RESTClient())
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Annotating nodes", "prometheus", o.prometheus.Address, "window", o.prometheus.Window, "version", version.Get().GitVersion)
	annotate.New(client, source, clock.RealClock{}).Run(ctx)
	return nil
}
