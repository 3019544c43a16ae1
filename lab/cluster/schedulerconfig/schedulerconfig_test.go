package schedulerconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
parallelism: 3
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf, qps: 7}
leaderElection: {leaderElect: true, resourceName: mine}
profiles:
- schedulerName: mine
  pluginConfig:
  - name: LayerLocality
    args: {maxWaitingPods: 5}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"parallelism": 3.0, "clientConnection": map[string]any{"qps": 7.0},
		"profiles": []any{map[string]any{
			"schedulerName": "mine",
			"pluginConfig": []any{map[string]any{
				"name": "LayerLocality", "args": map[string]any{"maxWaitingPods": 5.0},
			}},
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// What is refused here, kube-scheduler would refuse when the cluster is half up.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for text, want := range map[string]string{
		"":     "not as kube-scheduler reads it",
		"a: [": "not as kube-scheduler reads it",
		strings.Replace(head, "/v1", "/v1beta2", 1):                                 `no kind "KubeSchedulerConfiguration" is registered for version "kubescheduler.config.k8s.io/v1beta2": want a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1`,
		"apiVersion: v1\nkind: Pod\n":                                               "want a KubeSchedulerConfiguration",
		strings.Replace(head, "KubeSchedulerConfiguration", "LayerLocalityArgs", 1): "want a KubeSchedulerConfiguration of",
		head + "profile: []\n":                                                      `unknown field "profile"`,
		head + "parallelism: -1\n":                                                  "parallelism",
		head + "profiles: [{schedulerName: a}, {schedulerName: a}]\n":               "Duplicate value",
		head + "profiles: [{schedulerName: a, pluginConfig: [{name: LayerLocality, args: {maxWaiting: 5}}]}]\n":                `unknown field "maxWaiting"`,
		head + "profiles: [{schedulerName: a, pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: -5}}]}]\n": "hardPodAffinityWeight",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		} else if strings.Contains(err.Error(), "scheme.go") {
			t.Errorf("%q: error %v names our code", text, err)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	if _, err := Read("/nowhere/at all"); err == nil || !strings.Contains(err.Error(), "/nowhere/at all") {
		t.Errorf("error %v for a file that is not there", err)
	}
	file := filepath.Join(t.TempDir(), "old.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v does not name the file", err)
	}
	// What we ship is accepted.
	for _, file := range []string{"lab/demos/scheduler.yaml", "deploy/scheduler/static-pod/config.yaml", "deploy/scheduler/static-pod/qosaware.yaml"} {
		if _, err := Read(filepath.Join("../../..", file)); err != nil {
			t.Error(err)
		}
	}
}
