package controller

import (
	"context"
	"reflect"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// setMirrors keeps the last mirrors.
type setMirrors struct{ got []registry.Mirrors }

func (s *setMirrors) SetMirrors(all []registry.Mirrors) []error {
	s.got = all
	return nil
}

// TestMirrorsOfCluster: the objects of OpenShift are read, all together in a fixed order, and
// what was refused is asked for again when they change.
func TestMirrorsOfCluster(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	to := &setMirrors{}
	r.mirrors = &mirrorSets{to: to, byObject: map[string][]registry.Mirrors{}}
	r.usage.set(claimFor("w", "ns", privateImage))
	image := imageOf(privateImage)
	digests, tags := r.mirrorHandler(&mirrorKinds[0]), r.mirrorHandler(&mirrorKinds[1])
	refuse := func() { r.attempts.failed(image, r.attempts.of(image), v1alpha1.ReasonNotFound, "", 0) }

	refuse()
	tags.OnAdd(objectOf(t, `
metadata: {name: b}
spec: {imageTagMirrors: [{source: quay.io/t, mirrors: [m.example/t]}]}`), true)
	if got := r.attempts.of(image).reason; got != "" {
		t.Errorf("still %s, although a mirror may have it", got)
	}
	idms := objectOf(t, `
metadata: {name: a}
spec:
  imageDigestMirrors:
  - {source: quay.io, mirrors: [m.example/q, n.example/q], mirrorSourcePolicy: NeverContactSource}
  - {source: r.example/x, mirrors: [m.example/x], mirrorSourcePolicy: AllowContactingSource}`)
	digests.OnAdd(idms, true)
	if want := []registry.Mirrors{
		{Source: "quay.io", Mirrors: []string{"m.example/q", "n.example/q"}, Only: true},
		{Source: "r.example/x", Mirrors: []string{"m.example/x"}},
		{Source: "quay.io/t", Mirrors: []string{"m.example/t"}, Tags: true},
	}; !reflect.DeepEqual(to.got, want) {
		t.Errorf("mirrors\n%+v, want\n%+v", to.got, want)
	}
	refuse()
	digests.OnDelete(cache.DeletedFinalStateUnknown{Obj: idms})
	if len(to.got) != 1 || r.attempts.of(image).reason != "" {
		t.Errorf("mirrors %+v, refused because of %q", to.got, r.attempts.of(image).reason)
	}
	for _, broken := range []string{"spec: {imageTagMirrors: x}", "spec: {imageTagMirrors: [x]}", "spec: {imageTagMirrors: [{source: [x]}]}", "spec: {}"} {
		tags.OnUpdate(nil, objectOf(t, "metadata: {name: b}\n"+broken))
		if len(to.got) != 0 {
			t.Errorf("%s: mirrors %+v", broken, to.got)
		}
	}
}

// TestKeychainFromSecret: one secret for all workloads; a missing one is an error that names
// it, and not a request with other credentials.
func TestKeychainFromSecret(t *testing.T) {
	host, err := name.NewRegistry("reg.example.com")
	if err != nil {
		t.Fatal(err)
	}
	global := secret("pull-secret", "right")
	global.Namespace = "openshift-config"
	reader := fake.NewClientBuilder().WithObjects(global).Build()
	found, err := KeychainFromSecret(reader, "openshift-config", "pull-secret").Resolve(host)
	if err != nil {
		t.Fatal(err)
	}
	if config, err := found.Authorization(); err != nil || config.Username != "right" {
		t.Errorf("%+v, error %v", config, err)
	}
	if _, err = KeychainFromSecret(reader, "openshift-config", "other").Resolve(host); err == nil || err.Error() != "pull secret openshift-config/other does not exist" {
		t.Errorf("error %v", err)
	}
	// It is not read for each request; what was canceled says nothing about it.
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	reads := 0
	counting := KeychainFromSecret(interceptor.NewClient(reader, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			reads++
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return c.Get(ctx, key, o, opts...)
		},
	}), "openshift-config", "pull-secret").(authn.ContextKeychain)
	for i, ctx := range []context.Context{canceled, t.Context(), t.Context()} {
		if _, err := counting.ResolveContext(ctx, host); (err != nil) != (i == 0) {
			t.Errorf("request %d: error %v", i, err)
		}
	}
	if reads != 2 {
		t.Errorf("%d reads, want 2", reads)
	}
	global.Type = corev1.SecretTypeOpaque
	reader = fake.NewClientBuilder().WithObjects(global).Build()
	if _, err = KeychainFromSecret(reader, "openshift-config", "pull-secret").Resolve(host); err == nil {
		t.Error("a secret of another type was used")
	}
}
