package resolver

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// layersPerImage is the number of layers for each platform.
const layersPerImage = 10

// platforms of each image; the node has the first.
var platforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}

// tokenLifetime is that of Docker Hub, in seconds.
const tokenLifetime = 300

// Requests counts requests to the registry.
type Requests struct {
	// Pings ask how the registry authenticates.
	Pings int `json:"pings"`
	// Tokens are requests to its token server.
	Tokens int `json:"tokens"`
	// Gets and Heads of manifests and indexes that were answered with one.
	Gets  int `json:"gets"`
	Heads int `json:"heads"`
	// Others were refused, or are not requests that the resolver should make.
	Others int `json:"others"`
}

// Total returns the number of all requests.
func (r Requests) Total() int { return r.Pings + r.Tokens + r.Gets + r.Heads + r.Others }

// image is an image in the registry: an index with one manifest per platform.
type image struct {
	reference string
	// manifest is the digest of the first platform's manifest.
	manifest digest.Digest
}

// registry is a registry in this process, reached by HTTPS like others. It
// counts its requests.
type registry struct {
	*httptest.Server
	latency time.Duration
	images  []image
	// documents by repository, and there by tag and digest.
	documents map[string]map[string]document

	mu sync.Mutex
	// tokens: if set, each repository requires its own token.
	tokens   bool
	requests Requests
	first    time.Time
}

type document struct {
	mediaType types.MediaType
	digest    digest.Digest
	body      []byte
}

// newRegistry starts a registry with that many images of so many teams, each in its own
// repository. It answers every request after the latency.
func newRegistry(images, teams int, latency time.Duration) (*registry, error) {
	r := &registry{latency: latency, documents: map[string]map[string]document{}}
	r.Server = httptest.NewUnstartedServer(r)
	r.EnableHTTP2 = true
	r.StartTLS()
	for i := range images {
		if err := r.addImage(fmt.Sprintf("team-%d/app-%d", i%teams, i), "v1"); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

func (r *registry) host() string { return r.Listener.Addr().String() }

// certificate returns the certificate that a client has to trust.
func (r *registry) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
}

func (r *registry) addImage(repository, tag string) error {
	documents := map[string]document{}
	add := func(mediaType types.MediaType, content any) (v1.Descriptor, error) {
		body, err := json.Marshal(content)
		if err != nil {
			return v1.Descriptor{}, err
		}
		d := document{mediaType: mediaType, digest: digest.FromBytes(body), body: body}
		documents[d.digest.String()] = d
		return descriptor(mediaType, d.digest, len(body))
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, platform := range platforms {
		manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
		seed := repository + " " + platform.String()
		var err error
		if manifest.Config, err = descriptor(types.OCIConfigJSON, digest.FromString(seed), 5000); err != nil {
			return err
		}
		for i := range layersPerImage {
			layer, err := descriptor(types.OCILayer, digest.FromString(fmt.Sprint(seed, " ", i)), 1000*(i+1))
			if err != nil {
				return err
			}
			manifest.Layers = append(manifest.Layers, layer)
		}
		entry, err := add(manifest.MediaType, manifest)
		if err != nil {
			return err
		}
		entry.Platform = platform.DeepCopy()
		index.Manifests = append(index.Manifests, entry)
	}
	top, err := add(index.MediaType, index)
	if err != nil {
		return err
	}
	documents[tag] = documents[top.Digest.String()]
	r.documents[repository] = documents
	r.images = append(r.images, image{
		reference: fmt.Sprintf("%s/%s:%s", r.host(), repository, tag),
		manifest:  digest.Digest(index.Manifests[0].Digest.String()),
	})
	return nil
}

func descriptor(mediaType types.MediaType, d digest.Digest, size int) (v1.Descriptor, error) {
	hash, err := v1.NewHash(d.String())
	return v1.Descriptor{MediaType: mediaType, Digest: hash, Size: int64(size)}, err
}

// ServeHTTP serves the registry and its token server.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	tokens := r.tokens
	if r.first.IsZero() {
		r.first = time.Now()
	}
	r.mu.Unlock()
	time.Sleep(r.latency)

	path, isRegistry := strings.CutPrefix(req.URL.Path, "/v2/")
	repository, identifier, isManifest := strings.Cut(path, "/manifests/")
	switch {
	case tokens && req.URL.Path == "/token":
		r.count(&r.requests.Tokens)
		_ = json.NewEncoder(w).Encode(map[string]any{"token": tokenFor(req.URL.Query().Get("scope")), "expires_in": tokenLifetime})
	case isRegistry && path == "":
		r.count(&r.requests.Pings)
		if tokens {
			r.challenge(w)
		}
	case isRegistry && isManifest && (!tokens || req.Header.Get("Authorization") == "Bearer "+tokenFor("repository:"+repository+":pull")):
		r.document(w, req, r.documents[repository][identifier])
	case isRegistry && isManifest:
		r.count(&r.requests.Others)
		r.challenge(w)
	default:
		r.count(&r.requests.Others)
		http.NotFound(w, req)
	}
}

func (r *registry) document(w http.ResponseWriter, req *http.Request, d document) {
	switch {
	case d.body == nil:
		r.count(&r.requests.Others)
		http.NotFound(w, req)
		return
	case req.Method == http.MethodHead:
		r.count(&r.requests.Heads)
	default:
		r.count(&r.requests.Gets)
	}
	w.Header().Set("Content-Type", string(d.mediaType))
	w.Header().Set("Docker-Content-Digest", d.digest.String())
	_, _ = w.Write(d.body) // the server omits it for HEAD
}

// count counts a request. It is called before the answer, so that a client with
// an answer finds it counted.
func (r *registry) count(counter *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*counter++
}

func (r *registry) challenge(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service=%q`, r.URL+"/token", r.host()))
	w.WriteHeader(http.StatusUnauthorized)
}

// tokenFor returns the token for a scope. It gives no access to other
// repositories.
func tokenFor(scope string) string { return digest.FromString(scope).Encoded() }

// want switches between a registry that anybody may read and one that requires
// tokens.
func (r *registry) want(tokens bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens = tokens
}

// reset sets the counters to zero.
func (r *registry) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.first = Requests{}, time.Time{}
}

// counted returns the requests since the last reset, and the time of the first.
func (r *registry) counted() (requests Requests, first time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests, r.first
}

// objectName returns the name that the image's ImageManifest must have.
func (i image) objectName() string { return v1alpha1.ManifestName(i.manifest.String()) }
