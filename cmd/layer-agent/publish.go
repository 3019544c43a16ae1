package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/publish"
)

// publishOptions are the flags of the publisher.
type publishOptions struct {
	kubeconfig    string
	token         string
	handover      string
	renew, spread time.Duration
	address       string
}

func newPublishCommand() *cobra.Command {
	o := &publishOptions{}
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Write what the reader found into the NodeLayers of this node; needs a token that is bound to the node, and nothing of the node itself",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without, the pod's service account")
	f.StringVar(&o.token, "token-file", "/var/run/secrets/kubernetes.io/serviceaccount/token", "file with the token of the service account, which names the node")
	f.StringVar(&o.handover, "handover", handoverFolder, "folder that is shared with the reader")
	f.DurationVar(&o.renew, "renew", defaultRenew, "how often NodeLayers are written although nothing has changed; after three times that, readers go by NodeStatus")
	f.DurationVar(&o.spread, "spread", defaultSpread, "time in which the agents of a cluster make their first writes")
	f.StringVar(&o.address, "bind-address", ":9450", "address that serves /metrics, /livez and /readyz")
	return cmd
}

func (o *publishOptions) validate() error {
	switch {
	case o.renew < time.Second || o.renew > 24*time.Hour || o.renew%time.Second != 0:
		return fmt.Errorf("--renew=%s: want whole seconds, from 1s to 24h", o.renew)
	case o.spread < 0 || o.spread > o.renew:
		return fmt.Errorf("--spread=%s: want a time from 0s to that of --renew, %s", o.spread, o.renew)
	}
	return nil
}

// restConfig returns how to reach the apiserver, without the token.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	anonymous := rest.AnonymousClientConfig(config)
	anonymous.UserAgent = "layer-agent/" + version
	return anonymous, nil
}

// exchange is the time that a client has to send a request and to read the answer.
const exchange = 10 * time.Second

func (o *publishOptions) run(ctx context.Context) error {
	if err := o.validate(); err != nil {
		return err
	}
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	if _, err := identityIn(o.token); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	publisher, err := publish.New(publish.Options{
		Config: config, Token: func() (string, error) { return publish.TokenIn(o.token) }, From: handover.NewReader(o.handover),
		Renew: o.renew, Spread: o.spread, Registerer: registry,
	})
	if err != nil {
		return err
	}
	return observed(ctx, o.address, handler(registry, publisher.Ready), publisher.Run)
}

// identityIn returns the Node that the token in a file is bound to.
func identityIn(path string) (publish.Identity, error) {
	token, err := publish.TokenIn(path)
	if err != nil {
		return publish.Identity{}, fmt.Errorf("--token-file=%s: %w", path, err)
	}
	identity, err := publish.IdentityOf(token)
	if err != nil {
		return publish.Identity{}, fmt.Errorf("--token-file=%s: %w", path, err)
	}
	return identity, nil
}

// observed runs something, and serves metrics and probes meanwhile.
func observed(ctx context.Context, address string, handler http.Handler, run func(context.Context) error) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--bind-address: %w", err)
	}
	server := &http.Server{
		Handler: handler, MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: exchange, ReadTimeout: exchange, WriteTimeout: exchange, IdleTimeout: time.Minute,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- server.Serve(listener)
	}()
	err = run(ctx)
	_ = server.Close()
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// handler serves metrics and probes. They name no image.
func handler(metrics prometheus.Gatherer, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: exchange}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
