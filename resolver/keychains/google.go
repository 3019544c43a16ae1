package keychains

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/google"
)

// googleKeychain has the credentials of Google Cloud for Google's registries, and none for
// others.
type googleKeychain struct {
	matches authn.Keychain
	token   authn.Authenticator
}

// FromGoogle returns a keychain for Artifact Registry with the Application Default
// Credentials of this process: in Google Cloud those of the pod's or the node's service account.
// Tokens are renewed as they expire, until the context ends. An error means that there are no
// such credentials.
//
// It is not google.Keychain: that gives up for ever when the first question finds none, and ties
// later renewals to that question.
func FromGoogle(ctx context.Context) (authn.Keychain, error) {
	matches, err := matching([]string{"*.pkg.dev", "gcr.io", "*.gcr.io"})
	if err != nil {
		return nil, err
	}
	token, err := google.NewEnvAuthenticator(ctx)
	if err != nil {
		return nil, err
	}
	return &googleKeychain{matches, token}, nil
}

// Resolve implements authn.Keychain.
func (k *googleKeychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	if matches, err := k.matches.Resolve(target); err != nil || matches == authn.Anonymous {
		return authn.Anonymous, err
	}
	return k.token, nil
}
