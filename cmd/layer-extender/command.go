package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/extender/host"
	"github.com/layer-locality/layer-locality/extender/metrics"
)

func newCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "layer-extender",
		Short: "Scores and filters nodes for a kube-scheduler, as its HTTP extender: by the image layers they hold, and by what they use",
		Args:  cobra.NoArgs,
		RunE: untilSignal(func(ctx context.Context, flags *pflag.FlagSet) error {
			o.apply(flags, os.LookupEnv, func(text string) { klog.InfoS(text) })
			return o.run(ctx)
		}),
		SilenceUsage: true,
	}
	o.addTo(cmd.Flags())
	verflag.AddFlags(cmd.Flags())
	cmd.AddCommand(newAnnotateCommand())
	return cmd
}

// untilSignal returns what a command runs: f, until a signal ends it.
func untilSignal(f func(context.Context, *pflag.FlagSet) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		verflag.PrintAndExitIfRequested()
		// cli.Run has turned it off, for programs that have a feature gate for it. Without, lines name no pod and no agent.
		klog.EnableContextualLogging(true)
		ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer cancel()
		return f(ctx, cmd.Flags())
	}
}

// connect returns a client of the apiserver: by the kubeconfig file, $KUBECONFIG or the pod's service account.
func connect(kubeconfig string) (*rest.Config, kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", cmp.Or(kubeconfig, os.Getenv("KUBECONFIG")))
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "layer-extender/" + version.Get().GitVersion
	client, err := kubernetes.NewForConfig(config)
	return config, client, err
}

const (
	// The time that a client has to send a request and to read the answer. A scheduler
	// waits for milliseconds.
	exchange = 10 * time.Second
	// idle is longer than kube-scheduler's, which closes first.
	idle = 3 * time.Minute
	// grace is how long requests may take that came before the end.
	grace      = 5 * time.Second
	maxHeaders = 64 << 10
)

func (o *options) run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	address, err := o.address()
	if err != nil {
		return err
	}
	kinds, debugPages := agents()
	if kinds, err = host.Choose(kinds, o.agents); err != nil {
		return fmt.Errorf("--agents: %w", err)
	}
	plugins, err := o.plugins()
	if err != nil {
		return err
	}
	plugins = withVariables(plugins, kinds, os.LookupEnv, func(text string) { logger.Info(text) })
	secure, err := o.tlsConfig()
	if err != nil {
		return err
	}
	config, client, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(host.GCPercent)
	}
	h, err := host.New(ctx, host.Config{Client: client, REST: config, Kinds: kinds, PluginConfig: plugins, MaxScore: o.maxScore, Debug: debugPages})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address.String())
	if err != nil {
		return err
	}
	secured := authenticated
	if o.clientCA == "" {
		secured, listener = overLoopback, &bounded{Listener: listener}
	}
	server := &http.Server{
		Handler: h.Handler(secured), TLSConfig: secure, MaxHeaderBytes: maxHeaders,
		ReadHeaderTimeout: exchange, ReadTimeout: exchange, WriteTimeout: 2 * exchange, IdleTimeout: idle,
		ConnState: metrics.Connection,
	}
	ended := make(chan error, 1)
	go func() {
		if secure != nil {
			ended <- server.ServeTLS(listener, "", "")
		} else {
			ended <- server.Serve(listener)
		}
	}()
	h.Start(ctx)
	logger.Info("Serving", "address", listener.Addr(), "agents", o.agents, "maxScore", o.maxScore, "tls", secure != nil, "version", version.Get().GitVersion)
	select {
	case err = <-ended:
	case <-ctx.Done():
		end, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		err = server.Shutdown(end)
	}
	cancel()
	return errors.Join(err, h.Close())
}
