// Package choice compares which manifest of an index layer-resolver takes for the nodes of a runtime, and layer-agent on a
// node with containerd, with what the runtime takes: containerd's core/images reads the image from a content store (see
// containerd/main.go), and CRI-O's go.podman.io/image pulls it from the registry that layer-resolver asks. TestHosts compares
// which mirrors are asked.
package choice

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/image"
	podman "go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
	client "github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/registry/manifest"
)

// Outcomes besides the digest of a manifest.
const (
	nothing = "nothing"
	// maxNested is how deep layer-resolver follows indexes in indexes.
	maxNested = 3
)

// Forms that indexes of public images have, and others that a registry accepts. crio and containerd are what a node of
// linux/amd64 takes: the entry of that name, or nothing.
func TestForms(t *testing.T) {
	const ours = "linux/amd64"
	containerd, agent := newOracle(t), newAgent(t)
	if agent.platform() != ours {
		t.Logf("layer-agent chooses for its own machine: on %s, TestRandom alone asks it", agent.platform())
	}
	for name, form := range map[string]struct {
		index            func(s *store) *ocispec.Descriptor
		crio, containerd string
	}{
		"no index":                         {func(s *store) *ocispec.Descriptor { return s.image("a", ours) }, "a", "a"},
		"one platform":                     {index(entry("a", ours)), "a", "a"},
		"several":                          {index(entry("b", "linux/arm64/v8"), entry("a", ours), entry("c", "windows/amd64")), "a", "a"},
		"no such platform":                 {index(entry("a", "linux/s390x"), entry("b", "linux/ppc64le")), nothing, nothing},
		"one platform twice":               {index(entry("a", ours), entry("b", ours)), "a", "a"},
		"variants of amd64":                {index(entry("a", "linux/amd64/v2"), entry("b", "linux/amd64/v3"), entry("c", ours)), "c", "c"},
		"a variant of amd64 alone":         {index(entry("a", "linux/amd64/v3")), nothing, nothing},
		"zstd after gzip":                  {index(entry("a", ours), zstd(entry("b", ours))), "b", "a"},
		"zstd before gzip":                 {index(zstd(entry("a", ours)), entry("b", ours)), "a", "a"},
		"386, and then amd64":              {index(entry("a", "linux/386"), entry("b", ours)), "b", "b"},
		"386 alone":                        {index(entry("a", "linux/386")), nothing, "a"},
		"attestations of BuildKit":         {index(entry("a", ours), attestation(entry("b", "unknown/unknown"))), "a", "a"},
		"attestations alone":               {index(attestation(entry("a", "unknown/unknown"))), nothing, nothing},
		"no platform stated":               {index(without(entry("a", ours))), "a", "a"},
		"no platform stated, for two":      {index(without(entry("a", ours)), without(entry("b", ours))), "a", "a"},
		"one stated after one that is not": {index(without(entry("a", ours)), entry("b", ours)), "b", "b"},
		"none stated beside another's":     {index(entry("a", "linux/arm64"), without(entry("b", ours))), "b", "b"},
		"an index in an index":             {index(nested(ours, entry("a", ours))), nothing, "a"},
		"as ghcr.io/goauthentik/server":    {index(nested(ours, entry("a", ours), attestation(entry("b", "unknown/unknown"))), nested("linux/arm64", entry("c", "linux/arm64"), attestation(entry("d", "unknown/unknown")))), nothing, "a"},
		"an index without platform":        {index(nested("", entry("a", ours))), nothing, "a"},
		"an index after a manifest":        {index(entry("a", ours), nested(ours, entry("b", ours))), "a", "a"},
		"an index before a manifest":       {index(nested(ours, entry("a", ours)), entry("b", ours)), nothing, "a"},
		"an index of another platform":     {index(nested("linux/arm64", entry("a", ours)), entry("b", ours)), "b", "b"},
		"an index that has no such entry":  {index(nested(ours, entry("a", "linux/arm64")), entry("b", ours)), nothing, nothing},
		"three deep":                       {index(nested(ours, nested("", nested(ours, entry("a", ours))))), nothing, "a"},
		"no entry":                         {index(), nothing, nothing},
		"features of an operating system":  {index(features(entry("a", ours), "win32k"), entry("b", ours)), "a", "b"},
		"features of all":                  {index(features(entry("a", ours), "gpu")), "a", nothing},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, containerd)
			top := form.index(s)
			for of, want := range map[string]string{"crio": form.crio, "containerd": form.containerd} {
				if got := s.name(s.takes(of, top, ours)); got != want {
					t.Errorf("%s takes %s, want %s", of, got, want)
				}
				if got := s.name(s.resolved(of, top, ours)); got != want {
					t.Errorf("layer-resolver takes %s for a node of %s, which takes %s", got, of, want)
				}
			}
			if agent.platform() == ours {
				if got := s.name(agent.takes(s, top)); got != form.containerd {
					t.Errorf("layer-agent takes %s, containerd %s", got, form.containerd)
				}
			}
		})
	}
}

// Indexes at random, for several platforms of nodes, up to three deep.
func TestRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(48, 1)) //nolint:gosec // chance, not secrets
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	var some func(deep int) part
	some = func(deep int) part {
		platform := pick("linux/amd64", "linux/amd64", "linux/amd64/v2", "linux/386", "linux/arm64", "linux/arm64/v8", "linux/arm64/v9",
			"linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/arm", "windows/amd64", "unknown/unknown")
		if deep > 0 && random.IntN(4) == 0 {
			parts := make([]part, 1+random.IntN(4))
			for i := range parts {
				parts[i] = some(deep - 1)
			}
			return nested(pick(platform, ""), parts...)
		}
		p := entry(fmt.Sprint(random.Uint64()), platform)
		switch random.IntN(6) {
		case 0:
			p = without(p)
		case 1:
			p = zstd(p)
		case 2:
			p = features(p, pick("gpu", "win32k"))
		}
		return p
	}
	taken := map[string]int{}
	containerd, agent := newOracle(t), newAgent(t)
	for range 400 {
		s := newStore(t, containerd)
		parts := make([]part, 1+random.IntN(6))
		for i := range parts {
			parts[i] = some(maxNested)
		}
		top := index(parts...)(s)
		for _, platform := range []string{"linux/amd64", "linux/arm64", "linux/arm"} {
			for _, of := range []string{"crio", "containerd"} {
				want, got := s.takes(of, top, platform), s.resolved(of, top, platform)
				taken[of+platform+fmt.Sprint(want != "")]++
				// layer-resolver reads no configurations: where an index states no platform, containerd may take nothing.
				foreign := of == "containerd" && want == "" && got != "" && !platforms.Only(platforms.Normalize(*parse(platform))).Match(s.images[got].Platform)
				if got != want && !foreign {
					t.Errorf("layer-resolver takes %s for a node of %s on %s, which takes %s, of\n%s", s.name(got), of, platform, s.name(want), s.text(top.Digest, ""))
				}
				if of != "containerd" || platform != agent.platform() {
					continue
				}
				if got := agent.takes(s, top); got != want {
					t.Errorf("layer-agent takes %s, containerd %s, of\n%s", s.name(got), s.name(want), s.text(top.Digest, ""))
				}
			}
		}
	}
	if len(taken) != 12 {
		t.Errorf("not all was tried: %v", taken)
	}
}

// part is an entry of an index that is made in a store.
type part func(*store) ocispec.Descriptor

func index(parts ...part) func(*store) *ocispec.Descriptor {
	return func(s *store) *ocispec.Descriptor {
		entries := make([]ocispec.Descriptor, 0, len(parts))
		for _, p := range parts {
			entries = append(entries, p(s))
		}
		d := s.put(ocispec.MediaTypeImageIndex, ocispec.Index{Versioned: versioned, MediaType: ocispec.MediaTypeImageIndex, Manifests: entries})
		return &d
	}
}

// entry is an image for a platform.
func entry(name, platform string) part {
	return func(s *store) ocispec.Descriptor {
		d := *s.image(name, platform)
		d.Platform = parse(platform)
		return d
	}
}

// nested is an index; without a platform, none is stated.
func nested(platform string, parts ...part) part {
	return func(s *store) ocispec.Descriptor {
		d := *index(parts...)(s)
		if platform != "" {
			d.Platform = parse(platform)
		}
		return d
	}
}

// without is an entry whose platform is not stated.
func without(p part) part {
	return func(s *store) ocispec.Descriptor {
		d := p(s)
		d.Platform = nil
		return d
	}
}

func features(p part, all ...string) part {
	return func(s *store) ocispec.Descriptor {
		d := p(s)
		if d.Platform != nil {
			d.Platform.OSFeatures = all
		}
		return d
	}
}

func annotated(p part, key, value string) part {
	return func(s *store) ocispec.Descriptor {
		d := p(s)
		d.Annotations = map[string]string{key: value}
		return d
	}
}

func zstd(p part) part { return annotated(p, "io.github.containers.compression.zstd", "true") }

func attestation(p part) part {
	return annotated(p, "vnd.docker.reference.type", "attestation-manifest")
}

func parse(platform string) *ocispec.Platform {
	parts := append(strings.Split(platform, "/"), "")
	return &ocispec.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
}

// store is a content store of containerd and a registry with the same blobs.
type store struct {
	t          *testing.T
	containerd *oracle
	blobs      map[digest.Digest][]byte
	// images by the digest of their manifests; Author is their name in the test.
	images map[digest.Digest]ocispec.Image
	host   string
	// conf is a registries.conf by which the registry may be asked without TLS.
	conf string
}

var versioned = struct {
	SchemaVersion int `json:"schemaVersion"`
}{2}

const repository = "team/app"

func newStore(t *testing.T, o *oracle) *store {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	conf := filepath.Join(t.TempDir(), "registries.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "[[registry]]\nlocation = %q\ninsecure = true\n", host), 0o600); err != nil {
		t.Fatal(err)
	}
	return &store{t, o, map[digest.Digest][]byte{}, map[digest.Digest]ocispec.Image{}, host, conf}
}

func (s *store) put(mediaType string, of any) ocispec.Descriptor {
	body, err := json.Marshal(of)
	if err != nil {
		s.t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(body), Size: int64(len(body))}
	s.blobs[d.Digest] = body
	path, method := "manifests/"+d.Digest.String(), http.MethodPut
	if mediaType == ocispec.MediaTypeImageConfig {
		path, method = "blobs/uploads/?digest="+url.QueryEscape(d.Digest.String()), http.MethodPost
	}
	request, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.host+"/v2/"+repository+"/"+path, strings.NewReader(string(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", mediaType)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		s.t.Fatalf("the registry answers %s to %s", response.Status, path)
	}
	return d
}

// image makes an image without layers, whose configuration states the platform.
func (s *store) image(name, platform string) *ocispec.Descriptor {
	config := ocispec.Image{Platform: *parse(platform), Author: name}
	d := s.put(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: versioned, MediaType: ocispec.MediaTypeImageManifest, Config: s.put(ocispec.MediaTypeImageConfig, config), Layers: []ocispec.Descriptor{},
	})
	s.images[d.Digest] = config
	return &d
}

func (s *store) name(d digest.Digest) string {
	if d == "" {
		return nothing
	}
	return s.images[d].Author
}

// text returns an index with those in it.
func (s *store) text(d digest.Digest, indent string) string {
	var i ocispec.Index
	text := fmt.Sprintf("%s%s %s\n", indent, d, s.images[d].Author)
	if json.Unmarshal(s.blobs[d], &i) == nil {
		for _, m := range i.Manifests {
			text += fmt.Sprintf("%s  %+v %v\n%s", indent, m.Platform, m.Annotations, s.text(m.Digest, indent+"  "))
		}
	}
	return text
}

// variants are those that CRI-O finds out from the processor, by architecture.
var variants = map[string]string{"arm64": "v8", "arm": "v7"}

// takes returns the manifest that a runtime takes on a platform; empty if it takes none.
func (s *store) takes(runtime string, top *ocispec.Descriptor, platform string) digest.Digest {
	if runtime == "containerd" {
		config := s.containerd.takes(s, top, platform)
		if config == "" {
			return ""
		}
		for d, body := range s.blobs {
			var m ocispec.Manifest
			if s.images[d].Author != "" && json.Unmarshal(body, &m) == nil && m.Config.Digest == config {
				return d
			}
		}
		s.t.Fatalf("containerd takes a manifest with configuration %s, which is not in the store", config)
	}
	reference, err := docker.ParseReference("//" + s.reference(top))
	if err != nil {
		s.t.Fatal(err)
	}
	p := parse(platform)
	system := &types.SystemContext{OSChoice: p.OS, ArchitectureChoice: p.Architecture, VariantChoice: variants[p.Architecture], SystemRegistriesConfPath: s.conf}
	// What copy.Image does, which pulls: it does not follow an index that it chose.
	source, err := reference.NewImageSource(s.t.Context(), system)
	if err != nil {
		s.t.Fatal(err)
	}
	defer source.Close()
	body, mediaType, err := image.UnparsedInstance(source, nil).Manifest(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	chosen := top.Digest
	if podman.MIMETypeIsMultiImage(mediaType) {
		list, err := podman.ListFromBlob(body, mediaType)
		if err != nil {
			s.t.Fatal(err)
		}
		if chosen, err = list.ChooseInstance(system); err != nil {
			return ""
		}
		if _, mediaType, err = image.UnparsedInstance(source, &chosen).Manifest(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	if podman.MIMETypeIsMultiImage(mediaType) {
		return ""
	}
	return chosen
}

func (s *store) reference(top *ocispec.Descriptor) string {
	return s.host + "/" + repository + "@" + top.Digest.String()
}

// resolved returns the manifest that layer-resolver takes for nodes of a runtime on a platform; empty if it takes none.
func (s *store) resolved(runtime string, top *ocispec.Descriptor, platform string) digest.Digest {
	p, err := policy.New(policy.Config{Registries: []string{"*"}, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := client.New(client.Config{Policy: p, RegistriesConf: s.conf, RequestsPerSecond: 1e6, Burst: 1e6})
	if err != nil {
		s.t.Fatal(err)
	}
	if runtime == "containerd" {
		platform += manifest.Containerd
	}
	found, err := c.Resolve(s.t.Context(), s.reference(top), []string{platform}, nil)
	if err != nil {
		var failed *client.Error
		if !errors.As(err, &failed) || failed.Reason != v1alpha1.ReasonPlatformNotFound && failed.Reason != v1alpha1.ReasonInvalidManifest {
			s.t.Fatal(err)
		}
		return ""
	}
	if len(found.Manifests) != 1 {
		s.t.Fatalf("layer-resolver takes %d manifests", len(found.Manifests))
	}
	return digest.Digest(found.Manifests[0].Digest)
}

// oracle is containerd/main.go, running.
type oracle struct {
	questions *json.Encoder
	answers   *json.Decoder
}

// newOracle compiles the program with the containerd that versions.env has, and starts it.
func newOracle(t *testing.T) *oracle {
	t.Helper()
	pins, err := os.ReadFile("../../../versions.env")
	if err != nil {
		t.Fatal(err)
	}
	pin := regexp.MustCompile(`(?m)^CONTAINERD_VERSION=(.+)$`).FindSubmatch(pins)
	if pin == nil {
		t.Fatal("versions.env has no CONTAINERD_VERSION")
	}
	program, err := os.ReadFile("containerd/main.go")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "main.go"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mod", "init", "layerlocality.io/build/choice"}, {"get", "github.com/containerd/containerd/v2/core/images@" + string(pin[1])}, {"build", "-o", "oracle", "main.go"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(folder, "oracle"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return &oracle{json.NewEncoder(in), json.NewDecoder(out)}
}

// takes returns the digest of the configuration of the manifest that containerd takes; empty if it takes none.
func (o *oracle) takes(s *store, top *ocispec.Descriptor, platform string) (config digest.Digest) {
	s.t.Helper()
	o.ask(s.t, map[string]any{"Blobs": s.blobs, "Top": top, "Platform": platform}, &config)
	return config
}

func (o *oracle) ask(t *testing.T, question, answer any) {
	t.Helper()
	if err := o.questions.Encode(question); err != nil {
		t.Fatal(err)
	}
	if err := o.answers.Decode(answer); err != nil {
		t.Fatal(err)
	}
}
