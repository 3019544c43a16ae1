//go:build e2e

package resolver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// TestOpenShift: the kinds that OpenShift and Argo Rollouts define, with the rights of their
// components: images of Rollouts without pods, mirrors of the cluster, of which one wants the
// global pull secret.
func TestOpenShift(t *testing.T) {
	const namespace, source = "openshift-config", "source.example.com/team"
	for _, kind := range [][3]string{
		{"argoproj.io", "v1alpha1", "Rollout"}, {"config.openshift.io", "v1", "ImageDigestMirrorSet"}, {"config.openshift.io", "v1", "ImageTagMirrorSet"},
		{"operator.openshift.io", "v1alpha1", "ImageContentSourcePolicy"},
	} {
		// They stay until the cluster ends; nothing else looks at them.
		must(t, c.Apply(t.Context(), "", []byte(controlplane.OpenKind(kind[0], kind[1], kind[2]))))
	}
	namespaces := lab.Client.CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, namespaces.Delete(context.Background(), namespace, metav1.DeleteOptions{})) })
	for _, component := range []string{"openshift", "argo-rollouts"} {
		rights, err := os.ReadFile("../../../deploy/resolver/components/" + component + "/rbac.yaml")
		must(t, err)
		must(t, c.Apply(t.Context(), "", rights))
	}

	mirror, _ := startRegistry(t, basicAuth(t))
	push := func(repository string) (digest string) {
		image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "openshift-" + repository, Size: 1000}}})
		must(t, err)
		parsed, err := name.ParseReference(mirror+"/"+repository+":v1", name.Insecure)
		must(t, err)
		must(t, remote.Write(parsed, image, remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: user, Password: password})))
		hash, err := image.Digest()
		must(t, err)
		return hash.String()
	}
	push("tags/app")
	digest := push("digests/app")
	createSecret(t, namespace, "pull-secret", mirror, password)
	plain := pushSmall(t, "rolled:v1").Reference
	byTag, byDigest := source+"/app:v1", source+"/app@"+digest

	restartResolver(t, func(s *cluster.Component) {
		s.Args = append(s.Args, "--template=argoproj.io/v1alpha1/Rollout", "--cluster-mirrors", "--docker-config-secret="+namespace+"/pull-secret")
	})
	for i, image := range []string{plain, byTag, byDigest} {
		// The kind is known to clients a moment after its definition.
		must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
			return c.Apply(ctx, metav1.NamespaceDefault, fmt.Appendf(nil,
				"{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: rolled-%d}, spec: {template: {spec: {containers: [{name: main, image: %q}]}}}}", i, image))
		}))
	}
	must(t, lab.Resolved(t.Context(), plain))
	for _, image := range []string{byTag, byDigest} {
		_, condition, err := lab.Failed(t.Context(), image, v1alpha1.ReasonUnavailable)
		must(t, err)
		t.Log(condition.Message)
	}

	// The mirrors count as soon as they are there, each for its form of a reference.
	for _, set := range [][3]string{{"ImageTagMirrorSet", "imageTagMirrors", "tags"}, {"ImageDigestMirrorSet", "imageDigestMirrors", "digests"}} {
		must(t, c.Apply(t.Context(), "", fmt.Appendf(nil,
			"{apiVersion: config.openshift.io/v1, kind: %s, metadata: {name: %s}, spec: {%s: [{source: %q, mirrors: [%q]}]}}",
			set[0], set[2], set[1], source, mirror+"/"+set[2])))
	}
	must(t, lab.Resolved(t.Context(), byTag, byDigest))
	manifest, err := lab.Manifest(t.Context(), byTag)
	must(t, err)
	if strings.Contains(fmt.Sprint(manifest), mirror) {
		t.Errorf("the object names the mirror %s", mirror)
	}
}
