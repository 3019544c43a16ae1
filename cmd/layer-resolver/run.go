package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/controller"
	"github.com/layer-locality/layer-locality/resolver/inspect"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

// runOptions are the flags of the controller.
type runOptions struct {
	kubeconfig string

	allowRegistries []string
	allowInUse      bool
	allowNetworks   []string
	denyNetworks    []string
	registriesConf  string
	containerdHosts string
	registriesYAML  string
	caBundles       []string
	certsDir        string
	proxies         []string
	dockerConfig    string
	providerConfig  string
	providerFolder  string
	google          bool
	globalSecret    string
	clusterMirrors  bool
	templates       []string
	pullSecrets     bool
	imagesOnNodes   bool
	publishPrivate  bool

	tagTTL, keepUnused time.Duration
	maxImages          int
	maxEach            int
	workers            int
	qps                float64
	burst              int
	quotaForNodes      float64
	timeout            time.Duration
	apiQPS             float32
	apiBurst           int

	leaderElect         bool
	leaderElectionSpace string
	metricsAddress      string
	metricsSecure       bool
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
	f.StringSliceVar(&o.allowNetworks, "allow-network", nil, "network (CIDR) in which registries may be, although it is loopback, link-local, private or reserved; as HOST[:PORT]=CIDR for one registry, or one token server; may be given several times")
	f.StringSliceVar(&o.denyNetworks, "deny-network", nil, "network (CIDR) that is never contacted; may be given several times")
	f.StringVar(&o.registriesConf, "registries-conf", "", "registries.conf of the nodes: mirrors, locations, short names, insecure and blocked registries")
	f.StringVar(&o.containerdHosts, "containerd-hosts", "", "folder with a folder for each host[:port] with mirrors in hosts.toml, as the config_path of containerd, often /etc/containerd/certs.d")
	f.StringVar(&o.registriesYAML, "registries-yaml", "", "registries.yaml of k3s or RKE2 nodes: mirrors")
	f.StringSliceVar(&o.caBundles, "ca-bundle", nil, "file with certificates of authorities (PEM) to trust besides the system's; may be given several times")
	f.StringVar(&o.certsDir, "certs-dir", "", "folder with a folder for each host[:port], as /etc/containers/certs.d: *.crt are authorities, *.cert and *.key client certificates")
	f.StringArrayVar(&o.proxies, "proxy", nil, "HTTP proxy of a registry or token server, as HOST[:PORT]=http://[USER:PASSWORD@]PROXY:PORT; may be given several times. The addresses of that host are not checked: the proxy looks them up")
	f.StringVar(&o.dockerConfig, "docker-config", "", "docker config.json with credentials for all workloads")
	f.StringVar(&o.providerConfig, "image-credential-provider-config", "", "CredentialProviderConfig of the kubelet, with plugins that have credentials for all workloads, such as those of clouds")
	f.StringVar(&o.providerFolder, "image-credential-provider-bin-dir", "", "folder with these plugins")
	f.BoolVar(&o.google, "google-credentials", false, "use what Google Cloud gives this pod or its node for Artifact Registry, without a plugin")
	f.StringVar(&o.globalSecret, "docker-config-secret", "", "secret with a docker configuration for all workloads, as NAMESPACE/NAME, such as openshift-config/pull-secret; needs the right to get it")
	f.BoolVar(&o.clusterMirrors, "cluster-mirrors", false, "use the mirrors of the cluster's ImageDigestMirrorSets, ImageTagMirrorSets and ImageContentSourcePolicies (OpenShift, OKD), besides those of registries.conf; needs the right to list and watch them")
	f.StringArrayVar(&o.templates, "template", nil, "pod templates in objects of another kind, as GROUP/VERSION/KIND={.path} where their shape does not show them, or as GROUP/VERSION/KIND for a version that the API server does not prefer; may be given several times, also for one kind. Kinds that a rule of RBAC names and lets the resolver list and watch need no flag")
	f.BoolVar(&o.pullSecrets, "pull-secrets", false, "use the imagePullSecrets of workloads and of their service accounts; needs the right to get them")
	f.BoolVar(&o.imagesOnNodes, "images-on-nodes", true, "ask also for images that nodes hold and no workload names, after all others: a node without layers in its status has those of the manifests")
	f.BoolVar(&o.publishPrivate, "publish-private", false, "write images that only pull secrets open into ImageManifests, too: readers of ImageManifests then see their layers")
	f.DurationVar(&o.tagTTL, "tag-ttl", time.Hour, "after how long a tag in use is confirmed, with a HEAD request")
	f.DurationVar(&o.keepUnused, "keep-unused", 24*time.Hour, "how long to remember images that nothing uses")
	f.IntVar(&o.maxImages, "max-images", controller.DefaultMaxImages, "most images that are kept; an image counts once for each 64 layers begun. At the limit, the namespace with the most images loses its oldest")
	f.IntVar(&o.maxEach, "max-images-per-namespace", controller.DefaultMaxImagesPerNamespace, "most images of one namespace that are kept")
	f.IntVar(&o.workers, "workers", 8, "images that one registry is asked for at a time")
	f.Float64Var(&o.qps, "registry-qps", registry.DefaultRequestsPerSecond, "requests to one host per second")
	f.IntVar(&o.burst, "registry-burst", 40, "requests to one host at once, after a pause")
	f.Float64Var(&o.quotaForNodes, "quota-for-nodes", registry.DefaultQuotaForNodes, "share of the manifests that a registry gives in a period (RateLimit-Limit, as Docker Hub states it) that is left to the nodes; 0 to use all")
	f.DurationVar(&o.timeout, "timeout", registry.DefaultTimeout, "time limit of one request to a registry")
	f.Float32Var(&o.apiQPS, "kube-api-qps", 50, "requests to the API server per second")
	f.IntVar(&o.apiBurst, "kube-api-burst", 100, "requests to the API server at once, after a pause")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "run several replicas, of which one is active")
	f.StringVar(&o.leaderElectionSpace, "leader-election-namespace", "", "namespace of the lease; without, that of the pod")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "address that serves /metrics; 0 for none")
	f.BoolVar(&o.metricsSecure, "metrics-secure", true, "serve /metrics over HTTPS, to those who may get it (TokenReview, SubjectAccessReview)")
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
	config := policy.Config{Registries: o.allowRegistries, HostNetworks: map[string][]netip.Prefix{}}
	for _, text := range o.allowNetworks {
		host, cidr, only := strings.Cut(text, "=")
		if !only {
			host, cidr = "", text
		}
		network, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil || only && host == "":
			return nil, fmt.Errorf("--allow-network: %q is neither a network such as 10.1.0.0/16 nor a registry and its network such as registry.example.com=10.1.0.0/16", text)
		case only:
			config.HostNetworks[host] = append(config.HostNetworks[host], network)
		default:
			config.Networks = append(config.Networks, network)
		}
	}
	for _, text := range o.denyNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--deny-network: %q is not a network such as 10.1.0.0/16", text)
		}
		config.Denied = append(config.Denied, network)
	}
	return policy.New(config)
}

// proxiesByHost returns the proxies of single hosts.
func (o *runOptions) proxiesByHost() (map[string]*url.URL, error) {
	proxies := map[string]*url.URL{}
	for i, text := range o.proxies {
		host, address, ok := strings.Cut(text, "=")
		proxy, err := url.Parse(address)
		if !ok || err != nil || proxy.Host == "" { // not quoted: there may be a password in it
			return nil, fmt.Errorf("--proxy, value %d: expected a registry and its proxy, such as registry.example.com=http://proxy.example.com:3128; one proxy for all would let everybody who creates pods reach what it reaches", i+1)
		}
		proxies[host] = proxy
	}
	return proxies, nil
}

// podTemplates returns where other kinds have pod templates.
func (o *runOptions) podTemplates() ([]workloads.Template, error) {
	templates := make([]workloads.Template, len(o.templates))
	for i, text := range o.templates {
		var err error
		if templates[i], err = workloads.ParseTemplate(text); err != nil {
			return nil, fmt.Errorf("--template: %w", err)
		}
	}
	return templates, nil
}

// nodeMirrors returns the mirrors of nodes that have no registries.conf, and logs what is left out of them.
func (o *runOptions) nodeMirrors(log logr.Logger) (found []mirrors.Entry, err error) {
	for _, from := range []struct {
		flag, path string
		read       func(string) ([]mirrors.Entry, []error, error)
	}{{"--containerd-hosts", o.containerdHosts, mirrors.FromContainerd}, {"--registries-yaml", o.registriesYAML, mirrors.FromK3s}} {
		if from.path == "" {
			continue
		}
		entries, leftOut, err := from.read(from.path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from.flag, err)
		}
		found = append(found, entries...)
		for _, cause := range leftOut {
			log.Info("Mirrors of nodes are left out", "cause", cause.Error())
		}
	}
	return found, nil
}

// keychains returns the credentials for all workloads.
func (o *runOptions) keychains(ctx context.Context) (all []authn.Keychain, err error) {
	if o.dockerConfig != "" {
		keychain, err := keychains.FromDockerConfig(o.dockerConfig)
		if err != nil {
			return nil, fmt.Errorf("--docker-config: %w", err)
		}
		all = append(all, keychain)
	}
	if o.providerConfig != "" {
		providers, err := keychains.FromProviders(o.providerConfig, o.providerFolder)
		if err != nil {
			return nil, fmt.Errorf("--image-credential-provider-config: %w", err)
		}
		all = append(all, providers...)
	}
	if o.google {
		google, err := keychains.FromGoogle(ctx)
		if err != nil {
			return nil, fmt.Errorf("--google-credentials: %w; outside of Google Cloud use --docker-config", err)
		}
		all = append(all, google)
	}
	return all, nil
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
	check(o.maxEach >= 16 && o.maxImages >= o.maxEach && o.maxImages <= 150_000, "--max-images, --max-images-per-namespace: at least 16 for a namespace, at most 150000 in all: schedulers take over no more")
	check(o.apiQPS > 0 && o.apiBurst >= 1, "--kube-api-qps: more than 0; --kube-api-burst: at least 1")
	check(!o.publishPrivate || o.pullSecrets, "--publish-private: only with --pull-secrets is anything private known")
	check((o.providerConfig == "") == (o.providerFolder == ""), "--image-credential-provider-config, --image-credential-provider-bin-dir: both or neither")
	namespace, name, _ := strings.Cut(o.globalSecret, "/")
	check(o.globalSecret == "" || namespace != "" && name != "", "--docker-config-secret: NAMESPACE/NAME")
	check(o.workers >= 1 && o.workers <= 1000, "--workers: 1 to 1000")
	check(o.qps > 0, "--registry-qps: more than 0")
	check(o.burst >= 1, "--registry-burst: at least 1")
	check(o.quotaForNodes >= 0 && o.quotaForNodes <= 1, "--quota-for-nodes: 0 to 1")
	check(o.timeout >= 100*time.Millisecond && o.timeout <= 5*time.Minute, "--timeout: 100ms to 5m")
	check(o.allowInUse || len(o.allowRegistries) > 0, "no registry may be asked: name some with --allow-registry, or --allow-registries-in-use")
	return errors.Join(errs...)
}

// metrics returns how /metrics is served. Names of registries are in it.
func (o *runOptions) metrics() server.Options {
	options := server.Options{BindAddress: o.metricsAddress, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		options.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	return options
}

func (o *runOptions) run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		// Little of what is read is kept, and memory is what the pod is limited in.
		debug.SetGCPercent(25)
	}
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
	proxies, err := o.proxiesByHost()
	if err != nil {
		return err
	}
	ofNodes, err := o.nodeMirrors(log)
	if err != nil {
		return err
	}
	asked, err := registry.New(registry.Config{
		Policy: allowed, RegistriesConf: o.registriesConf, Mirrors: ofNodes, CABundles: o.caBundles, CertsDir: o.certsDir, Proxies: proxies, RequestsPerSecond: o.qps, Burst: o.burst,
		Timeout: o.timeout, QuotaForNodes: &o.quotaForNodes, Registerer: crmetrics.Registry,
	})
	if err != nil {
		return err
	}
	keychains, err := o.keychains(ctx)
	if err != nil {
		return err
	}
	templates, err := o.podTemplates()
	if err != nil {
		return err
	}
	config, err := inspect.RESTConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = o.apiQPS, o.apiBurst
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	// Before the manager's cache, which would end with an error for a kind that is not there.
	direct, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	if templates, err = workloads.AllTemplates(ctx, log, direct, templates); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Logger: log, Cache: workloads.CacheOptions(templates...),
		Metrics: o.metrics(), HealthProbeBindAddress: o.healthAddress,
		LeaderElection: o.leaderElect, LeaderElectionID: "layer-resolver", LeaderElectionNamespace: o.leaderElectionSpace,
		// The process ends when its leadership ends, so the next leader may start at
		// once.
		LeaderElectionReleaseOnCancel: true,
	})
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster has no CustomResourceDefinition for ImageManifest: apply deploy/resolver/crd first (%w)", err)
	}
	if err != nil {
		return err
	}
	if namespace, name, ok := strings.Cut(o.globalSecret, "/"); ok {
		keychains = append(keychains, pullsecrets.KeychainFromSecret(mgr.GetAPIReader(), namespace, name))
	}
	var mirrors controller.MirrorSetter
	if o.clusterMirrors {
		mirrors = asked
	}
	resolver, err := controller.Add(ctx, mgr, controller.Options{
		Registry: asked, Policy: allowed, InUse: o.allowInUse, Keychains: keychains, Mirrors: mirrors, Templates: templates, PullSecrets: o.pullSecrets,
		ImagesOnNodes: o.imagesOnNodes, PublishPrivate: o.publishPrivate, MaxImages: o.maxImages, MaxImagesPerNamespace: o.maxEach,
		TagTTL: o.tagTTL, KeepUnused: o.keepUnused, Workers: o.workers, Registerer: crmetrics.Registry,
	})
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	err = mgr.AddReadyzCheck("synced", func(*http.Request) error {
		if !resolver.HasSynced() {
			return errors.New("not all workloads of the cluster are listed yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
