package addons

import (
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// The add-on has the identity to which deploy/extender gives rights, and kube-scheduler's
// entry leads to where it listens.
func TestExtenderHasTheRightsOfDeploy(t *testing.T) {
	t.Parallel()
	addon := Extender(cluster.Component{})
	if addon.User != "system:serviceaccount:"+addon.Namespace+":"+addon.Name || addon.Name != LayerExtender {
		t.Errorf("%s is user %s", addon.Name, addon.User)
	}
	for _, want := range []string{"kind: ClusterRoleBinding", "kind: ServiceAccount\nmetadata:\n  name: " + LayerExtender + "\n"} {
		if !strings.Contains(addon.Manifests, want) {
			t.Errorf("the manifests lack %q", want)
		}
	}
	entry := ExtenderEntry("layers", 3, map[string]any{"httpTimeout": "1s"})
	if entry["weight"] != 3 || entry["httpTimeout"] != "1s" || entry["prioritizeVerb"] != "priorities/layers" {
		t.Errorf("%v", entry)
	}
	if prefix, _ := entry["urlPrefix"].(string); addon.Health != strings.TrimSuffix(prefix, "/scheduler")+"/readyz" {
		t.Errorf("it is asked at %s, and healthy at %s", prefix, addon.Health)
	}
}

// The add-on has the identity to which deploy/resolver gives rights.
func TestResolverHasTheRightsOfDeploy(t *testing.T) {
	t.Parallel()
	addon := Resolver(cluster.Component{Args: []string{"-v=1"}})
	if len(addon.Settings.Args) != 1 {
		t.Errorf("settings %+v", addon.Settings)
	}
	namespace, name, ok := strings.Cut(strings.TrimPrefix(addon.User, "system:serviceaccount:"), ":")
	if !ok || namespace != addon.Namespace {
		t.Errorf("user %s of namespace %s", addon.User, addon.Namespace)
	}
	for _, want := range []string{
		"kind: CustomResourceDefinition", "kind: ClusterRoleBinding",
		"kind: ServiceAccount\n  name: " + name + "\n",
	} {
		if !strings.Contains(addon.Manifests, want) {
			t.Errorf("the manifests lack %q", want)
		}
	}
}
