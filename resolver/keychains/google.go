package keychains

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/google"
)

// googleKeychain has the credentials of Google Cloud for Google's registries, and none for
// others.
type googleKeychain struct{ token authn.Authenticator }

// googleRegistries are the patterns of their images.
var googleRegistries = []string{"*.pkg.dev", "gcr.io", "*.gcr.io"}

// FromGoogle returns a keychain for Artifact Registry with the Application Default
// Credentials of this process: in Google Cloud those of the pod's or the node's service account.
// Tokens are renewed as they expire, until the context ends. An error means that there are no
// such credentials.
//
// It is not google.Keychain: that gives up for ever when the first question finds none, and ties
// later renewals to that question.
func FromGoogle(ctx context.Context) (authn.Keychain, error) {
	token, err := google.NewEnvAuthenticator(ctx)
	if err != nil {
		return nil, err
	}
	return &googleKeychain{token}, nil
}

// Resolve implements authn.Keychain.
func (k *googleKeychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	if !matches(googleRegistries, target) {
		return authn.Anonymous, nil
	}
	return k.token, nil
}
