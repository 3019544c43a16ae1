package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	authk8s "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxPulls bounds how many workloads' pull secrets are tried for an image.
	maxPulls = 8
	// secretsFor is how long pull secrets are remembered, so that a thousand
	// images of a namespace do not read them a thousand times.
	secretsFor = 30 * time.Second
	// defaultAccount is the service account of pods that name none.
	defaultAccount = "default"
)

// credentials finds the credentials with which images may be asked for.
type credentials struct {
	// static has the credentials for all workloads; nil for none.
	static authn.Keychain
	// reader reads secrets and service accounts, uncached; nil if pull secrets
	// are not enabled.
	reader client.Reader
	cache  *cache.Expiring
}

func newCredentials(static authn.Keychain, reader client.Reader) *credentials {
	return &credentials{static: static, reader: reader, cache: cache.NewExpiring()}
}

// readsPullSecrets reports whether the pull secrets of workloads are used.
func (c *credentials) readsPullSecrets() bool { return c.reader != nil }

// keychains returns what to try, in this order: the pull secrets of the
// workloads that use the image, then the credentials for all. The problems
// describe unusable pull secrets; they matter only if the registry refuses.
func (c *credentials) keychains(ctx context.Context, pulls []pull) (keychains []authn.Keychain, problems []string) {
	if c.readsPullSecrets() {
		for _, p := range pulls {
			found := c.of(ctx, p)
			keychains = append(keychains, found.keychains...)
			problems = append(problems, found.problems...)
		}
	}
	if c.static != nil {
		keychains = append(keychains, c.static)
	}
	return keychains, problems
}

// pullSecrets are the pull secrets of a workload. Each is a keychain: all are
// tried, as the kubelet does, and a broken one does not keep the others from
// being used.
type pullSecrets struct {
	keychains []authn.Keychain
	problems  []string
}

func (c *credentials) of(ctx context.Context, p pull) pullSecrets {
	if known, ok := c.cache.Get(p); ok {
		return known.(pullSecrets)
	}
	var found pullSecrets
	names := strings.FieldsFunc(p.secrets, func(r rune) bool { return r == ',' })
	// With a high log level, the API client logs what it reads.
	ctx = klog.NewContext(ctx, logr.Discard())
	var sa corev1.ServiceAccount
	if err := c.reader.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.serviceAccount}, &sa); err == nil {
		for i := range sa.ImagePullSecrets {
			names = append(names, sa.ImagePullSecrets[i].Name)
		}
	} else if !apierrors.IsNotFound(err) || p.serviceAccount != defaultAccount {
		found.problems = append(found.problems, problem("service account", p.namespace, p.serviceAccount, err))
	}
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		keychain, problem := c.secret(ctx, p.namespace, name)
		if problem != "" {
			found.problems = append(found.problems, problem)
		} else {
			found.keychains = append(found.keychains, keychain)
		}
	}
	c.cache.Set(p, found, secretsFor)
	return found
}

// secret reads a pull secret, or describes why it cannot be used.
func (c *credentials) secret(ctx context.Context, namespace, name string) (authn.Keychain, string) {
	var secret corev1.Secret
	if err := c.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, problem("pull secret", namespace, name, err)
	}
	if secret.Type != corev1.SecretTypeDockerConfigJson && secret.Type != corev1.SecretTypeDockercfg {
		return nil, fmt.Sprintf("pull secret %s/%s is of type %q, not of %s", namespace, name, secret.Type, corev1.SecretTypeDockerConfigJson)
	}
	keychain, err := authk8s.NewFromPullSecrets(ctx, []corev1.Secret{secret})
	if err != nil { // the error may quote the secret
		return nil, fmt.Sprintf("pull secret %s/%s cannot be read as a docker configuration", namespace, name)
	}
	return keychain, ""
}

func problem(what, namespace, name string, err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("%s %s/%s does not exist", what, namespace, name)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%s %s/%s may not be read: bind the ClusterRole layer-resolver-pull-secrets in that namespace", what, namespace, name)
	}
	return fmt.Sprintf("%s %s/%s could not be read: %v", what, namespace, name, err)
}
