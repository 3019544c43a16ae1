package command

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/terminaltest"
)

func program() *cobra.Command { return New("test") }

// What a user or a script passes on reaches the terminal as text.
func TestTerminal(t *testing.T) { terminaltest.Commands(t, program) }

// hostileObject returns an object in all of whose fields there is a hostile text, or a list of one if it has no
// name.
func hostileObject(kind string, one bool) any {
	objects := map[string][2]any{
		"nodes": {&v1.Node{}, &v1.NodeList{}}, "pods": {&v1.Pod{}, &v1.PodList{}}, "events": {&v1.Event{}, &v1.EventList{}},
		"deployments": {&appsv1.Deployment{}}, "statefulsets": {&appsv1.StatefulSet{}}, "daemonsets": {&appsv1.DaemonSet{}}, "replicasets": {&appsv1.ReplicaSet{}},
		"jobs": {&batchv1.Job{}}, "cronjobs": {&batchv1.CronJob{}},
		"imageprefetches": {&v1alpha1.ImagePrefetch{}, &v1alpha1.ImagePrefetchList{}},
		"nodelayers":      {&v1alpha1.NodeLayers{}, &v1alpha1.NodeLayersList{}}, "imagemanifests": {&v1alpha1.ImageManifest{}, &v1alpha1.ImageManifestList{}},
	}[kind]
	object := objects[1]
	if one {
		object = objects[0]
	}
	if object == nil {
		return nil
	}
	randfill.NewWithSeed(1).NilChance(0).NumElements(2, 2).MaxDepth(20).Funcs(
		func(s *string, _ randfill.Continue) { *s = terminaltest.Hostile },
		func(q *resource.Quantity, _ randfill.Continue) { *q = resource.MustParse("100G") },
		func(at *metav1.Time, _ randfill.Continue) { *at = metav1.Now() },
		func(*metav1.TypeMeta, randfill.Continue) {}, func(*metav1.ListMeta, randfill.Continue) {}, func(*metav1.FieldsV1, randfill.Continue) {},
		func(*runtime.RawExtension, randfill.Continue) {}, func(p *v1.PodPhase, _ randfill.Continue) { *p = v1.PodRunning },
		func(c *v1.Container, random randfill.Continue) {
			random.FillNoCustom(c)
			c.Image = "app:1"
		},
		func(reference *v1alpha1.ImageReference, random randfill.Continue) {
			random.FillNoCustom(reference)
			reference.Name = "docker.io/library/app:1"
		},
		func(image *v1.ContainerImage, _ randfill.Continue) {
			*image = v1.ContainerImage{Names: []string{"docker.io/library/app@sha256:" + strings.Repeat("a", 64), "docker.io/library/app:1"}, SizeBytes: 1 << 30}
		},
		func(g *int64, _ randfill.Continue) { *g = 5_000_000 },
	).Fill(object)
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		panic(err)
	}
	typeName := reflect.TypeOf(object).Elem().Name()
	fields["kind"], fields["apiVersion"] = typeName, "v1"
	if strings.HasPrefix(typeName, "NodeLayers") || strings.HasPrefix(typeName, "ImageManifest") || strings.HasPrefix(typeName, "ImagePrefetch") {
		fields["apiVersion"] = v1alpha1.GroupVersion.String()
	}
	switch object.(type) {
	case *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet, *appsv1.ReplicaSet:
		fields["apiVersion"] = "apps/v1"
	case *batchv1.Job, *batchv1.CronJob:
		fields["apiVersion"] = "batch/v1"
	}
	return fields
}

// discovery is what a cluster has of kinds.
var discovery = map[string]any{
	"api": metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
	"apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{{
		Name: "apps", Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "apps/v1", Version: "v1"}}, PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: "apps/v1", Version: "v1"},
	}}},
	"api/v1":       metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", SingularName: "pod", Kind: "Pod", Namespaced: true}}},
	"apis/apps/v1": metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", SingularName: "deployment", Kind: "Deployment", Namespaced: true}}},
}

// hostileCluster answers with hostile objects, or refuses everything with a hostile message.
func hostileCluster(refuses bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(r.URL.Path, "/api/v1/query") && !refuses {
			_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "warnings": []string{terminaltest.Hostile}, "data": map[string]any{
				"resultType": "vector", "result": []any{map[string]any{"metric": map[string]string{"profile": terminaltest.Hostile, "of": "mean"}, "value": []any{1700000000, "1"}}},
			}})
			return
		}
		if discovered := discovery[strings.Trim(r.URL.Path, "/")]; discovered != nil && !refuses {
			_ = json.NewEncoder(w).Encode(discovered)
			return
		}
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		var object any
		if r.Method == http.MethodGet && !refuses {
			if object = hostileObject(path.Base(r.URL.Path), false); object == nil && len(parts) > 1 {
				object = hostileObject(parts[len(parts)-2], true)
			}
		}
		if object == nil {
			w.WriteHeader(http.StatusInternalServerError)
			object = metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
				Reason: metav1.StatusReasonInternalError, Message: terminaltest.Hostile,
			}
		}
		_ = json.NewEncoder(w).Encode(object)
	})
}

// Nothing that a cluster answers does anything to the terminal, or forges a line, whatever the command and the
// form; JSON and YAML stay what they are.
func TestHostileCluster(t *testing.T) {
	arguments := map[string][][]string{
		"nodes": {{}}, "node": {{terminaltest.Hostile}}, "image": {{"app:1"}}, "pod": {{"p"}, {}}, "shared": {{}, {"--layers"}, {"--images=app:1," + terminaltest.Hostile}},
		"plan": {{"p"}, {"deployment/d"}, {"--image=app:1"}}, "why": {{"p"}, {}}, "imagelocality": {{"p"}, {"--image=app:1"}}, "savings": {{}}, "qos": {{}}, "advise": {{}},
		"prefetch": {{}, {"-A"}},
	}
	shown := map[string]bool{}
	for _, refuses := range []bool{false, true} {
		server := httptest.NewServer(hostileCluster(refuses))
		defer server.Close()
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		text := `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "` + server.URL + `"}}], contexts: [{name: c, context: {cluster: c}}]}`
		if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range program().Commands() {
			if command.Hidden && command.Name() != "pod" {
				shown[command.Name()] = true // as pod
				continue
			}
			calls := arguments[command.Name()]
			if calls == nil {
				calls = [][]string{{"w"}}
			}
			if command.Name() == "savings" {
				calls = [][]string{{"--prometheus=" + server.URL}}
			}
			for _, form := range []string{"table", "wide", "json", "yaml", "name", "jsonpath={.answer}", "custom-columns=A:.name,B:.pod,C:.image", "go-template={{.answer}}"} {
				for _, args := range calls {
					args = slices.Concat([]string{command.Name(), "--kubeconfig", kubeconfig, "-o", form}, args)
					stdout, stderr, code := terminaltest.Run(t, program(), args...)
					shown[command.Name()] = shown[command.Name()] || strings.Contains(stdout+stderr, terminaltest.Forged)
					var value any
					if form == "json" && code == 0 && json.Unmarshal([]byte(stdout), &value) != nil {
						t.Errorf("%q: this is no JSON: %s", args, stdout)
					}
					if strings.Contains(stderr, "cannot print") {
						t.Errorf("%q: %s", args, stderr)
					}
					if form == "yaml" && code == 0 && yaml.Unmarshal([]byte(stdout), &value) != nil {
						t.Errorf("%q: this is no YAML: %s", args, stdout)
					}
				}
			}
			// A shell gets names of objects, too.
			terminaltest.Run(t, program(), "__complete", command.Name(), "--kubeconfig", kubeconfig, "")
		}
	}
	for _, command := range program().Commands() {
		if !shown[command.Name()] {
			t.Errorf("%s shows nothing of a hostile cluster", command.Name())
		}
	}
}
