//go:build integration

package chart

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/test/deploy/lint"
)

// everything turns on every part.
var everything = []string{"networkPolicy.enabled=true", `networkPolicy.apiServers=["192.0.2.1/32"]`, "agent.enabled=true", `agent.runtime="containerd"`, "extender.enabled=true", "annotator.enabled=true", "prefetcher.enabled=true"}

// odd are the values of the chart, each with one that is not its default, and what the lint says of it.
var odd = map[string]struct{ value, problem string }{
	"registry":                    {`"localhost:5000/x"`, ""},
	"tag":                         {`"v9"`, ""},
	"imagePullSecrets":            {`[{"name":"ours"}]`, ""},
	"networkPolicy.enabled":       {"false", ": no NetworkPolicy"},
	"networkPolicy.apiServers":    {`["2001:db8::1/128"]`, ""},
	"networkPolicy.apiServerPort": {"443", ""},
	"scheduler.args":              {`{"layerReuse":"Chain"}`, ""},
	"scheduler.emulatedVersion":   {`"1.35"`, ""},
	"scheduler.serverRoles":       {"true", ""},
	"scheduler.byNamespace":       {"true", ""},
	"agent.runtime":               {`"k3s"`, ""},
	"agent.socket":                {`"/var/snap/microk8s/common/run/containerd.sock"`, ""},
	"agent.readArgs":              {`["--namespace=moby"]`, ""},
	"agent.publishArgs":           {`["--renew=5m"]`, ""},
	"prefetcher.sources":          {`["tag"]`, ""},
}

func init() {
	for _, part := range []string{"scheduler", "resolver", "agent", "extender", "annotator", "prefetcher"} {
		for name, value := range map[string]string{
			"enabled": "false", "digest": `"sha256:` + strings.Repeat("b", 64) + `"`,
			// Only the one that is given: requests and security stay.
			"resources": `{"limits":{"memory":4294967296}}`, "nodeSelector": `{"pool":"a"}`, "affinity": `{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"pool","operator":"Exists"}]}}]}}`,
			"tolerations": `[{"key":"dedicated","operator":"Equal","value":"x","effect":"NoExecute","tolerationSeconds":60}]`, "priorityClassName": `"mine"`,
			"extraEnv": `[{"name":"GODEBUG","value":"x=1"},{"name":"NODE","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}]`,
		} {
			problem := map[string]string{"priorityClassName": `: priority class "mine"`}[name]
			odd[part+"."+name] = struct{ value, problem string }{value, problem}
		}
		if part == "annotator" {
			delete(odd, part+".digest") // the extender's
		}
		if part != "agent" {
			odd[part+".extraArgs"] = struct{ value, problem string }{`["--v=4"]`, ""}
		}
	}
	for _, part := range []string{"scheduler", "resolver"} {
		odd[part+".extraEgress"] = struct{ value, problem string }{`[{"ports":[{"port":5000}]}]`, ""}
	}
	for _, part := range []string{"scheduler", "resolver", "prefetcher"} {
		for name, value := range map[string]string{
			"replicas": "3", "topologySpreadConstraints": `[{"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"DoNotSchedule"}]`,
		} {
			odd[part+"."+name] = struct{ value, problem string }{value, ""}
		}
	}
}

// leaves returns the paths of values; with a schema, those of its properties.
func leaves(path string, value map[string]any, below func(any) map[string]any) (found []string) {
	for name, v := range value {
		if inner := below(v); len(inner) > 0 {
			found = append(found, leaves(path+name+".", inner, below)...)
		} else {
			found = append(found, path+name)
		}
	}
	slices.Sort(found)
	return found
}

// Every value is in values.yaml, in the schema and here; it changes what is rendered; pods keep the rules
// for all in deploy/; and one of another type is refused by its name.
func TestEveryValue(t *testing.T) {
	names := slices.Sorted(maps.Keys(odd))
	text, err := os.ReadFile(chart + "/values.yaml")
	must(t, err)
	values := map[string]any{}
	must(t, yaml.Unmarshal(text, &values))
	if diff := cmp.Diff(names, leaves("", values, func(v any) map[string]any { inner, _ := v.(map[string]any); return inner })); diff != "" {
		t.Errorf("here (-) and in values.yaml (+):\n%s", diff)
	}
	text, err = os.ReadFile(chart + "/values.schema.json")
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(text, &schema))
	properties := func(v any) map[string]any {
		inner, _ := v.(map[string]any)["properties"].(map[string]any)
		return inner
	}
	all := properties(schema)
	delete(all, "global") // Helm's
	delete(all["imagePullSecrets"].(map[string]any), "items")
	if diff := cmp.Diff(names, leaves("", all, properties)); diff != "" {
		t.Errorf("here (-) and in the schema (+):\n%s", diff)
	}
	for name, property := range all {
		if inner := properties(property); inner != nil && property.(map[string]any)["additionalProperties"] != false {
			t.Errorf("%s takes what is misspelt", name)
		}
	}

	plain, err := template(t, chart, "1.36.5", everything...)
	must(t, err)
	for _, name := range names {
		text, err := template(t, chart, "1.36.5", append(slices.Clone(everything), name+"="+odd[name].value)...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text == plain {
			t.Errorf("%s changes nothing", name)
		}
		var rendered []*unstructured.Unstructured
		for _, o := range objects(t, text) {
			rendered = append(rendered, &unstructured.Unstructured{Object: o})
		}
		problems, err := lint.Pods("../../../..", rendered)
		must(t, err)
		for _, problem := range problems {
			// TestPods has the images by digest.
			if lint.Exceptions[problem] == "" && !strings.Contains(problem, ": image ") && (odd[name].problem == "" || !strings.Contains(problem, odd[name].problem)) {
				t.Errorf("%s=%s: %s", name, odd[name].value, problem)
			}
		}
	}

	// All of them wrong at once.
	var wrong []string
	for _, name := range names {
		wrong = append(wrong, name+"=[[1]]")
	}
	_, err = template(t, chart, "1.36.5", wrong...)
	for _, name := range names {
		if err == nil || !strings.Contains(err.Error(), "at '/"+strings.ReplaceAll(name, ".", "/")) {
			t.Errorf("%s=[[1]] is not refused: %v", name, err)
		}
	}
}

// What users give is merged with what a part has, or replaces it, as values.yaml explains.
func TestPodValues(t *testing.T) {
	const scheduler, resolver, agent, extender = "Deployment kube-system/layer-locality-scheduler", "Deployment kube-system/layer-resolver", "DaemonSet kube-system/layer-agent", "DaemonSet kube-system/layer-extender"
	set := append(slices.Clone(everything), `imagePullSecrets=[{"name":"ours"}]`)
	for _, part := range []string{"scheduler", "resolver", "agent", "extender"} {
		for _, name := range []string{"resources", "nodeSelector", "affinity", "extraEnv"} {
			set = append(set, part+"."+name+"="+odd[part+"."+name].value)
		}
	}
	set = append(set, "scheduler.topologySpreadConstraints="+odd["scheduler.topologySpreadConstraints"].value,
		`resolver.topologySpreadConstraints=[{"maxSkew":2,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}]`,
		"scheduler.tolerations="+odd["scheduler.tolerations"].value, "agent.tolerations=[]", "agent.socket="+odd["agent.socket"].value)
	text, err := template(t, chart, "1.36.5", set...)
	must(t, err)
	all := objects(t, text)
	pod := func(key string) object { return all[key]["spec"].(object)["template"].(object)["spec"].(object) }
	container := func(key string, i int) object { return pod(key)["containers"].([]any)[i].(object) }
	resources := func(cpu, memory string) object {
		return object{"limits": object{"memory": 4294967296.0}, "requests": object{"cpu": cpu, "memory": memory}}
	}
	parsed := func(name string) (value any) {
		must(t, json.Unmarshal([]byte(odd[name].value), &value))
		return value
	}
	preferred := parsed("agent.affinity").(object)["nodeAffinity"].(object)["preferredDuringSchedulingIgnoredDuringExecution"]
	runtime := func(field string) any {
		return pod(agent)["volumes"].([]any)[0].(object)[field]
	}
	for what, pair := range map[string][2]any{
		"the resolver's limit, with its requests": {container(resolver, 0)["resources"], resources("50m", "128Mi")},
		"the reader's":                                    {container(agent, 0)["resources"], resources("5m", "24Mi")},
		"the publisher's":                                 {container(agent, 1)["resources"], resources("5m", "24Mi")},
		"a limit where there was none":                    {container(scheduler, 0)["resources"], resources("100m", "256Mi")},
		"the extender's nodes":                            {pod(extender)["nodeSelector"], object{"kubernetes.io/os": "linux", "pool": "a"}},
		"the environment of both containers of the agent": {[]any{container(agent, 0)["env"], container(agent, 1)["env"]}, []any{parsed("agent.extraEnv"), parsed("agent.extraEnv")}},
		"the scheduler's preference replaced":             {pod(scheduler)["affinity"].(object)["nodeAffinity"], object{"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
		"and its replicas apart":                          {pod(scheduler)["affinity"].(object)["podAntiAffinity"] != nil, true},
		"the extender still beside the control plane":     {len(pod(extender)["affinity"].(object)["nodeAffinity"].(object)), 2},
		"tolerations replaced":                            {pod(scheduler)["tolerations"], parsed("scheduler.tolerations")},
		"none":                                            {pod(agent)["tolerations"], []any{}},
		"those of the extender":                           {pod(extender)["tolerations"], []any{object{"operator": "Exists"}}},
		"spread over zones": {pod(scheduler)["topologySpreadConstraints"], []any{object{
			"maxSkew": 1.0, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
			"labelSelector": object{"matchLabels": object{"app.kubernetes.io/name": "layer-locality-scheduler"}},
		}}},
		"among its own and others": {len(pod(resolver)["topologySpreadConstraints"].([]any)[0].(object)["labelSelector"].(object)), 2},
		"pull secrets":             {[]any{pod(scheduler)["imagePullSecrets"], pod(agent)["imagePullSecrets"]}, []any{parsed("imagePullSecrets"), parsed("imagePullSecrets")}},
		"another socket":           {container(agent, 0)["args"], []any{"read", "--runtime=containerd", "--socket=/var/snap/microk8s/common/run/containerd.sock"}},
		"its folder on the node":   {runtime("hostPath"), object{"path": "/var/snap/microk8s/common/run", "type": "Directory"}},
		"and in the container":     {container(agent, 0)["volumeMounts"].([]any)[0].(object)["mountPath"], "/var/snap/microk8s/common/run"},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s: want (-), got (+)\n%s", what, diff)
		}
	}
}
