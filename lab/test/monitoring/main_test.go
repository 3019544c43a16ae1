//go:build e2e

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/monitoring"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	root = "../../.."
	// patched has the patched kubelet and CRI-O; all nodes have an agent.
	patched = "n1"
	// withAgent is a label of the nodes with an agent.
	withAgent = "test-agent"
	// renew is a sixtieth of the default, so that tests wait less.
	renew = "10s"
	// How often Prometheus scrapes, and for how long it waits: as long as by default, for beside other clusters
	// two seconds are not enough.
	interval = "10s"
	// An alert fires when its cause has been there for wait, and looks back for window.
	wait, window = "8s", "40s"
)

var (
	c      *cluster.Cluster
	lab    *scenario.Lab
	server monitoring.Server
	// folder has the files of Prometheus.
	folder string
)

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "monitoring"); err != nil {
		panic(err)
	}
	code, err := run(m)
	if err = errors.Join(err, os.RemoveAll(folder)); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	prometheus, err := addons.Prometheus(folder)
	if err != nil {
		return 0, err
	}
	config := cluster.Config{
		Name: "monitoring", Nodes: 3, Flavour: cluster.Patched, Scheduler: cluster.Component{Flavour: cluster.Stock},
		PerNode: func(node string, runtime, kubelet *cluster.Component) {
			if node != patched {
				runtime.Flavour, kubelet.Flavour = cluster.Stock, cluster.Stock
			}
		},
		// Its metrics are served as deploy/resolver has it: with HTTPS, to those who may get them.
		Addons: []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*", "--metrics-secure"}}), prometheus},
	}
	return livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		if err := install(context.Background()); err != nil {
			panic(err)
		}
	}), nil
}

// install installs what a user does: the agent, the second scheduler, and the monitoring of both.
func install(ctx context.Context) (err error) {
	if lab, err = scenario.NewLab(c); err != nil {
		return err
	}
	for _, node := range c.Nodes() {
		if err := label(ctx, node.Name, true); err != nil {
			return err
		}
	}
	agent, err := scenario.PushProgram(ctx, c, root, scenario.Agent)
	if err != nil {
		return err
	}
	agents, err := lab.Agents(ctx, root, agent, "--renew="+renew, "--spread=1s")
	if err != nil {
		return err
	}
	for _, object := range agents {
		if object.GetKind() == "DaemonSet" {
			if err := unstructured.SetNestedField(object.Object, "yes", "spec", "template", "spec", "nodeSelector", withAgent); err != nil {
				return err
			}
		}
	}
	scheduler, err := scenario.PushProgram(ctx, c, root, "kube-scheduler")
	if err != nil {
		return err
	}
	second, err := scenario.SchedulerObjects(root, scheduler)
	if err != nil {
		return err
	}
	if err := lab.Apply(ctx, slices.Concat(agents, second)...); err != nil {
		return err
	}
	if err := monitor(ctx); err != nil {
		return err
	}
	if err := lab.AppReady(ctx, scenario.Agent, len(c.Nodes())); err != nil {
		return err
	}
	return lab.AppReady(ctx, scenario.SecondScheduler, 1)
}

// label has a node run an agent, or not.
func label(ctx context.Context, node string, agent bool) error {
	patch := `{"metadata":{"labels":{"` + withAgent + `":null}}}`
	if agent {
		patch = strings.Replace(patch, "null", `"yes"`, 1)
	}
	_, err := lab.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// tokenOf returns what the Secret of a monitor holds, once the controller manager has filled it in; empty if
// the monitor names none.
func tokenOf(ctx context.Context, m monitoring.Monitor) (token string, err error) {
	endpoint, err := m.Endpoint()
	if err != nil || endpoint.Authorization == nil {
		return "", err
	}
	of := endpoint.Authorization.Credentials
	err = scenario.Poll(ctx, func(ctx context.Context) error {
		secret, err := lab.Client.CoreV1().Secrets(m.Metadata.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = string(secret.Data[of.Key]); token == "" {
			return fmt.Errorf("secret %s has no %s", of.Name, of.Key)
		}
		return nil
	})
	return token, err
}

// monitor has Prometheus scrape what the shipped monitors choose, with the shipped rights, and evaluate the
// shipped rules with shorter times. layer-resolver is no pod here, so its target is given.
func monitor(ctx context.Context) error {
	server = monitoring.Server(addons.PrometheusURL(c))
	monitors, rights, err := monitoring.Operator(root, "base")
	if err != nil {
		return err
	}
	if err := lab.Apply(ctx, rights...); err != nil {
		return err
	}
	pods, err := discovery()
	if err != nil {
		return err
	}
	rules := filepath.Join(folder, "rules.yaml")
	_, shipped, err := monitoring.Rules(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(rules, monitoring.Sooner(shipped, wait, window), 0o600); err != nil {
		return err
	}
	var scrape []any
	for _, m := range monitors {
		if m.Metadata.Name == addons.LayerPrefetcher {
			continue // it is not installed here
		}
		token, err := tokenOf(ctx, m)
		if err != nil {
			return err
		}
		scraped, err := m.ScrapeConfig(pods+"/"+m.Metadata.Namespace, token)
		switch {
		case m.Metadata.Name == addons.LayerResolver:
			scraped = map[string]any{
				"job_name": addons.LayerResolver, "scheme": "https", "tls_config": map[string]any{"insecure_skip_verify": true},
				"authorization":  map[string]any{"credentials": token},
				"static_configs": []any{map[string]any{"targets": []string{strings.TrimPrefix(addons.ResolverURL(c), "http://")}}},
			}
		case err != nil:
			return err
		}
		scrape = append(scrape, scraped)
	}
	return addons.ConfigurePrometheus(ctx, c, folder, map[string]any{
		"global":         map[string]any{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": "2s"},
		"rule_files":     []string{rules},
		"scrape_configs": scrape,
	})
}

var must = testkit.Must

// listen listens on this machine's address in the cluster's network.
func listen() (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(c.HostAddress().String(), "0"))
}

// discovery serves the pods of namespaces, each at its name below the URL, to Prometheus, as long as
// this process runs.
func discovery() (address string, err error) {
	listener, err := listen()
	if err != nil {
		return "", err
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pods, err := lab.Client.CoreV1().Pods(strings.Trim(r.URL.Path, "/")).List(r.Context(), metav1.ListOptions{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(monitoring.Discover(pods.Items))
	})}
	go func() { _ = s.Serve(listener) }()
	return "http://" + listener.Addr().String(), nil
}
