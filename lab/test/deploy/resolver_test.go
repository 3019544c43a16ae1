//go:build e2e

package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// testResolver applies layer-resolver as docs/resolver-install.md describes
// it for a registry with a private address, and checks that its pods resolve
// images, one after the other.
func testResolver(t *testing.T, image string) {
	registry := c.Registry().Address
	addr, err := netip.ParseAddrPort(registry)
	must(t, err)
	network := netip.PrefixFrom(addr.Addr(), 24).Masked()
	begin := time.Now()
	// A copy, in which the nodes' configuration replaces the example.
	folder, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	shipped := filepath.Join(folder, "resolver")
	must(t, os.CopyFS(shipped, os.DirFS(deployed+"/resolver")))
	must(t, os.CopyFS(filepath.Join(folder, "images"), os.DirFS(deployed+"/images")))
	conf := fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", registry)
	must(t, os.WriteFile(filepath.Join(shipped, "components/registries-conf/registries.conf"), []byte(conf), 0o600))
	apply(t, render(t, shipped, map[string]any{
		"components": []string{filepath.Join(shipped, "components/registries-conf")},
		"images":     []map[string]string{kustomize.Image(kustomize.Shipped+"layer-resolver", image)},
		"patches": []map[string]any{{
			"target": map[string]string{"kind": "Deployment", "name": resolver},
			"patch":  "- {op: add, path: /spec/template/spec/containers/0/args/-, value: --allow-network=" + network.String() + "}",
		}},
	}), resolver)

	_, first := elected(t, resolver, resolver)
	resolves(t, "one")
	must(t, client.CoreV1().Pods(namespace).Delete(t.Context(), first, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	if _, second := elected(t, resolver, resolver); second == first {
		t.Errorf("%s leads after its end", first)
	}
	resolves(t, "two")
	if _, refused := requests(t, begin); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// resolverImage builds and pushes the image without a container tool, as "make resolver-image" does. It
// returns its name with digest.
func resolverImage(t *testing.T) string {
	t.Helper()
	var stderr bytes.Buffer
	build := exec.CommandContext(t.Context(), "scripts/resolver-image.sh", "--out", t.TempDir(), "--push", c.Registry().Address+"/no-container-tool", "--insecure")
	build.Dir, build.Stderr = filepath.Dir(deployed), &stderr
	out, err := build.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	lines := strings.Fields(string(out))
	return lines[len(lines)-1]
}

// resolves waits until the image of a new pod is known.
func resolves(t *testing.T, podName string) {
	t.Helper()
	pushed := livetest.Push(t, c.Registry().Address+"/"+podName+":1", images.Image{
		Layers: []images.Layer{{Name: podName, Size: 1 << 20}},
	})
	create(t, podName, func(pod *corev1.Pod) {
		pod.Spec.SchedulerName = corev1.DefaultSchedulerName
		pod.Spec.Containers[0].Image = pushed.Reference
	})
	manifests := imageManifests(t)
	livetest.Eventually(t, time.Minute, "the image of pod "+podName+" is resolved", func(ctx context.Context) error {
		var list v1alpha1.ImageManifestList
		if err := manifests.List(ctx, &list); err != nil {
			return err
		}
		for _, m := range list.Items {
			if !slices.ContainsFunc(m.Status.References, func(r v1alpha1.ImageReference) bool { return r.Name == pushed.Reference }) {
				continue
			}
			if !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionResolved) || len(m.Spec.Layers) == 0 {
				return fmt.Errorf("%+v", m.Status.Conditions)
			}
			return nil
		}
		return errors.New("no ImageManifest of it")
	})
}

// imageManifests reads ImageManifests.
func imageManifests(t *testing.T) crclient.Reader {
	t.Helper()
	config, err := c.RESTConfig()
	must(t, err)
	scheme := runtime.NewScheme()
	must(t, v1alpha1.AddToScheme(scheme))
	reader, err := crclient.New(config, crclient.Options{Scheme: scheme})
	must(t, err)
	return reader
}
