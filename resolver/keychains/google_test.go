package keychains

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

// TestGoogle: the token of the metadata service goes to Google's registries and to no other, and
// is asked for again when it has expired.
func TestGoogle(t *testing.T) {
	var tokens atomic.Int32
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/service-accounts/default/token") || r.Header.Get("Metadata-Flavor") != "Google" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","expires_in":1,"token_type":"Bearer"}`, tokens.Add(1))
	}))
	t.Cleanup(metadata.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(metadata.URL, "http://"))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	keychain, err := FromGoogle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for host, ours := range map[string]bool{
		"europe-docker.pkg.dev": true, "gcr.io": true, "eu.gcr.io": true,
		"docker.io": false, "registry.example.com": false, "pkg.dev.example.com": false, "evil-gcr.io": false,
	} {
		config, err := get(t.Context(), keychain, host+"/project/app")
		switch {
		case err != nil:
			t.Errorf("%s: %v", host, err)
		case !ours && *config != authn.AuthConfig{}:
			t.Errorf("%s gets %+v", host, config)
		case ours && (!strings.HasPrefix(config.Password, "token-") || config.Password == last):
			t.Errorf("%s gets %+v after %q, want a new token", host, config, last)
		case ours:
			last = config.Password
		}
	}

	metadata.Close()
	if _, err := FromGoogle(t.Context()); err == nil {
		t.Error("credentials, although nobody gives any")
	}
}
