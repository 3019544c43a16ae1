package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/inspect"
	"github.com/layer-locality/layer-locality/resolver/controller"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// runOptions are the flags of the controller.
type runOptions struct {
	kubeconfig string

	allowRegistries []string
	allowInUse      bool
	allowNetworks   []string
	registriesConf  string
	dockerConfig    string
	pullSecrets     bool

	tagTTL, keepUnused time.Duration
	workers            int
	qps                float64
	burst              int
	timeout            time.Duration

	leaderElect         bool
	leaderElectionSpace string
	metricsAddress      string
	healthAddress       string
}

func newRunCommand() *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Keep the ImageManifests of a cluster, as a controller",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without, $KUBECONFIG or the pod's service account")
	f.StringSliceVar(&o.allowRegistries, "allow-registry", nil, "registry that may be asked, as host[:port]; may be given several times; \"*\" for any")
	f.BoolVar(&o.allowInUse, "allow-registries-in-use", true, "allow the registries that images on nodes come from")
	f.StringSliceVar(&o.allowNetworks, "allow-network", nil, "network (CIDR) in which registries may be, although it is loopback, link-local, private or reserved; may be given several times")
	f.StringVar(&o.registriesConf, "registries-conf", "", "registries.conf of the nodes: mirrors, locations, short names, insecure and blocked registries")
	f.StringVar(&o.dockerConfig, "docker-config", "", "docker config.json with credentials for all workloads")
	f.BoolVar(&o.pullSecrets, "pull-secrets", false, "use the imagePullSecrets of workloads and of their service accounts; needs the right to get them")
	f.DurationVar(&o.tagTTL, "tag-ttl", time.Hour, "after how long a tag in use is confirmed, with a HEAD request")
	f.DurationVar(&o.keepUnused, "keep-unused", 24*time.Hour, "how long to remember images that nothing uses")
	f.IntVar(&o.workers, "workers", 8, "questions to one registry at a time")
	f.Float64Var(&o.qps, "registry-qps", 20, "requests to one host per second")
	f.IntVar(&o.burst, "registry-burst", 40, "requests to one host at once, after a pause")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "time limit of one request to a registry")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "run several replicas, of which one is active")
	f.StringVar(&o.leaderElectionSpace, "leader-election-namespace", "", "namespace of the lease; without, that of the pod")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "address that serves /metrics; 0 for none")
	f.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "address that serves /healthz and /readyz; 0 for none")
	addLogFlags(cmd)
	return cmd
}

// addLogFlags adds -v, and none of klog's other flags.
func addLogFlags(cmd *cobra.Command) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	cmd.Flags().AddGoFlag(all.Lookup("v"))
}

// policy returns the policy that says which registries may be asked.
func (o *runOptions) policy() (*policy.Policy, error) {
	config := policy.Config{Registries: o.allowRegistries}
	for _, text := range o.allowNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--allow-network: %q is not a network such as 10.1.0.0/16", text)
		}
		config.Networks = append(config.Networks, network)
	}
	return policy.New(config)
}

func (o *runOptions) validate() error {
	var errs []error
	check := func(ok bool, message string) {
		if !ok {
			errs = append(errs, errors.New(message))
		}
	}
	check(o.tagTTL >= 10*time.Second, "--tag-ttl: at least 10s, or registries are asked all the time")
	check(o.keepUnused >= 10*time.Second, "--keep-unused: at least 10s, or what the next pod needs is forgotten")
	check(o.workers >= 1 && o.workers <= 1000, "--workers: 1 to 1000")
	check(o.qps > 0, "--registry-qps: more than 0")
	check(o.burst >= 1, "--registry-burst: at least 1")
	check(o.timeout >= 100*time.Millisecond && o.timeout <= 5*time.Minute, "--timeout: 100ms to 5m")
	check(o.allowInUse || len(o.allowRegistries) > 0, "no registry may be asked: name some with --allow-registry, or --allow-registries-in-use")
	return errors.Join(errs...)
}

func (o *runOptions) run(ctx context.Context) error {
	log := klog.NewKlogr()
	ctrl.SetLogger(log)
	ctx = ctrl.LoggerInto(ctx, log)
	if err := o.validate(); err != nil {
		return err
	}
	allowed, err := o.policy()
	if err != nil {
		return err
	}
	asked, err := registry.New(registry.Config{
		Policy: allowed, RegistriesConf: o.registriesConf, RequestsPerSecond: o.qps, Burst: o.burst,
		Timeout: o.timeout, Registerer: crmetrics.Registry,
	})
	if err != nil {
		return err
	}
	var keychain authn.Keychain
	if o.dockerConfig != "" {
		if keychain, err = registry.KeychainFromDockerConfig(o.dockerConfig); err != nil {
			return fmt.Errorf("--docker-config: %w", err)
		}
	}
	config, err := inspect.RESTConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Logger: log, Cache: controller.CacheOptions(),
		Metrics: server.Options{BindAddress: o.metricsAddress}, HealthProbeBindAddress: o.healthAddress,
		LeaderElection: o.leaderElect, LeaderElectionID: "layer-resolver", LeaderElectionNamespace: o.leaderElectionSpace,
		// The process ends when its leadership ends, so the next leader may start at
		// once.
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	resolver, err := controller.Add(ctx, mgr, controller.Options{
		Registry: asked, Policy: allowed, InUse: o.allowInUse, Keychain: keychain, PullSecrets: o.pullSecrets,
		TagTTL: o.tagTTL, KeepUnused: o.keepUnused, Workers: o.workers, Registerer: crmetrics.Registry,
	})
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster has no CustomResourceDefinition for ImageManifest: apply deploy/resolver/crd first (%w)", err)
	}
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	err = mgr.AddReadyzCheck("synced", func(*http.Request) error {
		if !resolver.HasSynced() {
			return errors.New("the workloads of the cluster are not all known yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
