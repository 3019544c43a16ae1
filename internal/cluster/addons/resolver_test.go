package addons

import (
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/internal/cluster"
)

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
