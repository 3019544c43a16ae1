package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
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
	"github.com/spf13/cobra"
)

// lab is a registry on this machine, and a registries.conf that allows to ask it.
type lab struct {
	t    *testing.T
	host string
	conf string

	mu    sync.Mutex
	asked []string // "GET repository:tag" of manifests
	// user and password that are wanted, if any.
	user, password string
	// limited: every answer is 429.
	limited bool
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		if repository, tag, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/"); ok && r.Method == http.MethodGet {
			l.asked = append(l.asked, repository+" "+tag)
		}
		user, password, limited := l.user, l.password, l.limited
		l.mu.Unlock()
		if limited && r.URL.Path != "/v2/" {
			w.Header().Set("Retry-After", "60")
			http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS"}]}`, http.StatusTooManyRequests)
			return
		}
		if gotUser, gotPassword, _ := r.BasicAuth(); user != "" && (gotUser != user || gotPassword != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	l.host = strings.TrimPrefix(server.URL, "http://")
	l.conf = filepath.Join(t.TempDir(), "registries.conf")
	l.write(l.conf, fmt.Sprintf("unqualified-search-registries = [%q]\n[[registry]]\nlocation = %q\ninsecure = true\n", l.host, l.host))
	// No credentials of whoever runs the test.
	for _, variable := range []string{"DOCKER_CONFIG", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"} {
		t.Setenv(variable, t.TempDir())
	}
	t.Setenv("REGISTRY_AUTH_FILE", "")
	return l
}

func (l *lab) write(file, text string) {
	l.t.Helper()
	l.must(os.WriteFile(file, []byte(text), 0o600))
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// image makes an image of layers with the contents.
func (l *lab) image(layers ...string) v1.Image {
	l.t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, content := range layers {
		var err error
		image, err = mutate.AppendLayers(image, static.NewLayer([]byte(content), types.OCILayer))
		l.must(err)
	}
	return image
}

// push pushes an image, and returns its name with registry.
func (l *lab) push(repositoryTag string, image v1.Image) string {
	l.t.Helper()
	ref, err := name.ParseReference(l.host+"/"+repositoryTag, name.Insecure)
	l.must(err)
	l.must(remote.Write(ref, image))
	l.forget()
	return ref.Name()
}

// pushIndex pushes an index of images for platforms.
func (l *lab) pushIndex(repositoryTag string, images map[string]v1.Image) (reference, digest string) {
	l.t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, text := range []string{"linux/amd64", "linux/arm64"} {
		if images[text] == nil {
			continue
		}
		platform, err := v1.ParsePlatform(text)
		l.must(err)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: images[text], Descriptor: v1.Descriptor{Platform: platform}})
	}
	ref, err := name.ParseReference(l.host+"/"+repositoryTag, name.Insecure)
	l.must(err)
	l.must(remote.WriteIndex(ref, index))
	hash, err := index.Digest()
	l.must(err)
	l.forget()
	return ref.Name(), hash.String()
}

// forget forgets what was asked.
func (l *lab) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = nil
}

// questions that came since, each with how often.
func (l *lab) questions() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := map[string]int{}
	for _, asked := range l.asked {
		found[asked]++
	}
	return found
}

func digest(t *testing.T, image v1.Image) string {
	t.Helper()
	hash, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// layer is the digest of the layer with the content.
func layer(t *testing.T, content string) string {
	t.Helper()
	hash, err := static.NewLayer([]byte(content), types.OCILayer).Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// run runs a command as at the shell.
func (l *lab) run(command *cobra.Command, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	l.t.Helper()
	var out, errOut bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&errOut)
	command.SetIn(stdin)
	command.SilenceUsage = true
	command.SetArgs(append([]string{"--registries-conf", l.conf}, args...))
	err = command.ExecuteContext(l.t.Context())
	return out.String(), errOut.String(), err
}
