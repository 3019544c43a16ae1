package workloads

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref/podtemplate"
)

// maxTemplates bounds the pod templates of one object.
const maxTemplates = podtemplate.Max

// Template is where objects of a kind have pod templates.
type Template struct {
	schema.GroupVersionKind
	// Path is a JSONPath as in kubectl: {.spec.template}. What it leads to is a pod
	// template, or the spec of one. Empty: they are where package podtemplate finds them.
	Path string
}

// ParseTemplate reads a Template of the form GROUP/VERSION/KIND or GROUP/VERSION/KIND={.path}.
func ParseTemplate(text string) (Template, error) {
	name, path, hasPath := strings.Cut(text, "=")
	parts := strings.Split(name, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Template{}, fmt.Errorf("%q: expected GROUP/VERSION/KIND or GROUP/VERSION/KIND={.path}, such as argoproj.io/v1alpha1/Rollout={.spec.template}", text)
	}
	t := Template{schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}, path}
	for i := range kinds {
		if apiVersion, kind := t.ToAPIVersionAndKind(); kinds[i].apiVersion == apiVersion && kinds[i].name == kind {
			return Template{}, fmt.Errorf("%q: %s is read anyway", text, kind)
		}
	}
	if !hasPath {
		return t, nil
	}
	if !strings.HasPrefix(path, "{") {
		return Template{}, fmt.Errorf("%q: a JSONPath is in braces, such as {.spec.template}", text)
	}
	if loop.MatchString(path) { // the library evaluates it for the first object only
		return Template{}, fmt.Errorf("%q: range is not supported; {.spec.jobs[*].template} selects all of a list", text)
	}
	if err := jsonpath.New("").Parse(path); err != nil {
		return Template{}, fmt.Errorf("%q: %w", text, err)
	}
	return t, nil
}

var loop = regexp.MustCompile(`\{\s*(range|end)\b`)

// AllTemplates returns the templates whose kinds the API server has and whose objects may be listed
// and watched: a cache that waits for others never is complete. It is an error if their objects are in
// no namespace. Other kinds that may be read come after them.
func AllTemplates(ctx context.Context, log logr.Logger, api client.Client, templates []Template) ([]Template, error) {
	served, err := servedTemplates(ctx, log, api, templates)
	if err != nil {
		return nil, err
	}
	readable, err := readableTemplates(ctx, log, api)
	if err != nil {
		return nil, err
	}
	for _, t := range readable {
		if !slices.ContainsFunc(templates, func(named Template) bool { return named.GroupKind() == t.GroupKind() }) {
			log.Info("Reading the pod templates of another kind, which the resolver may list and watch", "kind", t.String())
			served = append(served, t)
		}
	}
	return served, nil
}

// readableTemplates returns those of the namespaced kinds that a rule of RBAC names and lets who asks list and watch. A
// rule for all groups or resources names none, and the groups of Kubernetes and of this project have no others.
func readableTemplates(ctx context.Context, log logr.Logger, api client.Client) (found []Template, err error) {
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: metav1.NamespaceDefault}}
	if err := api.Create(ctx, review); err != nil {
		if apierrors.IsForbidden(err) { // see MayRead
			return nil, nil
		}
		return nil, fmt.Errorf("asking what may be read: %w", err)
	}
	may := func(rule authorizationv1.ResourceRule, verb string) bool {
		return slices.Contains(rule.Verbs, verb) || slices.Contains(rule.Verbs, "*")
	}
	for _, rule := range review.Status.ResourceRules {
		if !may(rule, "list") || !may(rule, "watch") || len(rule.ResourceNames) > 0 {
			continue
		}
		for _, group := range rule.APIGroups {
			if !strings.Contains(group, ".") || scheme.Scheme.IsGroupRegistered(group) || group == v1alpha1.GroupVersion.Group {
				continue
			}
			for _, resource := range rule.Resources {
				mapping, err := mapped(api, group, resource)
				switch {
				case meta.IsNoMatchError(err): // also all resources, and subresources
					continue
				case err != nil: // nobody named it, and its server may be away
					log.Error(err, "Cannot find out about a kind that the resolver may list and watch: restart the resolver to have it read", "resource", resource+"."+group)
					continue
				}
				t := Template{GroupVersionKind: mapping.GroupVersionKind}
				if mapping.Scope.Name() != meta.RESTScopeNameNamespace || slices.Contains(found, t) {
					continue
				}
				// The rule may be that of a RoleBinding, for this namespace alone.
				may, err := MayRead(ctx, api, mapping.Resource)
				if err != nil {
					return nil, fmt.Errorf("asking whether %s may be read: %w", t.GroupVersionKind, err)
				}
				if may {
					found = append(found, t)
				}
			}
		}
	}
	return found, nil
}

// mapped returns the kind of a resource, in the version that the API server prefers.
func mapped(api client.Client, group, resource string) (*meta.RESTMapping, error) {
	kind, err := api.RESTMapper().KindFor(schema.GroupVersionResource{Group: group, Resource: resource})
	if err != nil {
		return nil, err
	}
	return api.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
}

func servedTemplates(ctx context.Context, log logr.Logger, api client.Client, templates []Template) ([]Template, error) {
	var served []Template
	for _, t := range templates {
		mapping, err := api.RESTMapper().RESTMapping(t.GroupKind(), t.Version)
		if meta.IsNoMatchError(err) {
			log.Info("The API server does not serve this kind: install its CustomResourceDefinition, and restart the resolver", "kind", t.String())
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", t.GroupVersionKind, err)
		}
		if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
			return nil, fmt.Errorf("templates of %s: its objects are in no namespace, for which images and pull secrets count", t.GroupVersionKind)
		}
		may, err := MayRead(ctx, api, mapping.Resource)
		if err != nil {
			return nil, fmt.Errorf("asking whether %s may be read: %w", t.GroupVersionKind, err)
		}
		if !may {
			log.Info("The resolver may not list and watch this kind: bind a ClusterRole that allows it, and restart the resolver", "kind", t.String())
			continue
		}
		served = append(served, t)
	}
	return served, nil
}

// MayRead reports whether who asks may list and watch a resource in all namespaces.
func MayRead(ctx context.Context, api client.Client, resource schema.GroupVersionResource) (bool, error) {
	for _, verb := range []string{"list", "watch"} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: resource.Group, Version: resource.Version, Resource: resource.Resource},
		}}
		err := api.Create(ctx, review)
		if apierrors.IsForbidden(err) { // all accounts may ask, unless a cluster took that from them
			return true, nil
		}
		if err != nil || !review.Status.Allowed {
			return false, err
		}
	}
	return true, nil
}

// kindsOf returns the kinds of templates, each with all its paths.
func kindsOf(templates []Template) []Kind {
	var found []Kind
	paths := map[schema.GroupVersionKind]*templatePaths{}
	for _, t := range templates {
		known := paths[t.GroupVersionKind]
		if known == nil {
			known = &templatePaths{}
			paths[t.GroupVersionKind] = known
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(t.GroupVersionKind)
			apiVersion, name := t.ToAPIVersionAndKind()
			found = append(found, Kind{apiVersion: apiVersion, name: name, Object: object, template: known.spec})
		}
		if t.Path == "" {
			known.anywhere = true
			continue
		}
		path := jsonpath.New(t.Path).AllowMissingKeys(true)
		if path.Parse(t.Path) == nil {
			known.paths = append(known.paths, path)
		}
	}
	return found
}

// templatePaths lead to the pod templates of an object.
type templatePaths struct {
	mu       sync.Mutex // evaluating a path changes it
	paths    []*jsonpath.JSONPath
	anywhere bool // also where package podtemplate finds them
}

// spec returns one spec with the images of all templates of an object, and the pull secrets
// of the first; nil if it has none. What is no template is passed over.
func (t *templatePaths) spec(object any) *corev1.PodSpec {
	o, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var all *corev1.PodSpec
	n := 0
	if t.anywhere {
		for _, found := range podtemplate.In(o.Object) {
			all = together(all, &found.Template.Spec)
			n++
		}
	}
	for _, path := range t.paths {
		results, err := path.FindResults(o.Object)
		if err != nil {
			continue
		}
		for _, values := range results {
			for _, value := range values {
				if n++; n > maxTemplates {
					return all
				}
				if !value.CanInterface() {
					continue
				}
				if spec, err := specOf(value.Interface()); err == nil {
					all = together(all, spec)
				}
			}
		}
	}
	return all
}

// specOf reads a pod template, or the spec of one.
func specOf(value any) (*corev1.PodSpec, error) {
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("no object")
	}
	if inner, ok := fields["spec"].(map[string]any); ok {
		fields = inner
	}
	var spec corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &spec); err != nil {
		return nil, err
	}
	return &spec, nil
}

// together adds the images of a spec to those of another.
func together(all, more *corev1.PodSpec) *corev1.PodSpec {
	if all == nil {
		return more
	}
	all.InitContainers = append(all.InitContainers, more.InitContainers...)
	all.Containers = append(all.Containers, more.Containers...)
	all.Volumes = append(all.Volumes, more.Volumes...)
	return all
}
