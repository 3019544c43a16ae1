// Command layer-prefetcher has nodes pull images before pods need them, as ImagePrefetches ask for and as it finds
// in the cluster.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	_ "github.com/layer-locality/layer-locality/memlimit"
	"github.com/layer-locality/layer-locality/prefetch"
	"github.com/layer-locality/layer-locality/terminal"
)

// version is set by the build.
var version = "(not built by scripts/build.sh)"

func main() {
	os.Exit(terminal.Run(ctrl.SetupSignalHandler(), newCommand()))
}

// options are the flags.
type options struct {
	kubeconfig string
	prefetch   prefetch.Options

	leaderElect         bool
	leaderElectionSpace string
	metricsAddress      string
	metricsSecure       bool
	healthAddress       string
}

// bytesValue is a flag for a number of bytes, such as 10Gi.
type bytesValue struct{ to *int64 }

func (b bytesValue) Type() string { return "bytes" }
func (b bytesValue) String() string {
	if b.to == nil {
		return ""
	}
	return resource.NewQuantity(*b.to, resource.BinarySI).String()
}

func (b bytesValue) Set(text string) error {
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() < 0 {
		return fmt.Errorf("%q is no number of bytes such as 10Gi", text)
	}
	*b.to = quantity.Value()
	return nil
}

func newCommand() *cobra.Command {
	o := &options{prefetch: prefetch.Options{Budget: prefetch.DefaultBudget()}}
	cmd := &cobra.Command{
		Use:     "layer-prefetcher",
		Short:   "Makes nodes pull images before pods need them",
		Version: version,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.addTo(cmd.Flags())
	return cmd
}

func (o *options) addTo(f *pflag.FlagSet) {
	b := &o.prefetch.Budget
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without, $KUBECONFIG or the pod's service account")
	f.StringSliceVar(&o.prefetch.Sources, "sources", nil, "what makes ImagePrefetches besides users: template (a rollout), tag (a moved tag, confirmed by layer-resolver), node (a new node)")
	f.StringSliceVar(&o.prefetch.Workloads, "workloads", nil, "kinds of workloads besides those of Kubernetes, with a pod template and a selector, such as argoproj.io/v1alpha1/Rollout; layer-prefetcher needs the right to list and watch them")
	f.Int64Var(&o.prefetch.PodUser, "pod-user", 65535, "user and group of pods that pull; -1: those of the namespace, as OpenShift demands")
	f.StringVar(&o.prefetch.PodImage, "pod-image", "registry.k8s.io/pause:3.10.2", "image of pods that pull, which does nothing; best the one that nodes have for sandboxes. The ValidatingAdmissionPolicy layer-prefetcher has to name it as well")
	f.StringVar(&o.prefetch.PriorityClass, "priority-class", "layer-prefetch", "priority class of pods that pull, to be the lowest one")
	f.IntVar(&b.Pods, "max-pods", b.Pods, "pods that pull at a time")
	f.IntVar(&b.PodsPerNode, "max-pods-per-node", b.PodsPerNode, "the same, on a node")
	f.IntVar(&b.PodsPerNamespace, "max-pods-per-namespace", b.PodsPerNamespace, "the same, of a namespace")
	f.Var(bytesValue{&b.NodeBytes}, "max-node-bytes", "compressed bytes that a node pulls at a time")
	f.Var(bytesValue{&b.NodeBytesPerHour}, "max-node-bytes-per-hour", "compressed bytes that a node pulls in an hour")
	f.Var(bytesValue{&b.NamespaceBytesPerHour}, "max-namespace-bytes-per-hour", "the same, of all nodes for a namespace. An automatic source has as much of it as pods used of what it brought there")
	f.Var(bytesValue{&b.BytesPerHour}, "max-bytes-per-hour", "the same, of all nodes")
	f.Var(bytesValue{&b.PendingBytes}, "max-pending-bytes", "most bytes that a node may have to pull for other pods when it begins")
	f.Float64Var(&b.DiskShare, "max-disk-share", b.DiskShare, "share of a node's storage that its images may take afterwards, as far as it lists them")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "run several replicas, of which one is active")
	f.StringVar(&o.leaderElectionSpace, "leader-election-namespace", "", "namespace of the lease; without, that of the pod")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "address that serves /metrics; 0 for none")
	f.BoolVar(&o.metricsSecure, "metrics-secure", true, "serve /metrics over HTTPS, to those who may get it (TokenReview, SubjectAccessReview)")
	f.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "address that serves /healthz and /readyz; 0 for none")
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	f.AddGoFlag(all.Lookup("v"))
}

func (o *options) validate() error {
	var errs []error
	check := func(ok bool, message string) {
		if !ok {
			errs = append(errs, errors.New(message))
		}
	}
	for _, source := range o.prefetch.Sources {
		check(slices.Contains(prefetch.AutomaticSources, source), fmt.Sprintf("--sources: there is no %q: want some of %s", source, strings.Join(prefetch.AutomaticSources, ", ")))
	}
	b := &o.prefetch.Budget
	_, err := imageref.Parse(o.prefetch.PodImage)
	check(err == nil, "--pod-image: want the name of an image")
	check(b.Pods >= 1 && b.Pods <= 1000 && b.PodsPerNode >= 1 && b.PodsPerNamespace >= 1, "--max-pods, --max-pods-per-node, --max-pods-per-namespace: at least 1, at most 1000 in all")
	check(b.DiskShare > 0 && b.DiskShare <= 0.8, "--max-disk-share: more than 0, at most 0.8: the kubelet removes images above 0.85")
	return errors.Join(errs...)
}

func (o *options) run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	log := klog.NewKlogr()
	ctrl.SetLogger(log)
	ctx = ctrl.LoggerInto(ctx, log)
	if err := o.validate(); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", cmp.Or(o.kubeconfig, os.Getenv("KUBECONFIG")))
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	metrics := server.Options{BindAddress: o.metricsAddress, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		metrics.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Logger: log, Cache: prefetch.CacheOptions(), Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		Metrics: metrics, HealthProbeBindAddress: o.healthAddress,
		LeaderElection: o.leaderElect, LeaderElectionID: "layer-prefetcher", LeaderElectionNamespace: o.leaderElectionSpace,
		// The process ends when its leadership ends, so the next leader may start at once.
		LeaderElectionReleaseOnCancel: true,
	})
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster has no CustomResourceDefinition for ImagePrefetch: apply deploy/prefetcher/crd first (%w)", err)
	}
	if err != nil {
		return err
	}
	o.prefetch.Registerer = crmetrics.Registry
	cluster, err := prefetch.Add(ctx, mgr, o.prefetch)
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	err = mgr.AddReadyzCheck("synced", func(*http.Request) error {
		if !cluster.HasSynced() {
			return errors.New("not all nodes of the cluster are listed yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
