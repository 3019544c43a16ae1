package podtemplate

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// pod is a template with one image.
func pod(image string) string { return "{spec: {containers: [{name: c, image: " + image + "}]}}" }

// Kinds that people use, with the names and the paths by which they ask for one of several templates.
func TestIn(t *testing.T) {
	for kind, c := range map[string]struct {
		object string
		want   []string // NAME PATH IMAGE
	}{
		"Deployment":  {"spec: {replicas: 2, template: " + pod("a") + "}", []string{"template spec.template a"}},
		"PodTemplate": {"template: " + pod("a"), []string{"template template a"}},
		"CronJob":     {"spec: {jobTemplate: {spec: {template: " + pod("a") + "}}}", []string{"template spec.jobTemplate.spec.template a"}},
		"Rollout":     {"spec: {strategy: {canary: {steps: [{setWeight: 20}]}}, template: " + pod("a") + "}", []string{"template spec.template a"}},
		"Knative's Service": {
			"spec: {template: {metadata: {name: r}, spec: {containerConcurrency: 5, containers: [{image: a}]}}}", []string{"template spec.template a"},
		},
		"JobSet": {
			"spec: {replicatedJobs: [{name: driver, template: {spec: {template: " + pod("a") + "}}}, {name: workers, template: {spec: {template: " + pod("b") + "}}}]}",
			[]string{"driver spec.replicatedJobs[0].template.spec.template a", "workers spec.replicatedJobs[1].template.spec.template b"},
		},
		"LeaderWorkerSet": {
			"spec: {leaderWorkerTemplate: {leaderTemplate: " + pod("a") + ", size: 4, workerTemplate: " + pod("b") + "}}",
			[]string{"leaderTemplate spec.leaderWorkerTemplate.leaderTemplate a", "workerTemplate spec.leaderWorkerTemplate.workerTemplate b"},
		},
		"RayCluster": {
			"spec: {headGroupSpec: {rayStartParams: {}, template: " + pod("a") + "}, workerGroupSpecs: [{groupName: gpu, template: " + pod("b") + "}, {template: " + pod("c") + "}]}",
			[]string{"headGroupSpec spec.headGroupSpec.template a", "gpu spec.workerGroupSpecs[0].template b", "workerGroupSpecs[1] spec.workerGroupSpecs[1].template c"},
		},
		"PyTorchJob": {
			"spec: {pytorchReplicaSpecs: {Worker: {template: " + pod("b") + "}, Master: {template: " + pod("a") + "}}}",
			[]string{"Master spec.pytorchReplicaSpecs.Master.template a", "Worker spec.pytorchReplicaSpecs.Worker.template b"},
		},
		"a template with an image in one of its containers": {"spec: {template: {spec: {containers: [{name: a}, {image: b}]}}}", []string{"template spec.template b"}},
		// What has another shape.
		"Pod":           {"spec: {containers: [{image: a}]}", nil},
		"no image":      {"spec: {template: {spec: {containers: [{name: a}]}}}", nil},
		"no container":  {"spec: {template: {spec: {containers: []}}}", nil},
		"texts":         {"spec: {template: {spec: {containers: [a, {image: b}]}}}", nil},
		"a number":      {"spec: {template: {spec: {containers: 5}}}", nil},
		"invalid":       {"spec: {template: {spec: {containers: [{image: a, ports: many}]}}}", nil},
		"in its status": {"status: {template: " + pod("a") + "}", nil},
		"nothing":       {"{}", nil},
	} {
		var got []string
		for _, found := range In(parse(t, c.object)) {
			containers := found.Template.Spec.Containers
			got = append(got, found.Name+" "+found.Path+" "+containers[len(containers)-1].Image)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", kind, got, c.want)
		}
	}
}

// Whoever makes an object does not choose how long it is looked at.
func TestInIsBounded(t *testing.T) {
	list := func(item string, n int) string { return "[" + strings.Repeat(item+",", n) + "]" }
	for name, c := range map[string]struct {
		object string
		want   int
	}{
		"many templates":  {"spec: {all: " + list(pod("a"), 10*Max) + "}", Max},
		"deep":            {"spec: " + strings.Repeat("{a: ", maxDepth-1) + pod("a") + strings.Repeat("}", maxDepth-1), 1},
		"too deep":        {"spec: " + strings.Repeat("{a: ", maxDepth) + pod("a") + strings.Repeat("}", maxDepth), 0},
		"long":            {"spec: {a: " + list("1", maxValues-10) + ", b: " + pod("a") + "}", 1},
		"too long":        {"spec: {a: " + list("1", maxValues) + ", b: " + pod("a") + "}", 0},
		"a long key":      {"spec: {" + strings.Repeat("k", maxKey) + ": " + pod("a") + "}", 1},
		"too long a key":  {"spec: {" + strings.Repeat("k", maxKey+1) + ": " + pod("a") + "}", 0},
		"too long a name": {"spec: {jobs: [{name: " + strings.Repeat("n", maxKey+1) + ", template: " + pod("a") + "}]}", 1},
	} {
		found := In(parse(t, c.object))
		if len(found) != c.want {
			t.Errorf("%s: %d templates, want %d", name, len(found), c.want)
		}
		for _, f := range found {
			if len(f.Name) > maxKey+10 {
				t.Errorf("%s: a name of %d bytes", name, len(f.Name))
			}
		}
	}
	wide := map[string]any{"b": parse(t, pod("a"))}
	for i := range maxValues {
		wide[strings.Repeat("a", i%200)+string(rune('0'+i/200))] = 1
	}
	if found := In(map[string]any{"spec": wide}); len(found) != 0 {
		t.Errorf("%d templates among too many fields", len(found))
	}
}
