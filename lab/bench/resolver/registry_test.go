package resolver

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/layer-locality/layer-locality/resolver/policy"
	client "github.com/layer-locality/layer-locality/resolver/registry"
)

// asker returns a client that asks the registry as layer-resolver does.
func asker(t *testing.T, r *registry) *client.Client {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "registries.conf")
	// No CA has signed its certificate.
	if err := os.WriteFile(conf, fmt.Appendf(nil, "[[registry]]\nlocation = %q\ninsecure = true\n", r.host()), 0o600); err != nil {
		t.Fatal(err)
	}
	allowed, err := policy.New(policy.Config{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Policy: allowed, RegistriesConf: conf, RequestsPerSecond: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRegistry(t *testing.T) {
	for _, tc := range []struct {
		tokens            bool
		resolved, confirm Requests
	}{
		{false, Requests{Pings: 1, Gets: 6}, Requests{Heads: 3}},
		// One for both requests about an image, none for another image.
		{true, Requests{Pings: 1, Tokens: 3, Gets: 6}, Requests{Heads: 3}},
	} {
		t.Run(fmt.Sprintf("tokens=%v", tc.tokens), func(t *testing.T) {
			r, err := newRegistry(3, 100, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			r.want(tc.tokens)
			c := asker(t, r)
			seen := map[string]bool{}
			for _, image := range r.images {
				found, err := c.Resolve(t.Context(), image.reference, []string{platforms[0].String()}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(found.Manifests) != 1 || !found.Index || found.Manifests[0].Digest != image.manifest.String() || len(found.Manifests[0].Layers) != layersPerImage {
					t.Errorf("%s is %+v", image.reference, found)
				}
				seen[found.Manifests[0].Digest] = true
			}
			if len(seen) != len(r.images) {
				t.Errorf("%d different manifests of %d images", len(seen), len(r.images))
			}
			if got, first := r.counted(); got != tc.resolved || first.IsZero() {
				t.Errorf("counted %+v, the first at %s, want %+v", got, first, tc.resolved)
			}
			r.reset()
			for _, image := range r.images {
				if _, err := c.Digest(t.Context(), image.reference, nil); err != nil {
					t.Fatal(err)
				}
			}
			if got, _ := r.counted(); got != tc.confirm {
				t.Errorf("counted %+v, want %+v", got, tc.confirm)
			}
			if _, err := c.Digest(t.Context(), r.images[0].reference+"-none", nil); err == nil {
				t.Error("it has an image that it has not")
			}
		})
	}
}

// Each repository requires its own token. Otherwise the resolver would need
// fewer token requests than with other registries.
func TestTokenIsForOneRepository(t *testing.T) {
	r, err := newRegistry(2, 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.want(true)
	for _, tc := range []struct {
		repository string
		want       int
	}{
		{"team-0/app-0", 200},
		{"team-1/app-1", 401},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/v2/team-0/app-0/manifests/v1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+tokenFor("repository:"+tc.repository+":pull"))
		resp, err := r.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("with a token for %s: %s, want %d", tc.repository, resp.Status, tc.want)
		}
	}
}
