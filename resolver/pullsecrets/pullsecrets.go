// Package pullsecrets finds the credentials with which images may be asked for: those for all
// workloads, and the pull secrets of each namespace.
package pullsecrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

const (
	// maxSecretsSize (bytes) bounds the pull secrets of a workload and its service account
	// together, maxSecretSize (bytes) and maxRegistries each of them: whoever makes workloads
	// makes secrets, too.
	maxSecretsSize = 256 << 10
	maxSecretSize  = 64 << 10
	maxRegistries  = 256
	// secretsFor is how long pull secrets are remembered, so that a thousand
	// images of a namespace do not read them a thousand times.
	secretsFor = 30 * time.Second
)

// Credentials finds the credentials with which images may be asked for.
type Credentials struct {
	// static have the credentials for all workloads.
	static []authn.Keychain
	// reader reads secrets and service accounts, uncached; nil if pull secrets
	// are not enabled.
	reader client.Reader
	cache  *cache.Expiring
}

// New returns Credentials with those for all workloads, in the order to try them, and a reader of
// secrets and service accounts, without a cache; nil if pull secrets are not enabled.
func New(static []authn.Keychain, reader client.Reader) *Credentials {
	return &Credentials{static: static, reader: reader, cache: cache.NewExpiring()}
}

// Enabled reports whether the pull secrets of workloads are used.
func (c *Credentials) Enabled() bool { return c.reader != nil }

// ForAll returns what everybody may ask with: the credentials for all, and without any.
func (c *Credentials) ForAll() []authn.Keychain {
	if len(c.static) == 0 {
		return nil
	}
	return append(slices.Clone(c.static), keychains.Anonymous)
}

// IsForAll reports whether a keychain that opened an image is not of pull secrets.
func (c *Credentials) IsForAll(opened authn.Keychain) bool {
	return opened == nil || opened == keychains.Anonymous || slices.Contains(c.static, opened)
}

// fromSecret is the keychain of one secret, for all workloads.
type fromSecret struct {
	*Credentials
	namespace, name string
}

// KeychainFromSecret returns the credentials of a pull secret for all workloads, such as
// OpenShift's global one. It is read again after half a minute.
func KeychainFromSecret(reader client.Reader, namespace, name string) authn.Keychain {
	return &fromSecret{New(nil, reader), namespace, name}
}

// Resolve implements authn.Keychain.
func (s *fromSecret) Resolve(target authn.Resource) (authn.Authenticator, error) {
	return keychains.First(context.Background(), s, target)
}

// Matching implements keychains.Several.
func (s *fromSecret) Matching(ctx context.Context, target authn.Resource) ([]authn.AuthConfig, error) {
	type answer struct {
		*together
		problem string
	}
	known, ok := s.cache.Get("")
	if !ok {
		secret, problem := s.secret(klog.NewContext(ctx, logr.Discard()), s.namespace, s.name)
		found := answer{problem: problem}
		if secret != nil {
			found.together = &together{[]pullSecret{*secret}}
		}
		known = found
		if ctx.Err() == nil {
			s.cache.Set("", known, secretsFor)
		}
	}
	a := known.(answer)
	if a.together == nil {
		return nil, errors.New(a.problem)
	}
	return a.Matching(ctx, target)
}

// OfNamespace are the usable pull secrets of one namespace for an image.
type OfNamespace struct {
	Namespace string
	Keychains []authn.Keychain
	// Problems of the others.
	Problems []string
}

// None reports whether the kubelets of all of the namespace's workloads ask for these references without pull secrets:
// none of its secrets is for their registries, and none is broken.
func (o *OfNamespace) None(ctx context.Context, references []string) bool {
	own := append(slices.Clone(o.Keychains), keychains.NotAnonymously)
	return len(o.Problems) == 0 && !slices.ContainsFunc(references, func(of string) bool {
		named, err := reference.ParseNormalizedNamed(of)
		if err != nil {
			return false // nobody asks for it
		}
		found, err := keychains.For(ctx, reference.Domain(named), reference.Path(named), own)
		return err != nil || len(found) > 0
	})
}

// ByNamespace reads pull secrets, and returns those of each namespace by themselves, in
// the order of the pulls.
func (c *Credentials) ByNamespace(ctx context.Context, pulls []usage.Pull) (all []*OfNamespace) {
	if !c.Enabled() {
		return nil
	}
	for _, p := range pulls {
		at := slices.IndexFunc(all, func(o *OfNamespace) bool { return o.Namespace == p.Namespace })
		if at < 0 {
			at = len(all)
			all = append(all, &OfNamespace{Namespace: p.Namespace})
		}
		found := c.of(ctx, p)
		if found.usable != nil {
			all[at].Keychains = append(all[at].Keychains, found.usable)
		}
		all[at].Problems = append(all[at].Problems, found.problems...)
	}
	return all
}

// pullSecrets are the usable pull secrets of a workload, in one keychain as the kubelet has them; nil if there are none.
// A broken one does not keep the others from being used.
type pullSecrets struct {
	usable   *ofTenant
	problems []string
}

func (c *Credentials) of(ctx context.Context, p usage.Pull) pullSecrets {
	if known, ok := c.cache.Get(p); ok {
		return known.(pullSecrets)
	}
	var found pullSecrets
	names := strings.FieldsFunc(p.Secrets, func(r rune) bool { return r == ',' })
	// With a high log level, the API client logs what it reads.
	ctx = klog.NewContext(ctx, logr.Discard())
	var sa corev1.ServiceAccount
	if err := c.reader.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: p.ServiceAccount}, &sa); err == nil {
		for i := range sa.ImagePullSecrets {
			names = append(names, sa.ImagePullSecrets[i].Name)
		}
	} else if !apierrors.IsNotFound(err) || p.ServiceAccount != usage.DefaultAccount {
		found.problems = append(found.problems, problem("service account", p.Namespace, p.ServiceAccount, err))
	}
	seen, size := map[string]bool{}, 0
	var usable []pullSecret
	for _, name := range names {
		if seen[name] {
			continue
		}
		if len(seen) == usage.MaxSecrets {
			found.problems = append(found.problems, fmt.Sprintf("%s has a workload with more than %d pull secrets: the others are not used", p.Namespace, usage.MaxSecrets))
			break
		}
		seen[name] = true
		secret, problem := c.secret(ctx, p.Namespace, name)
		if problem != "" {
			found.problems = append(found.problems, problem)
		}
		if secret == nil {
			continue
		}
		if size += len(secret.config); size > maxSecretsSize {
			found.problems = append(found.problems, fmt.Sprintf("%s has a workload whose pull secrets have more than %d bytes together: %s and the others are not used", p.Namespace, maxSecretsSize, name))
			break
		}
		usable = append(usable, *secret)
	}
	if len(usable) > 0 {
		found.usable = &ofTenant{together{usable}}
	}
	c.cache.Set(p, found, secretsFor)
	return found
}

// secret reads a pull secret, and describes why it, or a part of it, cannot be used. It is nil if nothing can.
func (c *Credentials) secret(ctx context.Context, namespace, name string) (*pullSecret, string) {
	var secret corev1.Secret
	if err := c.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, problem("pull secret", namespace, name, err)
	}
	if secret.Type != corev1.SecretTypeDockerConfigJson && secret.Type != corev1.SecretTypeDockercfg {
		return nil, fmt.Sprintf("pull secret %s/%s is of type %q, not of %s", namespace, name, secret.Type, corev1.SecretTypeDockerConfigJson)
	}
	if size := len(secret.Data[corev1.DockerConfigJsonKey]) + len(secret.Data[corev1.DockerConfigKey]); size > maxSecretSize {
		return nil, fmt.Sprintf("pull secret %s/%s has %d bytes, at most %d are read", namespace, name, size, maxSecretSize)
	}
	key := corev1.DockerConfigJsonKey
	if secret.Type == corev1.SecretTypeDockercfg {
		key = corev1.DockerConfigKey
	}
	found := &pullSecret{secret.Type, secret.Data[key]}
	entries, ignored, err := new(keychains.Keyring).Add(found.kind, found.config)
	switch {
	case err != nil: // the error may quote the secret
		return nil, fmt.Sprintf("pull secret %s/%s cannot be read as a docker configuration", namespace, name)
	case entries > maxRegistries:
		return nil, fmt.Sprintf("pull secret %s/%s has credentials for %d registries, at most %d are read", namespace, name, entries, maxRegistries)
	case ignored > 0:
		return found, fmt.Sprintf("pull secret %s/%s: %d entries are ignored, as they name no registry", namespace, name, ignored)
	}
	return found, ""
}

// pullSecret is a docker configuration as a Secret of a type has it.
type pullSecret struct {
	kind   corev1.SecretType
	config []byte
}

// together is the keychain of pull secrets that are used together. It keeps their texts, since the credentials one by one
// take many times as much memory.
type together struct{ secrets []pullSecret }

// Resolve implements authn.Keychain.
func (t *together) Resolve(target authn.Resource) (authn.Authenticator, error) {
	return keychains.First(context.Background(), t, target)
}

// Matching implements keychains.Several.
func (t *together) Matching(ctx context.Context, target authn.Resource) ([]authn.AuthConfig, error) {
	var keyring keychains.Keyring
	for _, s := range t.secrets {
		if _, _, err := keyring.Add(s.kind, s.config); err != nil {
			return nil, err
		}
	}
	return keyring.Matching(ctx, target)
}

// ofTenant is the keychain of the pull secrets of a workload.
type ofTenant struct{ together }

var (
	_ keychains.OfTenant = (*ofTenant)(nil)
	_ keychains.Several  = (*ofTenant)(nil)
	_ keychains.Several  = (*fromSecret)(nil)
)

// OfTenant implements keychains.OfTenant.
func (*ofTenant) OfTenant() {}

func problem(what, namespace, name string, err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("%s %s/%s does not exist", what, namespace, name)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%s %s/%s may not be read: bind the ClusterRole layer-resolver-pull-secrets in that namespace", what, namespace, name)
	}
	// The error is not the tenant's to see: it may have addresses of the cluster.
	klog.Background().V(1).Info("Could not be read", "object", what, "namespace", namespace, "name", name, "cause", err)
	return fmt.Sprintf("%s %s/%s cannot be read now; it is read again", what, namespace, name)
}
