package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

const privateImage = "reg.example.com/private:1"

// lockedRegistry has an image that only the user "right" may see.
type lockedRegistry struct {
	fakeRegistry
	// open means that everybody may see it.
	open bool
	// missing means that there is none, for whoever asks but "right".
	missing bool
	// users that were used, "" for nobody, in their order.
	users []string
	// resolved is how often the layers were asked for.
	resolved int
}

// opener returns the keychain that opens the image, if one does.
func (l *lockedRegistry) opener(ctx context.Context, all []authn.Keychain) (authn.Keychain, error) {
	host, err := name.NewRegistry("reg.example.com")
	if err != nil {
		return nil, err
	}
	before := len(l.users)
	anonymous := !slices.Contains(all, keychains.NotAnonymously)
	for _, k := range all {
		credential, err := authn.Resolve(ctx, k, host)
		if err != nil {
			return nil, err
		}
		config, err := credential.Authorization()
		if err != nil {
			return nil, err
		}
		if config.Username == "" {
			continue
		}
		l.users = append(l.users, config.Username)
		if config.Username == "right" {
			return k, nil
		}
	}
	if !anonymous && len(l.users) == before {
		return nil, &registry.Error{Reason: v1alpha1.ReasonUnauthorized, Err: registry.ErrNoCredentials}
	}
	if l.missing {
		return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
	}
	if anonymous {
		if l.users = append(l.users, ""); l.open {
			return nil, nil
		}
	}
	return nil, &registry.Error{Reason: v1alpha1.ReasonUnauthorized, Err: errors.New("401")}
}

func (l *lockedRegistry) Resolve(ctx context.Context, _ string, _ []string, keychains []authn.Keychain) (*registry.Resolution, error) {
	l.resolved++
	by, err := l.opener(ctx, keychains)
	if err != nil {
		return nil, err
	}
	found := plain(hash("a"))
	found.By = by
	return found, nil
}

func (l *lockedRegistry) Digest(ctx context.Context, _ string, keychains []authn.Keychain) (string, error) {
	_, err := l.opener(ctx, keychains)
	return hash("a"), err
}

// asker is a namespace whose workload has a pull secret of a user; no secret for "", that of another registry for "elsewhere".
func asker(namespace, user string) (usage.WorkloadImages, *corev1.Secret) {
	c := imagesFor("w", namespace, privateImage)
	c.Pull.ServiceAccount = usage.DefaultAccount
	if user == "" {
		return c, nil
	}
	c.Pull.Secrets = "pull-of-" + namespace
	s := secret(c.Pull.Secrets, user)
	s.Namespace = namespace
	if user == "elsewhere" {
		s.Data[corev1.DockerConfigJsonKey] = bytes.ReplaceAll(s.Data[corev1.DockerConfigJsonKey], []byte("reg.example.com"), []byte("other.example.com"))
	}
	return c, s
}

// privateWorld returns a resolver with a workload of each namespace, which has a pull
// secret of a user.
func privateWorld(t *testing.T, l *lockedRegistry, publish bool, users map[string]string) (*Resolver, *storeTest, *toldEvents) {
	t.Helper()
	builder := fake.NewClientBuilder()
	var workloads []usage.WorkloadImages
	for namespace, user := range users {
		c, s := asker(namespace, user)
		workloads = append(workloads, c)
		if s != nil {
			builder = builder.WithObjects(s)
		}
	}
	reader := builder.Build()
	r, s, told := newTestResolver(t, &l.fakeRegistry, func(o *Options, d *dependencies) {
		o.Registry, o.PublishPrivate, d.secrets = l, publish, reader
	})
	l.references = nil
	for _, c := range workloads {
		r.usage.Set(c)
	}
	return r, s, told
}

// A workload without pull secrets for the registry names an image that everybody may pull: the pull secrets of others who
// name it cost it no requests.
func TestOthersSecretsAreNotTried(t *testing.T) {
	for name, users := range map[string]map[string]string{
		"no secret":             {"owner": "", "a-thief": "guessed", "thief": "guessed"},
		"of another registry":   {"owner": "elsewhere", "a-thief": "guessed", "thief": "guessed"},
		"all of them have some": {"owner": "guessed", "thief": "guessed"},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lockedRegistry{open: true}
			r, s, _ := privateWorld(t, l, false, users)
			r.work(t.Context(), &queue.Queue{}, privateImage)
			s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): privateImage})
			if alone := slices.Equal(l.users, []string{""}); alone != (users["owner"] != "guessed") {
				t.Errorf("asked as %q", l.users)
			}
		})
	}
}

// What the secret of one namespace opens is not published, and nobody else learns of the
// secret, its name, or whether it works.
func TestPrivateImages(t *testing.T) {
	written := map[string]string{}
	for _, user := range []string{"right", "wrong"} {
		l := &lockedRegistry{}
		r, s, told := privateWorld(t, l, false, map[string]string{"owner": user, "stranger": "", "thief": "guessed"})
		r.work(t.Context(), &queue.Queue{}, privateImage)
		s.expect(map[string]string{v1alpha1.UnresolvedName(privateImage): privateImage})
		var list v1alpha1.ImageManifestList
		s.must(s.List(t.Context(), &list))
		list.Items[0].Status.RetryTime = nil // varies at random
		text, err := json.Marshal(list.Items[0])
		s.must(err)
		written[user] = string(text)
		notes := map[string]string{}
		for i, note := range told.notes {
			notes[told.about[i]] += note
		}
		if got := notes["owner"] != ""; got != (user != "right") {
			t.Errorf("%s: the owner is told %q", user, notes["owner"])
		}
		if note := notes["thief"]; !strings.HasSuffix(note, "(Unauthorized): "+brief(v1alpha1.ReasonUnauthorized)) {
			t.Errorf("%s: who has a wrong secret is told %q", user, note)
		}
		for _, other := range []string{"stranger", "thief"} {
			// Pull secrets are read: nobody is told to have that done.
			if note := notes[other]; note == "" || strings.Contains(note, "owner") || strings.Contains(note, user) || strings.Contains(note, "--pull-secrets") {
				t.Errorf("%s: the %s is told %q", user, other, note)
			}
		}
	}
	if written["right"] != written["wrong"] {
		t.Errorf("the object shows whether somebody's secret works:\n%s\n%s", written["right"], written["wrong"])
	}
}

// Whose pull secrets were tried is told how that ended, not what everybody is told.
func TestOwnReasonIsTold(t *testing.T) {
	l := &failingRegistry{failure: &registry.Error{Reason: v1alpha1.ReasonNotFound}}
	r, _, told := privateWorld(t, &l.lockedRegistry, true, map[string]string{"owner": "fails"})
	r.asker.Registry = l
	r.work(t.Context(), &queue.Queue{}, privateImage)
	if public := r.attempts.of(one(privateImage)).Reason; public != v1alpha1.ReasonUnauthorized {
		t.Errorf("everybody is told %q", public)
	}
	if got := strings.Join(told.notes, "\n"); !strings.HasSuffix(got, "(NotFound): "+brief(v1alpha1.ReasonNotFound)) {
		t.Errorf("told %q", got)
	}
}

// One wrong secret does not hide a public image from anybody, and no secret is tried in
// another namespace's turn.
func TestWrongSecretOfPublicImage(t *testing.T) {
	l := &lockedRegistry{open: true}
	r, s, _ := privateWorld(t, l, false, map[string]string{"a": "wrong", "b": "wrong too", "c": ""})
	r.work(t.Context(), &queue.Queue{}, privateImage)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): privateImage})
	if s.Lookup(privateImage).Private {
		t.Error("a public image counts as private")
	}
	// Opened with a secret, and public all the same.
	l = &lockedRegistry{open: true}
	r, s, _ = privateWorld(t, l, false, map[string]string{"a": "right"})
	r.work(t.Context(), &queue.Queue{}, privateImage)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): privateImage})
	if want := []string{"", "right"}; !slices.Equal(l.users, want) || l.resolved != 1 {
		t.Errorf("asked by %q, want %q; %d times for its layers", l.users, want, l.resolved)
	}
}

// otherForAll has other content for everybody than for the user "right".
type otherForAll struct{ lockedRegistry }

func (o *otherForAll) digest(by authn.Keychain) string {
	if by == nil {
		return hash("b")
	}
	return hash("a")
}

func (o *otherForAll) Resolve(ctx context.Context, _ string, _ []string, keychains []authn.Keychain) (*registry.Resolution, error) {
	by, err := o.opener(ctx, keychains)
	found := plain(o.digest(by))
	found.By = by
	return found, err
}

func (o *otherForAll) Digest(ctx context.Context, _ string, keychains []authn.Keychain) (string, error) {
	by, err := o.opener(ctx, keychains)
	return o.digest(by), err
}

// A registry has something else for whoever has a secret: what it has for everybody is published.
func TestOtherContentForAll(t *testing.T) {
	l := &otherForAll{lockedRegistry{open: true}}
	r, s, _ := privateWorld(t, &l.lockedRegistry, false, map[string]string{"a": "right"})
	r.asker.Registry = l
	r.work(t.Context(), &queue.Queue{}, privateImage)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("b")): privateImage})
}

// Secrets are not used to confirm what is public, not even while the registry refuses it, nor for
// what has become public.
func TestConfirmedWithoutSecrets(t *testing.T) {
	for _, private := range []bool{false, true} {
		l := &lockedRegistry{open: private}
		r, s, _ := privateWorld(t, l, true, map[string]string{"a": "right"})
		save := s.Resolved
		if private {
			save = s.ResolvedPrivately
		}
		s.must(save(t.Context(), privateImage, plain(hash("a")), amd64))
		s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
		r.work(t.Context(), &queue.Queue{}, privateImage)
		if !slices.Equal(l.users, []string{""}) {
			t.Errorf("private %v: asked by %q", private, l.users)
		}
	}
}

// A namespace is told when there is something else wrong with its pull secret, but not again
// and again, and not that it works.
func TestChangedSecretIsTold(t *testing.T) {
	l := &lockedRegistry{}
	r, s, told := privateWorld(t, l, false, map[string]string{"owner": "wrong", "other": ""})
	_, right := asker("owner", "right")
	none := fake.NewClientBuilder().Build()
	for i, step := range []struct {
		reader client.Reader
		owner  string // is told; empty: nothing
		other  bool   // is told
	}{
		{r.secrets, brief(v1alpha1.ReasonUnauthorized), true},
		{r.secrets, "", false},
		{none, "owner/pull-of-owner does not exist", false},
		{none, "", false},
		{fake.NewClientBuilder().WithObjects(right).Build(), "", false},
	} {
		told.notes, told.about = nil, nil
		r.asker.Credentials = pullsecrets.New(nil, step.reader)
		r.work(t.Context(), &queue.Queue{}, privateImage)
		s.Clock.SetTime(s.Clock.Now().Add(2 * maxRefusal))
		var owner, other []string
		for i, namespace := range told.about {
			if namespace == "owner" {
				owner = append(owner, told.notes[i])
			} else {
				other = append(other, told.notes[i])
			}
		}
		if step.owner == "" && owner != nil || step.owner != "" && (len(owner) != 1 || !strings.Contains(owner[0], step.owner)) {
			t.Errorf("step %d: the owner is told %q, want %q", i, owner, step.owner)
		}
		if (len(other) == 1) != step.other || len(other) > 1 {
			t.Errorf("step %d: the other is told %q", i, other)
		}
	}
	if !slices.Contains(l.users, "right") {
		t.Errorf("asked by %q", l.users)
	}
}

// A pull secret for another registry says nothing about an image that does not exist, and
// one that is missing is told beside the reason.
func TestSecretsOfAnotherRegistry(t *testing.T) {
	l := &lockedRegistry{missing: true}
	r, _, told := privateWorld(t, l, false, map[string]string{"a": "any"})
	elsewhere := secret("pull-of-a", "any")
	elsewhere.Namespace = "a"
	elsewhere.Data[corev1.DockerConfigJsonKey] = []byte(`{"auths":{"other.example.com":{"username":"any","password":"x"}}}`)
	r.asker.Credentials = pullsecrets.New(nil, fake.NewClientBuilder().WithObjects(elsewhere).Build())
	b, _ := asker("b", "nobody") // whose secret does not exist
	r.usage.Set(b)
	r.work(t.Context(), &queue.Queue{}, privateImage)
	if slices.ContainsFunc(l.users, func(user string) bool { return user != "" }) {
		t.Errorf("asked as %q", l.users)
	}
	for i, namespace := range told.about {
		note := told.notes[i]
		if !strings.Contains(note, "("+v1alpha1.ReasonNotFound+")") || strings.Contains(note, "b/pull-of-b does not exist") != (namespace == "b") {
			t.Errorf("%s is told %q", namespace, note)
		}
	}
	if len(told.notes) != 2 {
		t.Errorf("%d events", len(told.notes))
	}
}

// With --publish-private, any namespace's secret makes an image known, in whichever turn it
// comes. A restart without the option takes it back.
func TestPublishPrivate(t *testing.T) {
	users := map[string]string{"z": "right"}
	for i := range 20 {
		users[fmt.Sprintf("n%02d", i)] = "wrong"
	}
	l := &lockedRegistry{}
	r, s, _ := privateWorld(t, l, true, users)
	for range 3 {
		r.work(t.Context(), &queue.Queue{}, privateImage)
		s.Clock.SetTime(s.Clock.Now().Add(maxRefusal * 2))
	}
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): privateImage})
	if !s.Lookup(privateImage).Private {
		t.Error("it does not count as private")
	}
	l.users = nil
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	for range 3 {
		r.work(t.Context(), &queue.Queue{}, privateImage)
		s.Clock.SetTime(s.Clock.Now().Add(maxRefusal * 2))
	}
	if !slices.Contains(l.users, "right") || s.Lookup(privateImage).Confirmed.Before(s.Clock.Now().Add(-2*time.Hour)) {
		t.Errorf("not confirmed, asked by %q", l.users)
	}
	r.options.PublishPrivate = false
	r.sweep(t.Context())
	s.expect(map[string]string{})
}

// What opened an image for its own namespace is not asked for again and again.
func TestOpenedPrivatelyIsRemembered(t *testing.T) {
	l := &lockedRegistry{}
	r, s, _ := privateWorld(t, l, false, map[string]string{"owner": "right"})
	for range 4 {
		r.work(t.Context(), &queue.Queue{}, privateImage)
		s.Clock.SetTime(s.Clock.Now().Add(maxRefusal * 6 / 5))
	}
	if n := len(slices.DeleteFunc(slices.Clone(l.users), func(user string) bool { return user == "" })); n != 1 {
		t.Errorf("%d requests with the secret within an hour: %q", n, l.users)
	}
}

// What the secret of one namespace brings about, also if it looks as if the registry were in trouble,
// keeps the secrets of others from nothing.
func TestFailuresOfOneNamespace(t *testing.T) {
	for name, failure := range map[string]*registry.Error{
		"its own quota":    {Reason: v1alpha1.ReasonRateLimited, Busy: true},
		"its account's":    {Reason: v1alpha1.ReasonRateLimited},
		"no usable answer": {Reason: v1alpha1.ReasonUnavailable},
	} {
		l := &failingRegistry{failure: failure}
		r, _, _ := privateWorld(t, &l.lockedRegistry, true, map[string]string{"a": "fails", "b": "right"})
		r.asker.Registry = l
		r.work(t.Context(), &queue.Queue{}, privateImage)
		if r.store.Lookup(privateImage) == nil {
			t.Errorf("%s: the image is not known, used were %q", name, l.users)
		}
	}
}

// failingRegistry fails for the user "fails".
type failingRegistry struct {
	lockedRegistry
	failure *registry.Error
}

func (f *failingRegistry) Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*registry.Resolution, error) {
	found, err := f.lockedRegistry.Resolve(ctx, reference, platforms, keychains)
	if n := len(f.users); err != nil && n > 0 && f.users[n-1] == "fails" {
		failure := *f.failure
		failure.Err = errors.New("no answer")
		err = &failure
	}
	return found, err
}

// An image that only a secret opens is asked for once as everybody may and once with the secret, both with HEAD
// requests: quotas count those for layers, which nobody is to see.
func TestNobodysLayersAreNotAskedFor(t *testing.T) {
	l := &lockedRegistry{}
	r, _, _ := privateWorld(t, l, false, map[string]string{"owner": "right"})
	r.work(t.Context(), &queue.Queue{}, privateImage)
	if want := []string{"", "right"}; !slices.Equal(l.users, want) || l.resolved != 0 {
		t.Errorf("asked by %q, want %q; %d times for its layers", l.users, want, l.resolved)
	}
	if opened := r.asker.Tried(privateImage, "owner").Opened; opened.IsZero() {
		t.Error("it is not noted that the secret opens the image")
	}
}

// spentRegistry gives everybody no more manifests, and still answers HEAD requests.
type spentRegistry struct{ lockedRegistry }

func (s *spentRegistry) Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*registry.Resolution, error) {
	found, err := s.lockedRegistry.Resolve(ctx, reference, platforms, keychains)
	if err == nil && found.By == nil {
		return nil, &registry.Error{Reason: v1alpha1.ReasonRateLimited, Busy: true, RetryAfter: time.Hour, Err: errors.New("no more")}
	}
	return found, err
}

// The quota for everybody is used up: a public image is asked for with the quota of a namespace that has one, also if
// another one names it without pull secrets.
func TestQuotaOfOthers(t *testing.T) {
	for name, users := range map[string]map[string]string{"one of them": {"plain": "", "with": "right"}, "alone": {"with": "right"}} {
		l := &spentRegistry{lockedRegistry{open: true}}
		r, s, _ := privateWorld(t, &l.lockedRegistry, false, users)
		r.asker.Registry = l
		r.work(t.Context(), &queue.Queue{}, privateImage)
		if s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): privateImage}); t.Failed() {
			t.Errorf("%s: asked by %q", name, l.users)
		}
	}
}
