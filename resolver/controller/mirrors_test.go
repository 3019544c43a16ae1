package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// setMirrors keeps the last mirrors.
type setMirrors struct{ got []mirrors.Entry }

func (s *setMirrors) SetMirrors(all []mirrors.Entry) []error {
	s.got = all
	return nil
}

// TestMirrorsOfCluster: the objects of OpenShift are read, all together in a fixed order, and
// what was refused is asked for again when they change.
func TestMirrorsOfCluster(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	to := &setMirrors{}
	r.mirrors = &mirrorSets{to: to, byObject: map[string][]mirrors.Entry{}}
	r.usage.Set(imagesFor("w", "ns", privateImage))
	image := usage.ImageOf(privateImage)
	digests, tags := r.mirrorHandler(&mirrorKinds[0]), r.mirrorHandler(&mirrorKinds[1])
	refuse := func() { r.attempts.failed(image, r.attempts.of(image), v1alpha1.ReasonNotFound, "", 0) }

	refuse()
	tags.OnAdd(objectOf(t, `
metadata: {name: b}
spec: {imageTagMirrors: [{source: quay.io/t, mirrors: [m.example/t]}]}`), true)
	if got := r.attempts.of(image).Reason; got != "" {
		t.Errorf("still %s, although a mirror may have it", got)
	}
	idms := objectOf(t, `
metadata: {name: a}
spec:
  imageDigestMirrors:
  - {source: quay.io, mirrors: [m.example/q, n.example/q], mirrorSourcePolicy: NeverContactSource}
  - {source: r.example/x, mirrors: [m.example/x], mirrorSourcePolicy: AllowContactingSource}`)
	digests.OnAdd(idms, true)
	if want := []mirrors.Entry{
		{Source: "quay.io", Mirrors: []string{"m.example/q", "n.example/q"}, Only: true},
		{Source: "r.example/x", Mirrors: []string{"m.example/x"}},
		{Source: "quay.io/t", Mirrors: []string{"m.example/t"}, Tags: true},
	}; !reflect.DeepEqual(to.got, want) {
		t.Errorf("mirrors\n%+v, want\n%+v", to.got, want)
	}
	refuse()
	digests.OnDelete(cache.DeletedFinalStateUnknown{Obj: idms})
	if len(to.got) != 1 || r.attempts.of(image).Reason != "" {
		t.Errorf("mirrors %+v, refused because of %q", to.got, r.attempts.of(image).Reason)
	}
	policies := r.mirrorHandler(&mirrorKinds[2])
	icsp := objectOf(t, "metadata: {name: c}\nspec: {repositoryDigestMirrors: [{source: r.example, mirrors: [m.example/r]}]}")
	policies.OnAdd(icsp, true)
	if want := (mirrors.Entry{Source: "r.example", Mirrors: []string{"m.example/r"}}); len(to.got) != 2 || !reflect.DeepEqual(to.got[0], want) {
		t.Errorf("mirrors %+v, want %+v first", to.got, want)
	}
	policies.OnDelete(icsp)
	for _, broken := range []string{"spec: {imageTagMirrors: x}", "spec: {imageTagMirrors: [x]}", "spec: {imageTagMirrors: [{source: [x]}]}", "spec: {}"} {
		tags.OnUpdate(nil, objectOf(t, "metadata: {name: b}\n"+broken))
		if len(to.got) != 0 {
			t.Errorf("%s: mirrors %+v", broken, to.got)
		}
	}
}

// discovering is a manager of which only the mapper is asked, and what may be read: all but a resource.
type discovering struct {
	manager.Manager
	mapper    meta.RESTMapper
	forbidden string
}

func (d *discovering) GetClient() client.Client {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			review := object.(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = review.Spec.ResourceAttributes.Resource != d.forbidden
			return nil
		},
	})
}

func (d *discovering) GetRESTMapper() meta.RESTMapper { return d.mapper }

// undiscovered is a mapper that cannot ask the API server.
type undiscovered struct{ meta.RESTMapper }

func (undiscovered) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, errors.New("connection refused")
}

// TestWatchMirrors: the kinds that the API server has are watched, and an API server that
// does not say which it has is an error.
func TestWatchMirrors(t *testing.T) {
	one := meta.NewDefaultRESTMapper(nil)
	one.Add(openShift.WithKind("ImageTagMirrorSet"), meta.RESTScopeRoot)
	both := meta.NewDefaultRESTMapper(nil)
	for i := range mirrorKinds {
		both.Add(mirrorKinds[i].GroupVersionKind, meta.RESTScopeRoot)
	}
	for _, test := range []struct {
		mapper    meta.RESTMapper
		forbidden string
		watched   []string
		err       string
	}{
		{meta.NewDefaultRESTMapper(nil), "", nil, ""},
		{one, "", []string{"ImageTagMirrorSet"}, ""},
		{both, "", []string{"ImageDigestMirrorSet", "ImageTagMirrorSet", "ImageContentSourcePolicy"}, ""},
		{both, "imagecontentsourcepolicies", []string{"ImageDigestMirrorSet", "ImageTagMirrorSet"}, ""},
		{undiscovered{}, "", nil, "looking for ImageDigestMirrorSet: connection refused"},
	} {
		to := &setMirrors{}
		r, _, _ := newTestResolver(t, &fakeRegistry{}, func(o *Options, _ *dependencies) { o.Mirrors = to })
		var watched []string
		err := r.watchMirrors(t.Context(), &discovering{mapper: test.mapper, forbidden: test.forbidden}, func(o client.Object, handler cache.ResourceEventHandler) error {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			watched = append(watched, kind)
			field := map[string]string{"ImageDigestMirrorSet": "imageDigestMirrors", "ImageTagMirrorSet": "imageTagMirrors", "ImageContentSourcePolicy": "repositoryDigestMirrors"}[kind]
			handler.OnAdd(objectOf(t, "metadata: {name: a}\nspec: {"+field+": [{source: quay.io, mirrors: [m.example]}]}"), true)
			if len(to.got) != len(watched) {
				t.Errorf("%s: mirrors %+v", kind, to.got)
			}
			return nil
		})
		if !slices.Equal(watched, test.watched) || fmt.Sprint(err) != cmp.Or(test.err, "<nil>") {
			t.Errorf("%T: watched %q, error %v; want %q, %q", test.mapper, watched, err, test.watched, test.err)
		}
	}
}

// objectOf returns an object from its YAML.
func objectOf(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}
