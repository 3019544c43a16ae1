//go:build integration

package chart

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/test/deploy/lint"
)

const (
	deployed = "../../../../deploy"
	chart    = deployed + "/helm"
	program  = "../../../../_build/bin/tools/helm"
)

var must = testkit.Must

// helm runs helm, with nothing of the user's.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := filepath.Abs(program)
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: scripts/build.sh tools helm makes it", err)
	}
	home := t.TempDir()
	command := exec.Command(path, args...)
	command.Env = []string{"HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}
	var out, failed bytes.Buffer
	command.Stdout, command.Stderr = &out, &failed
	err = command.Run()
	return out.String(), failed.String(), err
}

// template returns what the chart renders to for a server of a version.
func template(t *testing.T, from, server string, set ...string) (string, error) {
	t.Helper()
	args := []string{"template", "layer-locality", from, "--namespace=kube-system", "--kube-version=" + server}
	for _, value := range set {
		args = append(args, "--set-json="+value)
	}
	out, failed, err := helm(t, args...)
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, failed)
	}
	return out, nil
}

type object = map[string]any

// clusterScoped are kinds without a namespace, to which kustomize gives one.
var clusterScoped = []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

// hash ends the name of a ConfigMap that kustomize makes.
var hash = regexp.MustCompile(`-config-[0-9a-z]{10}\b`)

// objects returns the objects in a text by kind, namespace and name, without what Helm and
// kustomize do each in a way of their own so that a change of the configuration rolls out.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	found := map[string]object{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(hash.ReplaceAllString(text, "-config")), 4096)
	for {
		o := object{}
		if err := decoder.Decode(&o); err != nil {
			break
		}
		if len(o) == 0 {
			continue
		}
		kind, metadata := o["kind"].(string), o["metadata"].(object)
		if slices.Contains(clusterScoped, kind) {
			delete(metadata, "namespace")
		}
		if kind == "Deployment" {
			delete(o["spec"].(object)["template"].(object)["metadata"].(object), "annotations")
		}
		if data, ok := o["data"].(object); ok {
			parsed := object{}
			must(t, yaml.Unmarshal([]byte(data["config.yaml"].(string)), &parsed))
			data["config.yaml"] = parsed
		}
		key := fmt.Sprint(kind, " ", metadata["namespace"], "/", metadata["name"])
		if found[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		found[key] = o
	}
	return found
}

// kustomized returns what the folders of deploy install together. A folder may have a component of its
// part: FOLDER+COMPONENT.
func kustomized(t *testing.T, folders ...string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for _, folder := range folders {
		folder, component, has := strings.Cut(folder, "+")
		overlay := map[string]any{}
		if part, _, _ := strings.Cut(folder, "/"); has {
			overlay["components"] = []string{filepath.Join(deployed, part, "components", component)}
		}
		built, err := kustomize.Build(filepath.Join(deployed, folder), overlay)
		must(t, err)
		for _, o := range built {
			text, err := yaml.Marshal(o)
			must(t, err)
			maps.Copy(all, objects(t, string(text)))
		}
	}
	return all
}

func TestLint(t *testing.T) {
	for _, set := range [][]string{nil, {"agent.enabled=true", `agent.runtime="k3s"`, "extender.enabled=true", "annotator.enabled=true"}} {
		args := []string{"lint", "--strict", "--namespace=kube-system", "--kube-version=1.36.5", chart}
		for _, value := range set {
			args = append(args, "--set-json="+value)
		}
		if out, failed, err := helm(t, args...); err != nil {
			t.Errorf("%v: %s%s", err, out, failed)
		}
	}
}

// The chart installs what the kustomizations do, each part by itself and all together.
func TestEqualsKustomizations(t *testing.T) {
	const scheduler, resolver = "scheduler/second-scheduler", "resolver"
	off := []string{"scheduler.enabled=false", "resolver.enabled=false"}
	for name, c := range map[string]struct {
		server  string
		set     []string
		folders []string
	}{
		"defaults":     {"1.36.5", nil, []string{scheduler, resolver}},
		"scheduler":    {"1.36.0", []string{"resolver.enabled=false"}, []string{scheduler}},
		"by namespace": {"1.36.5", []string{"resolver.enabled=false", "scheduler.byNamespace=true"}, []string{scheduler, "scheduler/by-namespace"}},
		"server roles": {"1.37.1", []string{"resolver.enabled=false"}, []string{"scheduler/server-roles"}},
		"given roles":  {"1.36.5", []string{"resolver.enabled=false", "scheduler.serverRoles=true"}, []string{"scheduler/server-roles"}},
		"resolver":     {"1.31.0", []string{"scheduler.enabled=false"}, []string{resolver}},
		"containerd":   {"1.30.0", append([]string{"agent.enabled=true", `agent.runtime="containerd"`}, off...), []string{"agent/containerd"}},
		"k3s":          {"1.36.5+k3s1", append([]string{"agent.enabled=true", `agent.runtime="k3s"`}, off...), []string{"agent/k3s"}},
		"cri-o":        {"1.36.5", append([]string{"agent.enabled=true", `agent.runtime="cri-o"`}, off...), []string{"agent/cri-o"}},
		"extender":     {"1.35.1", append([]string{"extender.enabled=true"}, off...), []string{"extender"}},
		"annotator":    {"1.35.1", append([]string{"annotator.enabled=true"}, off...), []string{"extender/annotator"}},
		"prefetcher":   {"1.36.5", append([]string{"prefetcher.enabled=true"}, off...), []string{"prefetcher"}},
		"all":          {"1.36.5", []string{"agent.enabled=true", `agent.runtime="cri-o"`, "extender.enabled=true"}, []string{scheduler, resolver, "agent/cri-o", "extender"}},
		"network policies": {
			"1.36.5", []string{"networkPolicy.enabled=true", `networkPolicy.apiServers=["192.0.2.1/32"]`, "agent.enabled=true", `agent.runtime="k3s"`, "prefetcher.enabled=true"},
			[]string{scheduler + "+network-policy", resolver + "+network-policy", "agent/k3s+network-policy", "prefetcher+network-policy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := template(t, chart, c.server, c.set...)
			must(t, err)
			if diff := cmp.Diff(kustomized(t, c.folders...), objects(t, text)); diff != "" {
				t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
			}
		})
	}
}

// Whatever the values, pods keep the rules for all in deploy/.
func TestPods(t *testing.T) {
	pinned := filepath.Join(t.TempDir(), "deploy")
	must(t, lint.Pin(deployed, pinned))
	all := []string{"networkPolicy.enabled=true", `networkPolicy.apiServers=["192.0.2.1/32"]`, "agent.enabled=true", "extender.enabled=true", "annotator.enabled=true", "prefetcher.enabled=true"}
	for _, more := range [][]string{
		{`agent.runtime="containerd"`},
		{`agent.runtime="k3s"`, `agent.nodeSelector={"pool":"a"}`, "scheduler.byNamespace=true", "scheduler.serverRoles=true"},
		{`agent.runtime="cri-o"`, `resolver.resources={"limits":{"memory":"2Gi"}}`, `extender.resources={"limits":{"memory":"2Gi"}}`, "resolver.replicas=3"},
	} {
		text, err := template(t, pinned+"/helm", "1.36.5", append(more, all...)...)
		must(t, err)
		var rendered []*unstructured.Unstructured
		for _, o := range objects(t, text) {
			rendered = append(rendered, &unstructured.Unstructured{Object: o})
		}
		problems, err := lint.Pods("../../../..", rendered)
		must(t, err)
		for _, problem := range problems {
			if lint.Exceptions[problem] == "" {
				t.Errorf("%q: %s", more, problem)
			}
		}
	}
}

// The policy of layer-prefetcher's pods names the image that its flag names.
func TestPodImage(t *testing.T) {
	text, err := template(t, chart, "1.36.5", "prefetcher.enabled=true", `prefetcher.extraArgs=["--pod-image=registry.example.com/pause:1"]`)
	must(t, err)
	policy := objects(t, text)["ValidatingAdmissionPolicy <nil>/layer-prefetcher"]
	if policy == nil || policy["spec"].(object)["variables"].([]any)[0].(object)["expression"] != "'registry.example.com/pause:1'" {
		t.Errorf("the policy is %v", policy)
	}
}

// A package has the files that the chart's folder only links to.
func TestPackage(t *testing.T) {
	folder := t.TempDir()
	if out, failed, err := helm(t, "package", chart, "--destination", folder); err != nil {
		t.Fatalf("%v: %s%s", err, out, failed)
	}
	packages, err := filepath.Glob(folder + "/*.tgz")
	must(t, err)
	if len(packages) != 1 {
		t.Fatalf("%q", packages)
	}
	text, err := template(t, packages[0], "1.36.5")
	must(t, err)
	if diff := cmp.Diff(kustomized(t, "scheduler/second-scheduler", "resolver"), objects(t, text)); diff != "" {
		t.Errorf("kustomize (-) and the package (+) differ:\n%s", diff)
	}
}

// The values are in the objects.
func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	text, err := template(t, chart, "1.34.2",
		`registry="r.example.com/x/"`, `tag="v9"`, `scheduler.digest="`+digest+`"`, "scheduler.replicas=3", `scheduler.args={"layerReuse":"Chain"}`, `scheduler.extraArgs=["--v=4"]`,
		`resolver.extraArgs=["--allow-registry=r.example.com"]`, `resolver.resources={"requests":{"cpu":"1"}}`,
		"agent.enabled=true", `agent.runtime="containerd"`, `agent.publishArgs=["--renew=5m"]`, `agent.readArgs=["--namespace=moby"]`, `agent.nodeSelector={"pool":"a"}`, `agent.priorityClassName="mine"`,
		"networkPolicy.enabled=true", `networkPolicy.apiServers=["10.0.0.1/32","10.0.0.2/32"]`, "networkPolicy.apiServerPort=443", `resolver.extraEgress=[{"ports":[{"port":5000}]}]`)
	must(t, err)
	all := objects(t, text)
	pod := func(key string) object {
		t.Helper()
		if all[key] == nil {
			t.Fatalf("no %s in %q", key, slices.Sorted(maps.Keys(all)))
		}
		return all[key]["spec"].(object)["template"].(object)["spec"].(object)
	}
	egress := func(name string) []any {
		return all["NetworkPolicy kube-system/"+name]["spec"].(object)["egress"].([]any)
	}
	toServer := object{
		"to":    []any{object{"ipBlock": object{"cidr": "10.0.0.1/32"}}, object{"ipBlock": object{"cidr": "10.0.0.2/32"}}},
		"ports": []any{object{"protocol": "TCP", "port": 443.0}},
	}
	container := func(key string, i int) object { return pod(key)["containers"].([]any)[i].(object) }
	scheduler, resolver, agent := "Deployment kube-system/layer-locality-scheduler", "Deployment kube-system/layer-resolver", "DaemonSet kube-system/layer-agent"
	config := all["ConfigMap kube-system/layer-locality-scheduler-config"]["data"].(object)["config.yaml"].(object)
	for what, pair := range map[string][2]any{
		"the scheduler's image":    {container(scheduler, 0)["image"], "r.example.com/x/kube-scheduler@" + digest},
		"its arguments":            {container(scheduler, 0)["args"], []any{"--config=/etc/layer-locality/config.yaml", "--v=4", "--emulated-version=1.34"}},
		"its replicas":             {all[scheduler]["spec"].(object)["replicas"], 3.0},
		"the plugin's arguments":   {config["profiles"].([]any)[0].(object)["pluginConfig"], []any{object{"name": "LayerLocality", "args": object{"layerReuse": "Chain"}}}},
		"roles of an older server": {all["ClusterRoleBinding <nil>/layer-locality-scheduler-as-kube-scheduler"] != nil, true},
		"the resolver's image":     {container(resolver, 0)["image"], "r.example.com/x/layer-resolver:v9"},
		"its last argument":        {slices.Contains(container(resolver, 0)["args"].([]any), "--allow-registry=r.example.com"), true},
		"its resources":            {container(resolver, 0)["resources"], object{"requests": object{"cpu": "1", "memory": "128Mi"}, "limits": object{"memory": "1Gi"}}},
		"the agent's reader":       {container(agent, 0)["args"], []any{"read", "--runtime=containerd", "--socket=/run/containerd/containerd.sock", "--namespace=moby"}},
		"its publisher":            {container(agent, 1)["args"], []any{"publish", "--renew=5m"}},
		"its nodes":                {pod(agent)["nodeSelector"], object{"kubernetes.io/os": "linux", "pool": "a"}},
		"its class":                {pod(agent)["priorityClassName"], "mine"},
		"what it may reach":        {egress("layer-agent"), []any{toServer}},
		"the scheduler":            {egress("layer-locality-scheduler"), []any{toServer}},
		"the resolver":             {egress("layer-resolver")[2:], []any{toServer, object{"ports": []any{object{"port": 5000.0}}}}},
	} {
		if diff := cmp.Diff(pair[1], normal(pair[0])); diff != "" {
			t.Errorf("%s: want (-), got (+)\n%s", what, diff)
		}
	}
	// Another configuration rolls out.
	sums := map[string]bool{}
	for _, args := range []string{"{}", `{"layerReuse":"Chain"}`} {
		text, err := template(t, chart, "1.36.5", "scheduler.args="+args)
		must(t, err)
		sums[regexp.MustCompile(`checksum/config: \w+`).FindString(text)] = true
	}
	if len(sums) != 2 || sums[""] {
		t.Errorf("checksums %v", sums)
	}
}

// normal turns numbers into those that JSON has.
func normal(value any) any {
	if n, ok := value.(int64); ok {
		return float64(n)
	}
	return value
}

// What does not fit is refused, with what to do.
func TestRefused(t *testing.T) {
	for why, set := range map[string][]string{
		"agent.runtime is empty: say what the nodes run": {"agent.enabled=true"},
		"value must be one of":                           {"agent.enabled=true", `agent.runtime="docker"`},
		"nothing is enabled":                             {"scheduler.enabled=false", "resolver.enabled=false"},
		"additional properties 'enabeld' not allowed":    {"agent.enabeld=true"},
		"does not match pattern":                         {`scheduler.digest="latest"`},
		"got string, want boolean":                       {`scheduler.enabled="no"`},
		"networkPolicy.apiServers is empty: give the":    {"networkPolicy.enabled=true"},
		"value must be 'linux'":                          {`scheduler.nodeSelector={"kubernetes.io/os":"windows"}`},
		"additional properties 'limit' not allowed":      {`resolver.resources={"limit":{"memory":"1Gi"}}`},
		"missing property 'topologyKey'":                 {`resolver.topologySpreadConstraints=[{"maxSkew":1,"whenUnsatisfiable":"DoNotSchedule"}]`},
		"got number, want string":                        {`resolver.extraEnv=[{"name":"A","value":1}]`},
		"agent.socket is containerd's":                   {"agent.enabled=true", `agent.runtime="cri-o"`, `agent.socket="/run/x/y.sock"`},
		"at '/agent/socket': 'x.sock' does not match":    {"agent.enabled=true", `agent.runtime="containerd"`, `agent.socket="x.sock"`},
	} {
		if _, err := template(t, chart, "1.36.5", set...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %s", set, err, why)
		}
	}
	for server, why := range map[string]string{
		"1.32.5": "this scheduler works as 1.33 to 1.36 do: set scheduler.enabled=false", "1.29.1": "chart requires kubeVersion",
	} {
		if _, err := template(t, chart, server); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", server, err, why)
		}
	}
	if _, err := template(t, chart, "1.35.1", "scheduler.byNamespace=true"); err == nil || !strings.Contains(err.Error(), "scheduler.byNamespace needs Kubernetes 1.36") {
		t.Error(err)
	}
	if _, failed, err := helm(t, "template", "x", chart, "--namespace=default"); err == nil || !strings.Contains(failed, "add --namespace=kube-system") {
		t.Errorf("another namespace: %v: %s", err, failed)
	}
}
