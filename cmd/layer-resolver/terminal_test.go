package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/internal/terminaltest"
	"github.com/layer-locality/layer-locality/resolver/inspect"
)

// What a user or a script passes on reaches the terminal as text.
func TestTerminal(t *testing.T) { terminaltest.Commands(t, newCommand) }

// What the author of an image or a registry says reaches the terminal of whoever inspects it as text.
func TestInspectHostile(t *testing.T) {
	r := registrytest.New(t)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, variant := range []string{terminaltest.Hostile, ""} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: r.Image("layer"), Descriptor: v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{OS: "linux", Architecture: "amd64", Variant: variant},
		}})
	}
	reference, err := name.ParseReference(r.Host+"/evil:1", name.Insecure)
	if err == nil {
		err = remote.WriteIndex(reference, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer realm=\"\xc2\x9b31m\u202e\"")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": terminaltest.Hostile, "message": terminaltest.Hostile}}})
	}))
	defer registry.Close()
	host := strings.TrimPrefix(registry.URL, "http://")
	conf := filepath.Join(t.TempDir(), "registries.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "[[registry]]\nlocation = %q\ninsecure = true\n[[registry]]\nlocation = %q\ninsecure = true\n", r.Host, host), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"table", "json"} {
		stdout, stderr, code := terminaltest.Run(t, newCommand(), "inspect", "--registries-conf", conf, "-o", form, reference.Name(), host+"/evil:2", terminaltest.Hostile)
		t.Logf("%s\n%s", stdout, stderr)
		var report inspect.Report
		if code != 1 || !strings.Contains(stdout, reference.Name()) || strings.Count(stderr, "\nerror: ") != 2 || !strings.Contains(stderr, terminaltest.Forged) {
			t.Errorf("%s: exit code %d, %s%s", form, code, stdout, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &report); form == "json" && (err != nil || len(report.Images) != 1) {
			t.Errorf("%v: %s", err, stdout)
		}
	}
}
