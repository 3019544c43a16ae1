// Package registrytest runs a registry on this machine, for tests of code that
// asks registries.
package registrytest

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Tunnel answers a CONNECT request, as an HTTP proxy does: it passes on what comes, both ways,
// until one side ends.
func Tunnel(w http.ResponseWriter, target string) {
	out, err := net.Dial("tcp", target)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	fmt.Fprint(in, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(out, buffered) }()
	_, _ = io.Copy(in, out)
}

// Registry is a registry on this machine, with a registries.conf that allows
// clients to use it.
type Registry struct {
	// Host is the registry's address.
	Host string
	// Conf is the path of registries.conf.
	Conf string

	t  *testing.T
	mu sync.Mutex
	// asked has the manifests that were requested with GET: "repository tag".
	asked          []string
	user, password string
	limited        bool
}

// New starts a Registry that ends with the test. It also hides the credentials
// of the user who runs the test.
func New(t *testing.T) *Registry {
	t.Helper()
	r := &Registry{t: t}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		if repository, tag, ok := strings.Cut(strings.TrimPrefix(request.URL.Path, "/v2/"), "/manifests/"); ok && request.Method == http.MethodGet {
			r.asked = append(r.asked, repository+" "+tag)
		}
		user, password, limited := r.user, r.password, r.limited
		r.mu.Unlock()
		if limited && request.URL.Path != "/v2/" {
			w.Header().Set("Retry-After", "60")
			http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS"}]}`, http.StatusTooManyRequests)
			return
		}
		if gotUser, gotPassword, _ := request.BasicAuth(); user != "" && (gotUser != user || gotPassword != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, request)
	}))
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	r.Conf = filepath.Join(t.TempDir(), "registries.conf")
	r.must(os.WriteFile(r.Conf, fmt.Appendf(nil, "unqualified-search-registries = [%q]\n[[registry]]\nlocation = %q\ninsecure = true\n", r.Host, r.Host), 0o600))
	for _, variable := range []string{"DOCKER_CONFIG", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"} {
		t.Setenv(variable, t.TempDir())
	}
	t.Setenv("REGISTRY_AUTH_FILE", "")
	return r
}

// WantPassword makes the registry refuse requests without this user and
// password.
func (r *Registry) WantPassword(user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.user, r.password = user, password
}

// Limit makes the registry answer that there are too many requests.
func (r *Registry) Limit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited = true
}

func (r *Registry) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// Image makes an image of layers with the contents.
func (r *Registry) Image(layers ...string) v1.Image {
	r.t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, content := range layers {
		var err error
		image, err = mutate.AppendLayers(image, static.NewLayer([]byte(content), types.OCILayer))
		r.must(err)
	}
	return image
}

// Push pushes an image, and returns its name including the registry.
func (r *Registry) Push(repositoryTag string, image v1.Image) string {
	r.t.Helper()
	ref, err := name.ParseReference(r.Host+"/"+repositoryTag, name.Insecure)
	r.must(err)
	r.must(remote.Write(ref, image))
	r.Forget()
	return ref.Name()
}

// PushIndex pushes an index of images for platforms.
func (r *Registry) PushIndex(repositoryTag string, images map[string]v1.Image) (reference, digest string) {
	r.t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, text := range []string{"linux/amd64", "linux/arm64"} {
		if images[text] == nil {
			continue
		}
		platform, err := v1.ParsePlatform(text)
		r.must(err)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: images[text], Descriptor: v1.Descriptor{Platform: platform}})
	}
	ref, err := name.ParseReference(r.Host+"/"+repositoryTag, name.Insecure)
	r.must(err)
	r.must(remote.WriteIndex(ref, index))
	hash, err := index.Digest()
	r.must(err)
	r.Forget()
	return ref.Name(), hash.String()
}

// Forget resets Questions.
func (r *Registry) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = nil
}

// Questions returns the manifests that were requested since Forget, with the
// number of requests for each.
func (r *Registry) Questions() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]int{}
	for _, asked := range r.asked {
		found[asked]++
	}
	return found
}

// Digest returns the digest of an image's manifest.
func Digest(t *testing.T, image v1.Image) string {
	t.Helper()
	hash, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// Layer returns the digest of the layer with the content.
func Layer(t *testing.T, content string) string {
	t.Helper()
	hash, err := static.NewLayer([]byte(content), types.OCILayer).Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}
