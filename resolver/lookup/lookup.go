// Package lookup asks registries about images, as everybody may and with the pull secrets of the
// namespaces that use them. What a registry answers to pull secrets stays between it and their
// namespace, unless PublishPrivate is set.
package lookup

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// Registry looks up the layers of images. *registry.Client implements it.
// Errors are *registry.Error; any other error counts as ReasonUnavailable.
type Registry interface {
	// Denied returns why a reference may not be asked for, by the names of its
	// registry and mirrors, or nil if it may.
	Denied(reference string) error
	// Resolve returns the manifests of a reference for the platforms. Keychains
	// are tried until the registry answers.
	Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*registry.Resolution, error)
	// Digest returns the digest that the registry has for a reference, without asking
	// for the manifest.
	Digest(ctx context.Context, reference string, keychains []authn.Keychain) (string, error)
}

// Asker asks registries, and remembers how it went with the pull secrets of namespaces.
type Asker struct {
	Registry    Registry
	Credentials *pullsecrets.Credentials
	Usage       *usage.Usage
	Clock       clock.PassiveClock
	Log         logr.Logger
	// PublishPrivate is set if what only pull secrets open is for everybody, too.
	PublishPrivate bool
	// OpenedFor is how long it counts that pull secrets opened an image.
	OpenedFor time.Duration
	// Changed is called when it went otherwise than before with the pull secrets of a namespace.
	Changed func(image usage.Image, namespace string, now SecretAttempt, refusals Refusals)

	secrets secretAttempts
}

// Question is what is asked about an image.
type Question struct {
	Image usage.Image
	// References to ask for, until one is answered, as a container runtime does.
	References []string
	// Platforms of the nodes, and as registries are asked for them.
	Platforms, Asked []string
}

// Answer is that of a registry.
type Answer struct {
	Reference, Digest string
	// Found is nil if only the digest was asked for.
	Found *registry.Resolution
	// Platforms that were asked for.
	Platforms []string
	// Private is set if only pull secrets of a namespace opened the image.
	Private bool
}

// Resolve asks for an image with pull secrets, and then as everybody may; as everybody first, if a namespace that
// names the image has none for it: those of others cost it no requests. What everybody is refused and may not be
// published is asked for with HEAD requests of pull secrets, which quotas of registries do not count. It returns an
// answer that may be published; without one, the refusals are those to everybody.
func (a *Asker) Resolve(ctx context.Context, q Question) (answer *Answer, refusals Refusals) {
	secrets := a.nextSecrets(ctx, q.Image)
	var public *Answer // what everybody may pull, without its layers
	var refused Refusals
	if slices.ContainsFunc(secrets, func(o *pullsecrets.OfNamespace) bool { return o.None(ctx, q.References) }) {
		answer, refused = a.ask(ctx, q, true, a.Credentials.ForAll())
	}
	// If everybody is out of quota, it may be public all the same, and somebody's quota have room for it.
	if answer == nil && len(secrets) > 0 && !a.PublishPrivate && (refused == nil || slices.ContainsFunc(refused, Refusal.outOfQuota)) {
		public, refused = a.ask(ctx, q, false, a.Credentials.ForAll())
	}
	layers := a.PublishPrivate || public != nil
	for _, own := range secrets {
		if answer != nil || ctx.Err() != nil {
			break
		}
		opened := a.open(ctx, q, own, layers)
		if opened != nil && layers {
			if opened.Private = !a.isPublic(ctx, opened, public); a.PublishPrivate || !opened.Private {
				answer = opened
			}
		}
		if opened != nil && answer == nil {
			if at := slices.IndexFunc(refused, func(r Refusal) bool { return r.Reference == opened.Reference }); at >= 0 {
				refusals = refused[at : at+1]
				a.Log.V(1).Info("Resolved for one namespace only", "image", q.Image.Key, "namespace", own.Namespace, "reference", opened.Reference)
			}
		}
	}
	switch {
	case answer != nil || refusals != nil || ctx.Err() != nil:
	case refused != nil && public == nil:
		refusals = refused
	default:
		answer, refusals = a.ask(ctx, q, true, a.Credentials.ForAll())
	}
	return answer, refusals
}

// Digest asks for the digest that a tag points to. What is public is asked for without pull
// secrets, and if only they open it, the error is what the registry answers to everybody.
func (a *Asker) Digest(ctx context.Context, image usage.Image, reference string, private bool) (string, error) {
	digest, public := a.Registry.Digest(ctx, reference, a.Credentials.ForAll())
	if public != nil && private && ctx.Err() == nil {
		for _, own := range a.nextSecrets(ctx, image) {
			if digest, err := a.Registry.Digest(ctx, reference, append(own.Keychains, keychains.NotAnonymously)); err == nil {
				return digest, nil
			}
		}
	}
	return digest, public
}

// Denied reports whether none of the references of an image's key may be asked for.
func (a *Asker) Denied(key string) bool {
	return !slices.ContainsFunc(usage.ImageOf(key).References, func(reference string) bool { return a.Registry.Denied(reference) == nil })
}

// ask asks for the references until one is answered. The refusals are those of the references before it.
func (a *Asker) ask(ctx context.Context, q Question, layers bool, with []authn.Keychain) (answer *Answer, refusals Refusals) {
	for _, reference := range q.References {
		var err error
		answer = &Answer{Reference: reference, Platforms: q.Platforms}
		if !layers {
			answer.Digest, err = a.Registry.Digest(ctx, reference, with)
		} else if answer.Found, err = a.Registry.Resolve(ctx, reference, q.Asked, with); err == nil {
			answer.Digest = answer.Found.Digest
		}
		if err == nil {
			return answer, refusals
		}
		if refusals = append(refusals, Refusal{reference, err}); ctx.Err() != nil {
			break
		}
	}
	return nil, refusals
}

// isPublic reports whether everybody may pull what pull secrets opened. public is what everybody may pull; nil if
// that was not asked.
func (a *Asker) isPublic(ctx context.Context, opened, public *Answer) bool {
	forAll := a.Credentials.IsForAll(opened.Found.By)
	if !forAll && public == nil {
		public, _ = a.ask(ctx, Question{References: []string{opened.Reference}}, false, a.Credentials.ForAll())
	}
	return forAll || public != nil && public.Reference == opened.Reference && public.Digest == opened.Digest
}

// open asks with the pull secrets of a namespace, unless they opened the image a short
// time ago and that concerns nobody else. It returns nil if they do not open it.
func (a *Asker) open(ctx context.Context, q Question, own *pullsecrets.OfNamespace, layers bool) (found *Answer) {
	if !a.PublishPrivate && a.Clock.Since(a.Tried(q.Image.Key, own.Namespace).Opened) < a.OpenedFor {
		return nil
	}
	var refusals Refusals
	if len(own.Keychains) > 0 {
		found, refusals = a.ask(ctx, q, layers, append(own.Keychains, keychains.NotAnonymously))
	}
	now := SecretAttempt{Message: AtMost(MaxMessage, strings.Join(own.Problems, "; "))}
	switch {
	case found != nil:
		now = SecretAttempt{Opened: a.Clock.Now()}
	case slices.ContainsFunc(refusals, Refusal.answered): // else its secrets are for other registries
		now.Reason, _ = refusals.Reason()
	}
	// Also if it seems to be the registry: a secret may bring that about.
	if ctx.Err() == nil && a.secrets.note(q.Image.Key, own.Namespace, now, func() []string { return a.Usage.Namespaces(q.Image.Key) }) {
		a.Changed(q.Image, own.Namespace, now, refusals)
	}
	return found
}

// maxPulls bounds how many workloads' pull secrets are tried for an image at a time.
const maxPulls = 8

// nextSecrets reads the pull secrets whose turn it is for an image, unless none of its
// references may be asked for.
func (a *Asker) nextSecrets(ctx context.Context, image usage.Image) (secrets []*pullsecrets.OfNamespace) {
	if a.Credentials.Enabled() && !a.Denied(image.Key) {
		from, newest := a.secrets.takeNext(image.Key)
		pulls, next := a.Usage.PullsFrom(image.Key, from, maxPulls)
		if a.Usage.PulledWith(image.Key, newest) && len(pulls) > 0 && !slices.Contains(pulls, newest) {
			// It takes one place, whose turn is the next time: those who bring others all the
			// time keep nobody from theirs.
			last := len(pulls) - 1
			next = pulls[last]
			pulls = append([]usage.Pull{newest}, pulls[:last]...)
		}
		a.secrets.setNext(image.Key, next)
		secrets = a.Credentials.ByNamespace(ctx, pulls)
	}
	return secrets
}
