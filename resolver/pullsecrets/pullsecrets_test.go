package pullsecrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/usage"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

// forAll are the credentials for all images.
type forAll struct{}

func (forAll) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig{Username: "all"}), nil
}

func secret(named, user string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: named}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"reg.example.com":{"username":"` + user + `","password":"x"}}}`)},
	}
}

// The pull secrets of each namespace are kept apart. What is wrong with a secret keeps no
// other from being used, and no other namespace learns it. Everybody asks with the
// credentials for all, then without any.
func TestKeychains(t *testing.T) {
	wrong := secret("wrong", "nobody")
	wrong.Type = corev1.SecretTypeOpaque
	account := &corev1.ServiceAccount{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "ns", Name: "builder"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "account"}, {Name: "first"}},
	}
	reader := fake.NewClientBuilder().WithObjects(secret("first", "first"), secret("second", "second"), secret("account", "account"), wrong, account).Build()
	pulls := []usage.Pull{
		{Namespace: "ns", ServiceAccount: "default", Secrets: "wrong,first,missing"},
		{Namespace: "ns", ServiceAccount: "builder", Secrets: "second"},
	}
	c := New([]authn.Keychain{forAll{}}, reader)
	found := c.ByNamespace(t.Context(), append(pulls, usage.Pull{Namespace: "other", ServiceAccount: "default", Secrets: "first"}))
	if len(found) != 2 || found[0].Namespace != "ns" || found[1].Namespace != "other" || len(found[1].Keychains) != 0 {
		t.Fatalf("%d namespaces: %+v", len(found), found)
	}
	problems := found[0].Problems
	var users []string
	all, err := keychains.For(t.Context(), "reg.example.com", "app", append(found[0].Keychains, c.ForAll()...))
	if err != nil {
		t.Fatal(err)
	}
	for _, credential := range all {
		users = append(users, credential.Config.Username)
	}
	if want := []string{"first", "second", "account", "all", ""}; !slices.Equal(users, want) {
		t.Errorf("users %q, want %q", users, want)
	}
	if len(problems) != 2 || !strings.Contains(problems[0], "ns/wrong") || !strings.Contains(problems[1], "ns/missing does not exist") {
		t.Errorf("problems %q", problems)
	}
	if found := New([]authn.Keychain{forAll{}}, nil).ByNamespace(t.Context(), pulls); found != nil {
		t.Errorf("without pull secrets: %+v", found)
	}
	if keychains := New(nil, nil).ForAll(); len(keychains) != 0 {
		t.Errorf("without credentials: %d keychains", len(keychains))
	}
}

// count is how many secrets are usable.
func (p pullSecrets) count() int {
	if p.usable == nil {
		return 0
	}
	return len(p.usable.secrets)
}

// TestOrderAmongSecrets: the most specific credential of all secrets is tried first, as the kubelet has it, and an entry
// that names no registry keeps no other from being used.
func TestOrderAmongSecrets(t *testing.T) {
	config := func(named, text string) *corev1.Secret {
		s := secret(named, "")
		s.Data[corev1.DockerConfigJsonKey] = []byte(text)
		return s
	}
	legacy := secret("legacy", "")
	legacy.Type, legacy.Data = corev1.SecretTypeDockercfg, map[string][]byte{corev1.DockerConfigKey: []byte(`{"https://reg.example.com/v2/team/app":{"username":"legacy","password":"x"}}`)}
	reader := fake.NewClientBuilder().WithObjects(legacy,
		config("wide", `{"auths":{"reg.example.com":{"username":"wide","password":"x"},"*.example.com":{"username":"wildcard","password":"x"}}}`),
		config("deep", `{"auths":{"reg.example.com/team":{"username":"deep","password":"x"},"not an address":{"username":"s3cret","password":"s3cret"}}}`),
		config("broken", `{"auths":{"reg.example.com":{"auth":"%"}}}`)).Build()
	found := New(nil, reader).ByNamespace(t.Context(), []usage.Pull{{Namespace: "ns", ServiceAccount: usage.DefaultAccount, Secrets: "wide,deep,legacy,broken"}})
	if len(found) != 1 || len(found[0].Problems) != 2 ||
		!strings.Contains(found[0].Problems[0], "ns/deep: 1 entries are ignored") || !strings.Contains(found[0].Problems[1], "ns/broken cannot be read") || strings.Contains(fmt.Sprint(found[0].Problems), "s3cret") {
		t.Fatalf("%+v", found)
	}
	all, err := keychains.For(t.Context(), "reg.example.com", "team/app", found[0].Keychains)
	var users []string
	for _, credential := range all {
		users = append(users, credential.Config.Username)
	}
	if want := []string{"legacy", "deep", "wide", "wildcard"}; err != nil || !slices.Equal(users, want) {
		t.Errorf("users %q, error %v, want %q", users, err, want)
	}
}

// Neither many nor large pull secrets are read; their owner is told.
func TestPullSecretsAreBounded(t *testing.T) {
	objects := []client.Object{}
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("s%02d", i))
		objects = append(objects, secret(names[i], "user"))
	}
	big := secret("big", "user")
	big.Data[corev1.DockerConfigJsonKey] = append(big.Data[corev1.DockerConfigJsonKey], make([]byte, maxSecretSize)...)
	fits := secret("fits", "user")
	text := fits.Data[corev1.DockerConfigJsonKey]
	fits.Data[corev1.DockerConfigJsonKey] = append(text, bytes.Repeat([]byte(" "), maxSecretSize-len(text))...)
	objects = append(objects, big, fits, &corev1.ServiceAccount{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "ns", Name: "builder"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "s00"}, {Name: "s99"}},
	})
	c := New(nil, fake.NewClientBuilder().WithObjects(objects...).Build())

	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns"}}
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: "builder", Containers: []corev1.Container{{Image: "reg/x:1"}}}
	for _, name := range names {
		d.Spec.Template.Spec.ImagePullSecrets = append(d.Spec.Template.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	deployment := workloads.Kinds(nil)[1]
	named, _ := deployment.ImagesOf(d)
	if n := len(strings.Split(named.Pull.Secrets, ",")); n > usage.MaxSecrets+1 {
		t.Errorf("%d names are kept", n)
	}
	found := c.of(t.Context(), named.Pull)
	if found.count() != usage.MaxSecrets || len(found.problems) != 1 || !strings.Contains(found.problems[0], "more than 32") {
		t.Errorf("%d secrets, problems %q", found.count(), found.problems)
	}
	found = c.of(t.Context(), usage.Pull{Namespace: "ns", ServiceAccount: "builder", Secrets: "s00,big,fits"})
	if found.count() != 3 || len(found.problems) != 1 || !strings.Contains(found.problems[0], "ns/big has") {
		t.Errorf("%d secrets, problems %q", found.count(), found.problems)
	}
}

// Pull secrets within all bounds take no more memory than their text, a little aside.
func TestPullSecretsInMemory(t *testing.T) {
	objects := []client.Object{}
	var names []string
	for i := range maxSecretsSize / maxSecretSize {
		full := secretFor(fmt.Sprint("s", i), maxRegistries, maxSecretSize)
		names, objects = append(names, full.Name), append(objects, full)
	}
	reader := fake.NewClientBuilder().WithObjects(objects...).Build()
	c := New(nil, reader)
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	const workloads = 20
	for w := range workloads {
		p := usage.Pull{Namespace: "ns", ServiceAccount: usage.DefaultAccount, Secrets: strings.Join(names, ",") + strings.Repeat(",", w)}
		if found := c.of(t.Context(), p); found.count() != len(names) || len(found.problems) > 0 {
			t.Fatalf("%d secrets, problems %q", found.count(), found.problems)
		}
	}
	if each := (heap() - before) / workloads; each > maxSecretsSize*5/4 {
		t.Errorf("%d KiB for each workload, its secrets have %d", each>>10, maxSecretsSize>>10)
	}
	runtime.KeepAlive(c)
	one := names[0]
	objects = append(objects, secretFor("many", maxRegistries+1, 0), secretFor("more", 1, 0))
	c = New(nil, fake.NewClientBuilder().WithObjects(objects...).Build())
	for list, want := range map[string]string{
		"many":                             "credentials for 257 registries, at most 256",
		strings.Join(names, ",") + ",more": "more and the others are not used",
	} {
		found := c.of(t.Context(), usage.Pull{Namespace: "ns", ServiceAccount: usage.DefaultAccount, Secrets: list})
		if len(found.problems) != 1 || !strings.Contains(found.problems[0], want) {
			t.Errorf("%s: problems %q", list, found.problems)
		}
	}
	// What fits still opens.
	host, err := name.NewRegistry("r7.example")
	if err != nil {
		t.Fatal(err)
	}
	found := c.of(t.Context(), usage.Pull{Namespace: "ns", ServiceAccount: usage.DefaultAccount, Secrets: one})
	if a, err := found.usable.Resolve(host); err != nil || a == authn.Anonymous {
		t.Errorf("%v, %v", a, err)
	}
}

// secretFor has credentials for that many registries, and that many bytes at least.
func secretFor(named string, registries, bytes int) *corev1.Secret {
	var auths []string
	for i := range registries {
		auths = append(auths, fmt.Sprintf(`"r%d.example":{"username":"u","password":"x"}`, i))
	}
	text := `{"auths":{` + strings.Join(auths, ",") + "}}"
	s := secret(named, "user")
	s.Data[corev1.DockerConfigJsonKey] = []byte(text + strings.Repeat(" ", max(0, bytes-len(text))))
	return s
}

// A pull secret of either kind is bounded, and so is one that has both contents.
func TestPullSecretOfTwoContents(t *testing.T) {
	both := secret("both", "user")
	half := bytes.Repeat([]byte(" "), maxSecretSize/2+1)
	both.Data = map[string][]byte{corev1.DockerConfigJsonKey: half, corev1.DockerConfigKey: half}
	c := New(nil, fake.NewClientBuilder().WithObjects(both).Build())
	if found := c.of(t.Context(), usage.Pull{Namespace: "ns", ServiceAccount: usage.DefaultAccount, Secrets: "both"}); len(found.problems) != 1 || !strings.Contains(found.problems[0], "at most") {
		t.Errorf("problems %q", found.problems)
	}
}

// A service account that cannot be read is a problem, but for one: each namespace has a default
// one, if perhaps not yet.
func TestServiceAccountProblems(t *testing.T) {
	for _, test := range []struct {
		account string
		err     error
		want    string
	}{
		{usage.DefaultAccount, nil, ""},
		{"builder", nil, "service account ns/builder does not exist"},
		{usage.DefaultAccount, errors.New("dial tcp 10.0.0.1:443: connection refused"), "service account ns/default cannot be read now; it is read again"},
	} {
		c := New(nil, interceptor.NewClient(fake.NewClientBuilder().WithObjects(secret("one", "one")).Build(), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if klog.FromContext(ctx).GetSink() != nil {
					t.Errorf("reading %s is logged, perhaps with what it has", key)
				}
				if _, ok := o.(*corev1.ServiceAccount); ok && test.err != nil {
					return test.err
				}
				return c.Get(ctx, key, o, opts...)
			},
		}))
		found := c.of(t.Context(), usage.Pull{Namespace: "ns", ServiceAccount: test.account, Secrets: "one"})
		if got := strings.Join(found.problems, "; "); got != test.want || found.count() != 1 {
			t.Errorf("%s: problems %q, want %q; %d secrets", test.account, got, test.want, found.count())
		}
	}
}

// What was read of the API server is used again, for every image of a workload.
func TestPullSecretsAreReadOnce(t *testing.T) {
	reads := 0
	reader := interceptor.NewClient(fake.NewClientBuilder().WithObjects(secret("one", "one")).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			reads++
			return c.Get(ctx, key, o, opts...)
		},
	})
	c := New(nil, reader)
	pulls := []usage.Pull{{Namespace: "ns", ServiceAccount: "default", Secrets: "one"}}
	for range 3 {
		if found := c.ByNamespace(t.Context(), pulls); len(found) != 1 || len(found[0].Keychains) != 1 {
			t.Errorf("%+v", found)
		}
	}
	if reads != 2 { // the service account and the secret
		t.Errorf("%d reads for three images, want 2", reads)
	}
}

// Whose credentials opened an image decides whether it is published.
func TestIsForAll(t *testing.T) {
	all, of := forAll{}, authn.NewMultiKeychain(authn.DefaultKeychain)
	for _, static := range [][]authn.Keychain{nil, {all}} {
		c := New(static, nil)
		if !c.IsForAll(nil) || !c.IsForAll(keychains.Anonymous) || static != nil && !c.IsForAll(all) {
			t.Errorf("what everybody may open is private, with %v for all", static)
		}
		if c.IsForAll(of) {
			t.Errorf("what a pull secret opened is public, with %v for all", static)
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
	}), "openshift-config", "pull-secret").(keychains.Several)
	for i, ctx := range []context.Context{canceled, t.Context(), t.Context()} {
		if _, err := counting.Matching(ctx, host); (err != nil) != (i == 0) {
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
