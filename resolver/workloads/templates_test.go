package workloads

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/resolver/usage"
)

// objectOf returns an object from its YAML.
func objectOf(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func templatesOf(t *testing.T, texts ...string) []Template {
	t.Helper()
	templates := make([]Template, len(texts))
	for i, text := range texts {
		var err error
		if templates[i], err = ParseTemplate(text); err != nil {
			t.Fatal(err)
		}
	}
	return templates
}

// TestAllTemplates: templates of kinds that the API server does not have yet, and of objects that may
// not be read, are left out; objects in no namespace, and an API server that does not say what it has, or
// what may be read, are errors.
func TestAllTemplates(t *testing.T) {
	templates := templatesOf(t, "new.io/v1/Later={.spec}", "argoproj.io/v1alpha1/Rollout={.spec.template}", "jobset.x-k8s.io/v1alpha2/JobSet")
	mapper := func(scope meta.RESTScope) meta.RESTMapper {
		m := meta.NewDefaultRESTMapper(nil)
		for _, template := range templates[1:] {
			m.Add(template.GroupVersionKind, scope)
		}
		return m
	}
	const rollouts, jobSets = "argoproj.io/v1alpha1/rollouts", "jobset.x-k8s.io/v1alpha2/jobsets"
	for name, test := range map[string]struct {
		api    server
		served []Template
		err    string
	}{
		"all":                {server{mapper: mapper(meta.RESTScopeNamespace), allowed: []string{"list " + rollouts, "watch " + rollouts, "list " + jobSets, "watch " + jobSets}}, templates[1:], ""},
		"no right to watch":  {server{mapper: mapper(meta.RESTScopeNamespace), allowed: []string{"list " + rollouts, "list " + jobSets, "watch " + jobSets}}, templates[2:], ""},
		"no right to list":   {server{mapper: mapper(meta.RESTScopeNamespace), allowed: []string{"list " + rollouts, "watch " + rollouts, "watch " + jobSets}}, templates[1:2], ""},
		"not there":          {server{mapper: meta.NewDefaultRESTMapper(nil)}, nil, ""},
		"in no namespace":    {server{mapper: mapper(meta.RESTScopeRoot)}, nil, "Rollout: its objects are in no namespace"},
		"no answer":          {server{mapper: undiscovered{}}, nil, "connection refused"},
		"no right to ask":    {server{mapper: mapper(meta.RESTScopeNamespace), err: apierrors.NewForbidden(schema.GroupResource{}, "", nil)}, templates[1:], ""},
		"no answer to whom?": {server{mapper: mapper(meta.RESTScopeNamespace), err: errors.New("time-out")}, nil, "whether argoproj.io/v1alpha1, Kind=Rollout may be read: time-out"},
	} {
		served, err := AllTemplates(t.Context(), logr.Discard(), test.api, templates)
		if !slices.Equal(served, test.served) || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: served %v, error %v; want %v, %q", name, served, err, test.served, test.err)
		}
	}
}

// server is an API server that says what may be read.
type server struct {
	client.Client
	mapper  meta.RESTMapper
	allowed []string
	rules   []authorizationv1.ResourceRule
	err     error
}

func (s server) RESTMapper() meta.RESTMapper { return s.mapper }

func (s server) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if rules, ok := object.(*authorizationv1.SelfSubjectRulesReview); ok {
		rules.Status.ResourceRules = s.rules
		return s.err
	}
	review := object.(*authorizationv1.SelfSubjectAccessReview)
	asked := review.Spec.ResourceAttributes
	review.Status.Allowed = slices.Contains(s.allowed, fmt.Sprintf("%s %s/%s/%s", asked.Verb, asked.Group, asked.Version, asked.Resource))
	return s.err
}

// TestReadableTemplates: kinds that a rule names and that may be listed and watched are read without a flag, in the version
// that the API server prefers, unless a flag has them.
func TestReadableTemplates(t *testing.T) {
	rollouts := schema.GroupVersionKind{Group: "argoproj.io", Version: "v1alpha1", Kind: "Rollout"}
	clusters := schema.GroupVersionKind{Group: "ray.io", Version: "v1", Kind: "RayCluster"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{clusters.GroupVersion(), rollouts.GroupVersion()})
	mapper.Add(rollouts, meta.RESTScopeNamespace)
	mapper.Add(clusters, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "ray.io", Version: "v1alpha1", Kind: "RayCluster"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "config.openshift.io", Version: "v1", Kind: "ImageTagMirrorSet"}, meta.RESTScopeRoot)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "layerlocality.io", Version: "v1alpha1", Kind: "ImagePrefetch"}, meta.RESTScopeNamespace)
	preferred := meta.PriorityRESTMapper{Delegate: mapper, KindPriority: []schema.GroupVersionKind{clusters}}
	rule := func(verbs, groups, resources string) authorizationv1.ResourceRule {
		return authorizationv1.ResourceRule{Verbs: strings.Fields(verbs), APIGroups: strings.Fields(groups), Resources: strings.Fields(resources)}
	}
	named := rule("get list watch", "argoproj.io", "rollouts")
	named.ResourceNames = []string{"one"}
	for name, test := range map[string]struct {
		rules []authorizationv1.ResourceRule
		want  []schema.GroupVersionKind
	}{
		"one":                 {[]authorizationv1.ResourceRule{rule("list watch", "argoproj.io", "rollouts")}, []schema.GroupVersionKind{rollouts}},
		"several, twice":      {[]authorizationv1.ResourceRule{rule("*", "ray.io argoproj.io", "rollouts rayclusters"), rule("list watch", "argoproj.io", "rollouts")}, []schema.GroupVersionKind{clusters, rollouts}},
		"no right to watch":   {[]authorizationv1.ResourceRule{rule("get list", "argoproj.io", "rollouts")}, nil},
		"no right to list":    {[]authorizationv1.ResourceRule{rule("get watch", "argoproj.io", "rollouts")}, nil},
		"one object":          {[]authorizationv1.ResourceRule{named}, nil},
		"everything":          {[]authorizationv1.ResourceRule{rule("*", "*", "*")}, nil},
		"all of a group":      {[]authorizationv1.ResourceRule{rule("*", "argoproj.io", "*")}, nil},
		"a subresource":       {[]authorizationv1.ResourceRule{rule("*", "argoproj.io", "rollouts/status")}, nil},
		"in no namespace":     {[]authorizationv1.ResourceRule{rule("*", "config.openshift.io", "imagetagmirrorsets")}, nil},
		"of Kubernetes":       {[]authorizationv1.ResourceRule{rule("*", "apps events.k8s.io", "deployments events")}, nil},
		"of this project":     {[]authorizationv1.ResourceRule{rule("*", "layerlocality.io", "imageprefetches")}, nil},
		"not there":           {[]authorizationv1.ResourceRule{rule("*", "new.io", "laters")}, nil},
		"in one namespace":    {[]authorizationv1.ResourceRule{rule("list watch", "argoproj.io", "rollouts")}, nil},
		"nothing may be read": {nil, nil},
	} {
		var want []Template
		for _, kind := range test.want {
			want = append(want, Template{GroupVersionKind: kind})
		}
		allowed := []string{"list argoproj.io/v1alpha1/rollouts", "watch argoproj.io/v1alpha1/rollouts", "list ray.io/v1/rayclusters", "watch ray.io/v1/rayclusters"}
		if strings.HasPrefix(name, "in one namespace") {
			allowed = nil
		}
		if all, err := AllTemplates(t.Context(), logr.Discard(), server{mapper: preferred, rules: test.rules, allowed: allowed}, nil); err != nil || !slices.Equal(all, want) {
			t.Errorf("%s: %v, error %v, want %v", name, all, err, want)
		}
	}
	flag := templatesOf(t, "argoproj.io/v1alpha1/Rollout={.spec.x}")
	api := server{mapper: mapper, rules: []authorizationv1.ResourceRule{rule("list watch", "argoproj.io", "rollouts")}, allowed: []string{"list argoproj.io/v1alpha1/rollouts", "watch argoproj.io/v1alpha1/rollouts"}}
	away := server{mapper: undiscovered{}, rules: api.rules}
	if all, err := AllTemplates(t.Context(), logr.Discard(), away, nil); err != nil || len(all) > 0 {
		t.Errorf("a server of a kind that nobody named is away: %v, error %v", all, err)
	}
	if all, err := AllTemplates(t.Context(), logr.Discard(), api, flag); err != nil || !slices.Equal(all, flag) {
		t.Errorf("with a flag: %v, error %v", all, err)
	}
}

// TestTemplates: images and pull secrets of templates in other kinds, wherever a path leads.
func TestTemplates(t *testing.T) {
	const head = "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: r, namespace: ns, uid: u}\n"
	const rollout = "argoproj.io/v1alpha1/Rollout"
	for name, c := range map[string]struct {
		paths []string
		spec  string
		want  []string
	}{
		"a rollout": {
			[]string{"{.spec.template}"},
			"spec: {template: {spec: {serviceAccountName: runner, imagePullSecrets: [{name: s}], initContainers: [{image: 'r/init:1'}], containers: [{name: a, image: 'r/a:1'}]}}}",
			[]string{"r/init:1", "r/a:1"},
		},
		"a pod's spec":       {[]string{"{.spec.pod}"}, "spec: {pod: {serviceAccountName: runner, imagePullSecrets: [{name: s}], containers: [{image: 'r/a:1'}]}}", []string{"r/a:1"}},
		"several, twice":     {[]string{"{.spec.jobs[*].template}", "{.spec.main}"}, "spec: {main: {containers: [{image: 'r/m:1'}]}, jobs: [{template: {spec: {serviceAccountName: runner, imagePullSecrets: [{name: s}], containers: [{image: 'r/a:1'}]}}}, {template: {spec: {initContainers: [{image: 'r/i:1'}], volumes: [{name: v, image: {reference: 'r/v:1'}}], containers: [{image: 'r/b:1'}, {image: 'r/a:1'}]}}}]}", []string{"r/i:1", "r/a:1", "r/b:1", "r/m:1", "r/v:1"}},
		"found by its shape": {[]string{""}, "spec: {replicatedJobs: [{name: a, template: {spec: {template: {spec: {serviceAccountName: runner, imagePullSecrets: [{name: s}], containers: [{image: 'r/a:1'}]}}}}}, {name: b, template: {spec: {template: {spec: {containers: [{image: 'r/b:1'}]}}}}}]}", []string{"r/a:1", "r/b:1"}},
		"both ways":          {[]string{"", "{.spec.pod}"}, "spec: {pod: {containers: [{image: 'r/b:1'}]}, template: {spec: {serviceAccountName: runner, imagePullSecrets: [{name: s}], containers: [{image: 'r/a:1'}]}}}", []string{"r/a:1", "r/b:1"}},
		"of no such shape":   {[]string{""}, "spec: {pod: {containers: [{image: 'r/b:1'}]}}", nil},
		"none":               {[]string{"{.spec.template}"}, "spec: {replicas: 1}", nil},
		"not of a pod":       {[]string{"{.spec.template}"}, "spec: {template: {spec: {containers: 'many'}}}", nil},
		"no object":          {[]string{"{.spec.template}"}, "spec: {template: [1, 2]}", nil},
		"nothing":            {[]string{"{.spec.template}"}, "spec: null", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, path := range c.paths {
				texts = append(texts, strings.TrimSuffix(rollout+"="+path, "="))
			}
			found := kindsOf(templatesOf(t, texts...))
			if len(found) != 1 {
				t.Fatalf("%d kinds", len(found))
			}
			k := &found[0]
			short, err := k.transform(objectOf(t, head+c.spec))
			if err != nil {
				t.Fatal(err)
			}
			named, ok := k.ImagesOf(short)
			if ok != (c.want != nil) || !slices.Equal(named.Images, c.want) {
				t.Fatalf("images %q, %v, want %q", named.Images, ok, c.want)
			}
			if !ok {
				return
			}
			if want := (usage.Pull{Namespace: "ns", ServiceAccount: "runner", Secrets: "s"}); named.Pull != want {
				t.Errorf("pull %+v, want %+v", named.Pull, want)
			}
			if w := named.Workload; w.APIVersion != "argoproj.io/v1alpha1" || w.Kind != "Rollout" || w.Name != "r" || w.UID != "u" {
				t.Errorf("events go to %+v", w)
			}
		})
	}
}

// TestTemplatesAreBounded: whoever makes objects does not make the resolver read any number
// of templates.
func TestTemplatesAreBounded(t *testing.T) {
	k := kindsOf(templatesOf(t, "x.example/v1/X", "x.example/v1/X={.spec.all[*]}"))[0]
	text := "spec:\n  all:\n" + strings.Repeat("  - {containers: [{image: 'r/a:1'}]}\n", 10*maxTemplates)
	if spec := k.template(objectOf(t, text)); len(spec.Containers) != maxTemplates {
		t.Errorf("%d containers", len(spec.Containers))
	}
	text = strings.ReplaceAll(text, "{containers: [{image: 'r/a:1'}]}", "{spec: {containers: [{image: 'r/a:1'}]}}")
	if spec := k.template(objectOf(t, text)); len(spec.Containers) != maxTemplates {
		t.Errorf("%d containers of templates that are found", len(spec.Containers))
	}
}

func TestParseTemplate(t *testing.T) {
	got, err := ParseTemplate("argoproj.io/v1alpha1/Rollout={.spec.template}")
	if err != nil || got.Group != "argoproj.io" || got.Version != "v1alpha1" || got.Kind != "Rollout" || got.Path != "{.spec.template}" {
		t.Errorf("%+v, error %v", got, err)
	}
	if got, err := ParseTemplate("jobset.x-k8s.io/v1alpha2/JobSet"); err != nil || got.Kind != "JobSet" || got.Path != "" {
		t.Errorf("%+v, error %v", got, err)
	}
	for text, want := range map[string]string{
		"apps/v1/Deployment":         "is read anyway",
		"":                           "GROUP/VERSION/KIND",
		"Rollout={.spec.template}":   "GROUP/VERSION/KIND",
		"v1/Pod={.spec}":             "GROUP/VERSION/KIND",
		"//={.spec}":                 "GROUP/VERSION/KIND",
		"/v1/A={.spec}":              "GROUP/VERSION/KIND",
		"a.io//A={.spec}":            "GROUP/VERSION/KIND",
		"a.io/v1/={.spec}":           "GROUP/VERSION/KIND",
		"a.io/v1/A=":                 "in braces",
		"a.io/v1/A=.spec.template":   "in braces",
		"a.io/v1/A={.spec[":          "unterminated",
		"apps/v1/Deployment={.spec}": "is read anyway",
		"a.io/v1/A={range .spec.jobs[*]}{.template}{end}": "range is not supported",
	} {
		if _, err := ParseTemplate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	templatesOf(t, "a.io/v1/Deployment={.spec.template}", "apps/v1/Other={.spec.template}") // only the name or the group is known
	options := CacheOptions(templatesOf(t, "a.io/v1/A={.spec.x}", "a.io/v1/A={.spec.y}", "b.io/v1/B={.spec}")...)
	if got, want := len(options.ByObject), len(CacheOptions().ByObject)+2; got != want {
		t.Errorf("%d kinds, want %d", got, want)
	}
	for object, by := range options.ByObject {
		if _, custom := object.(*unstructured.Unstructured); custom && (by.Transform == nil || reflect.DeepEqual(object, &unstructured.Unstructured{})) {
			t.Errorf("%v is kept as it is", object.GetObjectKind())
		}
	}
}

// undiscovered is a mapper that cannot ask the API server.
type undiscovered struct{ meta.RESTMapper }

func (undiscovered) KindFor(schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return schema.GroupVersionKind{}, errors.New("connection refused")
}

func (undiscovered) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, errors.New("connection refused")
}
