package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// rendered returns a cluster of two nodes that consists of handles and files
// only.
func rendered(t *testing.T, config Config) *Cluster {
	t.Helper()
	config.Dir = t.TempDir()
	config.Nodes = 2
	if err := config.complete(); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(&config); err != nil {
		t.Fatal(err)
	}
	c := newCluster(config, netip.MustParsePrefix("203.0.113.0/24"))
	if err := c.files.Shared(); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.nodes {
		if err := os.MkdirAll(filepath.Join(node.Dir(), "cni"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// arguments returns the command line of a component, whose files it writes.
func arguments(t *testing.T, p *Process, settings Component) []string {
	t.Helper()
	args, err := p.arguments(settings)
	if err != nil {
		t.Fatal(err)
	}
	return args
}

// TestComponents: each one is configured for its place, and the programs of a build are those of its flavour.
func TestComponents(t *testing.T) {
	t.Parallel()
	c := rendered(t, Config{AuditPolicy: "kind: Policy\n"})
	for _, test := range []struct {
		of   *Process
		want string
	}{
		{find(c.control, "registry"), "serve " + c.path("config", "registry.yaml")},
		{c.Etcd(), "--listen-metrics-urls=http://203.0.113.1:2381"},
		{c.APIServer(), "--advertise-address=203.0.113.1"},
		{c.APIServer(), "--audit-log-path=" + c.AuditLog()},
		{c.ControllerManager(), "--kubeconfig=" + c.path("pki", "kube-controller-manager.kubeconfig")},
		{c.Scheduler(), "--authentication-kubeconfig=" + c.path("pki", "kube-scheduler.kubeconfig")},
		{c.Node("n2").Kubelet(), "--kubeconfig=" + c.path("n2", "kubelet.kubeconfig")},
		{c.Node("n2").Kubelet(), "--node-ip=203.0.113.12"},
	} {
		if got := strings.Join(arguments(t, test.of, Component{}), " "); !strings.Contains(got, test.want) {
			t.Errorf("%s: no %s in %s", test.of.Name(), test.want, got)
		}
	}
	crio := arguments(t, c.Node("n1").Runtime(), Component{Flavour: Patched})
	if text, err := os.ReadFile(crio[1]); err != nil || !strings.Contains(string(text), `"`+c.config.program("patched", "pinns")+`"`) {
		t.Errorf("pinns is not that of the build: %s, %v", text, err)
	}
}

// TestVersionsOfContainerd: each has programs of its own in every flavour, and 1.7 a configuration of version 2.
func TestVersionsOfContainerd(t *testing.T) {
	t.Parallel()
	for runtime, version := range map[ContainerRuntime]string{Containerd: "version = 3", Containerd17: "version = 2", Containerd24: "version = 3"} {
		c := rendered(t, Config{ContainerRuntimes: map[string]ContainerRuntime{"n2": runtime}})
		node, name := c.Node("n2"), string(runtime)
		if got := c.Node("n1").Runtime().Name() + ", " + node.Runtime().Name(); got != "n1 crio, n2 "+name {
			t.Errorf("the runtimes are %s", got)
		}
		if got := node.Runtime().binary(Component{Flavour: Patched}); got != c.Tool(name) {
			t.Errorf("%s runs %s", name, got)
		}
		shim := c.Tool("containerd-shim-runc-v2" + strings.TrimPrefix(name, "containerd"))
		text, err := os.ReadFile(arguments(t, node.Runtime(), Component{})[1])
		if err != nil || !strings.Contains(string(text), version) || !strings.Contains(string(text), `"`+shim+`"`) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
		// The host sees the socket that the node has below its own /run.
		if want := filepath.Join(node.Dir(), "root/run/containerd/containerd.sock"); node.CRISocket() != want {
			t.Errorf("the socket is %s, want %s", node.CRISocket(), want)
		}
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	condition := func(kind string, status bool) *runtimeapi.RuntimeCondition {
		return &runtimeapi.RuntimeCondition{Type: kind, Status: status, Message: "why"}
	}
	both := []*runtimeapi.RuntimeCondition{condition("RuntimeReady", true), condition("NetworkReady", true)}
	for want, conditions := range map[string][]*runtimeapi.RuntimeCondition{
		"":                  append(both, condition("ContainerdHasNoDeprecationWarnings", false)),
		"NetworkReady: why": {both[0], condition("NetworkReady", false)},
		"does not report whether it is NetworkReady": {both[0]},
	} {
		if err := ready(conditions); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", conditions, err, want)
		}
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	old := "from an earlier run\n"
	var lines []string
	for i := range 30 {
		lines = append(lines, "line "+string(rune('a'+i)))
	}
	if err := os.WriteFile(path, []byte(old+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tail(path, int64(len(old)))
	if !strings.HasSuffix(got, lines[29]) || strings.Contains(got, lines[17]) || !strings.Contains(got, lines[18]) {
		t.Errorf("not the last twelve lines: %q", got)
	}
	if got := tail(path, int64(len(old)+len(strings.Join(lines, "\n"))+1)); got != "" {
		t.Errorf("%q from a run that wrote nothing", got)
	}
	if strings.Contains(tail(path, 0), old) {
		t.Error("more lines than wanted")
	}
}

func TestConfigForComponentsWithoutConfiguration(t *testing.T) {
	t.Parallel()
	c := rendered(t, Config{})
	for _, p := range []*Process{c.Etcd(), find(c.control, "registry"), c.APIServer(), c.ControllerManager()} {
		if _, err := p.arguments(Component{Config: map[string]any{"x": 1}}); err == nil {
			t.Errorf("%s: settings that nothing reads were accepted", p.Name())
		}
	}
	if slices.ContainsFunc(arguments(t, c.APIServer(), Component{}), func(arg string) bool { return strings.HasPrefix(arg, "--audit") }) {
		t.Error("an audit log without a policy")
	}
}

func TestSchedulerConfiguration(t *testing.T) {
	t.Parallel()
	c := rendered(t, Config{})
	profiles := []any{map[string]any{"schedulerName": "layers"}}
	extenders := []map[string]any{{
		"urlPrefix": "https://$(ADDRESS):1/x", "weight": 2, "$(PKI)": []any{"$(KUBECONFIG)", "$(OTHER)", true},
		"tlsConfig": map[string]any{"caFile": "$(PKI)/ca.crt"},
	}}
	arguments(t, c.Scheduler(), Component{Config: map[string]any{"profiles": profiles, "extenders": extenders}})
	if extenders[0]["urlPrefix"] != "https://$(ADDRESS):1/x" {
		t.Error("the settings were changed: of another start, the address may be another")
	}
	data, err := os.ReadFile(c.path("config", "scheduler.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.UnmarshalStrict(data, &got); err != nil {
		t.Fatal(err)
	}
	if list, _ := got["profiles"].([]any); len(list) != 1 {
		t.Errorf("profiles %v", got["profiles"])
	}
	// Values that are known once the cluster exists; those of add-ons and unknown ones stay.
	want := []any{map[string]any{
		"urlPrefix": "https://203.0.113.1:1/x", "weight": 2.0, "$(PKI)": []any{"$(KUBECONFIG)", "$(OTHER)", true},
		"tlsConfig": map[string]any{"caFile": c.path("pki", "ca.crt")},
	}}
	if !reflect.DeepEqual(got["extenders"], want) {
		t.Errorf("extenders %v, want %v", got["extenders"], want)
	}
	if !reflect.DeepEqual(got["leaderElection"], map[string]any{"leaderElect": false}) {
		t.Error("the only scheduler waits for an election")
	}
}
