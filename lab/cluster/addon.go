package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
)

// Addon is a component that does not belong to Kubernetes. It runs on the
// machine of the control plane. It is plain data: every handle on the cluster
// reads it from the cluster's folder and treats the add-on like any other
// component.
//
// In Args, Health and Manifests, $(NAME) stands for a value that is known once the cluster
// exists. So it does in the configuration of the scheduler, but for the add-on's own:
//
//	$(ADDRESS)          the address of that machine, for the add-on to listen on
//	$(SUBNET)           the cluster's network, as in 198.51.100.0/24
//	$(KUBECONFIG)       the path of the add-on's kubeconfig, if it has a User
//	$(REGISTRIES_CONF)  the path of the nodes' containers-registries.conf(5)
//	$(PAUSE_IMAGE)      the image of sandboxes
//	$(PKI)              the folder with ca.crt, the certificate authority of the cluster,
//	                    and control.crt and control.key, which are for servers on that
//	                    address and for their clients
type Addon struct {
	// Name of the add-on, of its log, and of its program.
	Name string `json:"name"`
	// Tool means that its program is in BinDir/tools. Others are in BinDir/patched: upstream
	// has no such programs.
	Tool bool `json:"tool,omitempty"`
	// Settings it starts with. Flavour has no effect here.
	Settings Component `json:"settings"`
	// Args of its program, before those of Settings.
	Args []string `json:"args,omitempty"`
	// Health is a URL that answers with 200 once the add-on serves. With https,
	// its certificate must be signed by the cluster's CA.
	Health string `json:"health"`
	// User and Groups are the add-on's identity at the apiserver: those of the
	// client certificate in its kubeconfig. Without a User it has no kubeconfig.
	User   string   `json:"user,omitempty"`
	Groups []string `json:"groups,omitempty"`
	// Manifests are YAML documents to apply before the add-on, the nodes and the
	// scheduler start: its RBAC rules and CustomResourceDefinitions.
	Manifests string `json:"manifests,omitempty"`
	// Namespace of the namespaced objects that do not name one.
	Namespace string `json:"namespace,omitempty"`
}

// Addon returns the add-on with that name, or nil if the cluster has none.
func (c *Cluster) Addon(name string) *Process {
	if !slices.ContainsFunc(c.config.Addons, func(a Addon) bool { return a.Name == name }) {
		return nil
	}
	return find(c.control, name)
}

// placeholder is $(NAME), as in the arguments of a container.
var placeholder = regexp.MustCompile(`\$\(([^)]*)\)`)

// values has the function that computes each placeholder's value.
var values = map[string]func(*Cluster, *Addon) string{
	"ADDRESS":         func(c *Cluster, _ *Addon) string { return c.Address().String() },
	"SUBNET":          func(c *Cluster, _ *Addon) string { return c.subnet.String() },
	"KUBECONFIG":      func(c *Cluster, a *Addon) string { return c.Addon(a.Name).kubeconfig() },
	"REGISTRIES_CONF": func(c *Cluster, _ *Addon) string { return c.files.RegistriesConf() },
	"PAUSE_IMAGE":     func(c *Cluster, _ *Addon) string { return c.files.PauseImage() },
	"PKI":             func(c *Cluster, _ *Addon) string { return c.path("pki") },
}

// ofAddons are the placeholders whose value differs from add-on to add-on.
var ofAddons = []string{"KUBECONFIG"}

// expandAll replaces placeholders in all texts of a configuration file; those of add-ons and
// unknown ones stay.
func expandAll(c *Cluster, value any) any {
	switch value := value.(type) {
	case string:
		return placeholder.ReplaceAllStringFunc(value, func(found string) string {
			name := placeholder.FindStringSubmatch(found)[1]
			if f := values[name]; f != nil && !slices.Contains(ofAddons, name) {
				return f(c, nil)
			}
			return found
		})
	case map[string]any:
		expanded := make(map[string]any, len(value))
		for key, v := range value {
			expanded[key] = expandAll(c, v)
		}
		return expanded
	case []map[string]any:
		expanded := make([]any, len(value))
		for i, v := range value {
			expanded[i] = expandAll(c, v)
		}
		return expanded
	case []any:
		expanded := make([]any, len(value))
		for i, v := range value {
			expanded[i] = expandAll(c, v)
		}
		return expanded
	}
	return value
}

// expand replaces placeholders by their values. Unknown ones, which check
// rejects, stay.
func (a *Addon) expand(c *Cluster, text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		if value := values[placeholder.FindStringSubmatch(found)[1]]; value != nil {
			return value(c, a)
		}
		return found
	})
}

func (a *Addon) entry(c *Cluster) entry {
	build := string(Patched)
	if a.Tool {
		build = tools
	} else if a.Name == "layer-resolver" {
		build = c.config.labOr(build)
	}
	return entry{
		name: a.Name, build: build, settings: a.Settings,
		user: a.User, groups: a.Groups,
		arguments: fixed(func() []string {
			args := make([]string, len(a.Args))
			for i, arg := range a.Args {
				args[i] = a.expand(c, arg)
			}
			return args
		}),
		healthy: func(ctx context.Context) error { return c.get(ctx, a.expand(c, a.Health)) },
	}
}

// check validates an add-on on its own.
func (a *Addon) check() error {
	if !nameForm.MatchString(a.Name) {
		return errors.New("its name: want lower-case letters, digits and dashes, at most 32")
	}
	if a.Health == "" {
		return errors.New("it has no Health: set the URL that reports whether it serves")
	}
	for _, text := range append([]string{a.Health}, a.Args...) {
		for _, found := range placeholder.FindAllStringSubmatch(text, -1) {
			if values[found[1]] == nil {
				return fmt.Errorf("%q: nothing is known as %s: want one of %s",
					text, found[0], strings.Join(slices.Sorted(maps.Keys(values)), ", "))
			}
			if found[1] == "KUBECONFIG" && a.User == "" {
				return fmt.Errorf("%q: it has no kubeconfig: set User", text)
			}
		}
	}
	return nil
}

// checkAddons validates the add-ons, each on its own and together.
func (c *Config) checkAddons() error {
	builtIn := (&Config{Nodes: 2, ContainerRuntimes: map[string]ContainerRuntime{"n2": Containerd}}).components()
	seen := map[string]bool{}
	for i := range c.Addons {
		addon := &c.Addons[i]
		if addon.Name == "" {
			return fmt.Errorf("add-on %d of %d has no name: set Name, that of its program", i+1, len(c.Addons))
		}
		if err := addon.check(); err != nil {
			return fmt.Errorf("add-on %s: %w", addon.Name, err)
		}
		if c.RuntimeOnly {
			return fmt.Errorf("add-on %s: it needs a control plane, which RuntimeOnly leaves out", addon.Name)
		}
		if find(builtIn, addon.Name) != nil {
			return fmt.Errorf("add-on %s: every cluster has a component of that name: choose another, and set Settings.Binary", addon.Name)
		}
		if seen[addon.Name] {
			return fmt.Errorf("add-on %s: two have that name: give one another, and set its Settings.Binary", addon.Name)
		}
		seen[addon.Name] = true
	}
	return nil
}

// install applies what an add-on needs, and waits until the apiserver serves the
// resources that it defines.
func (c *Cluster) install(ctx context.Context, addon *Addon) error {
	manifests := []byte(addon.expand(c, addon.Manifests))
	if err := c.Apply(ctx, addon.Namespace, manifests); err != nil {
		return err
	}
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GroupVersionKind().GroupKind() != apiextensionsv1.Kind("CustomResourceDefinition") {
			continue
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := kruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &definition); err != nil {
			return fmt.Errorf("%s: %w", object.GetName(), err)
		}
		for _, version := range definition.Spec.Versions {
			if !version.Served {
				continue
			}
			err := eventually(ctx, definition.Name+" "+version.Name, func(ctx context.Context) error {
				return client.Discovery().RESTClient().Get().
					AbsPath("/apis", definition.Spec.Group, version.Name, definition.Spec.Names.Plural).Do(ctx).Error()
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
