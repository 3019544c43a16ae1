//go:build e2e

package cluster_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestAddon: an add-on is a component like any other, also for a handle that
// opens the cluster later.
func TestAddon(t *testing.T) {
	ctx := timeout(t, 5*time.Minute)
	dir := shortDir(t)
	before := observe(t)
	c, err := livetest.Start(ctx, cluster.Config{
		Name: "e2e-addon", Dir: dir, LogDir: logs(t), Nodes: 1,
		Addons: []cluster.Addon{addons.Resolver(cluster.Component{Env: []string{"LL_TEST=first"}})},
	})
	check(t, err)
	used := namespaces(t, dir)

	t.Run("its rights", func(t *testing.T) { testAddonIdentity(ctx, t, c) })
	t.Run("what it needs is there", func(t *testing.T) {
		client, err := c.Client()
		check(t, err)
		resource := v1alpha1.ImageManifestsResource
		check(t, client.Discovery().RESTClient().Get().AbsPath("/apis", resource.Group, resource.Version, resource.Resource).Do(ctx).Error())
	})
	t.Run("another handle", func(t *testing.T) { testAddonOpened(ctx, t, c) })
	t.Run("another process", func(t *testing.T) {
		out, err := exec.CommandContext(ctx, localcluster(t), "status", "--json", "--dir", dir).Output()
		check(t, err)
		var status cluster.Status
		check(t, json.Unmarshal(out, &status))
		i := slices.IndexFunc(status.Processes, func(p cluster.ProcessStatus) bool { return p.Name == "control layer-resolver" })
		if i < 0 {
			t.Fatalf("no layer-resolver in %s", out)
		}
		p := status.Processes[i]
		if p.PID != c.Addon(addons.LayerResolver).PID() || !p.Healthy || !strings.HasSuffix(p.Binary, "/patched/layer-resolver") {
			t.Errorf("status %+v", p)
		}
	})

	check(t, c.Stop(ctx))
	assertNothingLeft(t, dir, before, used)
}

// testAddonIdentity: the add-on has the identity to which its manifests give
// rights.
func testAddonIdentity(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir(), "pki", "layer-resolver.kubeconfig"))
	check(t, err)
	client, err := kubernetes.NewForConfig(config)
	check(t, err)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	check(t, err)
	user := review.Status.UserInfo
	if user.Username != "system:serviceaccount:kube-system:layer-resolver" || !slices.Contains(user.Groups, "system:serviceaccounts:kube-system") {
		t.Errorf("it is %+v", user)
	}
}

// testAddonOpened restarts the add-on through a handle that was opened from the
// cluster's folder.
func testAddonOpened(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	opened, err := cluster.Open(c.Dir())
	check(t, err)
	defer opened.Close()
	for name, handle := range map[string]*cluster.Cluster{"the first": c, "the second": opened} {
		if handle.Addon("etcd") != nil || handle.Addon("layer-watcher") != nil {
			t.Errorf("%s handle has add-ons that the cluster does not", name)
		}
	}
	addon := opened.Addon(addons.LayerResolver)
	if addon == nil {
		t.Fatal("a handle that was opened has no layer-resolver")
	}
	old := addon.PID()
	if old == 0 || old != c.Addon(addons.LayerResolver).PID() {
		t.Errorf("process %d for one handle, %d for another", c.Addon(addons.LayerResolver).PID(), old)
	}
	check(t, addon.Restart(ctx, func(s *cluster.Component) {
		if !slices.Equal(s.Env, []string{"LL_TEST=first"}) {
			t.Errorf("its environment is %v, not that of the start", s.Env)
		}
		s.Args = []string{"-v=1"}
	}))
	if pid := c.Addon(addons.LayerResolver).PID(); pid == old || pid == 0 {
		t.Errorf("process %d before and %d after the restart", old, pid)
	}
	// Args with the cluster's address are used again: the metrics are served at
	// that address.
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, addons.ResolverURL(opened)+"/metrics", nil)
	check(t, err)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	check(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(t, err)
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), "go_goroutines") {
		t.Errorf("metrics: %s: %.200s", response.Status, body)
	}
}
