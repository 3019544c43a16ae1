package layout

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// archive writes a tar archive whose files are below one folder, as those of a release are.
func archive(t *testing.T, path string, files map[string]string) {
	t.Helper()
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	writer := tar.NewWriter(compressed)
	for name, text := range files {
		header := &tar.Header{Name: "folder/" + name, Mode: 0o644, Size: int64(len(text))}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, path, packed.String())
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// publicKey writes the public key where scripts/from-release.sh reads RELEASE_KEY.
func publicKey(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pub")
	write(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return path
}

// TestFromRelease unpacks a release from its folder and from its address, and refuses what its checksums or its signature
// do not hold for.
func TestFromRelease(t *testing.T) {
	const demo = "layer-locality-v1.0.0_layerlocality.1-demo-amd64.tar.gz"
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	owner, stranger := publicKey(t, keys[0]), publicKey(t, keys[1])
	// In place of cosign, which asks Sigstore's services.
	programs := t.TempDir()
	write(t, filepath.Join(programs, "cosign"), "#!/bin/sh\n")
	for name, test := range map[string]struct {
		change func(folder string) // after it was signed
		key    string
		want   string // of what it prints
		fails  bool
	}{
		"signed":           {key: owner, want: "release v1.0.0_layerlocality.1 of %R; checksums hold, signed with " + owner},
		"by another":       {key: stranger, want: "is not signed with the key of " + stranger, fails: true},
		"without a key":    {want: "checksums hold, signed by the release workflow"},
		"not signed":       {change: remove("SHA256SUMS.sigstore.json"), want: "its signature was not checked: it has none"},
		"no signature":     {change: remove("SHA256SUMS.sigstore.json"), key: owner, want: "has no SHA256SUMS.sigstore.json", fails: true},
		"no release":       {change: remove("SHA256SUMS"), want: "%R has no SHA256SUMS", fails: true},
		"no archive":       {change: remove(demo), want: "has no " + demo + ", which its SHA256SUMS lists", fails: true},
		"altered":          {change: altered(demo), want: demo + " is not what its SHA256SUMS", fails: true},
		"altered sums":     {change: altered("SHA256SUMS"), key: owner, want: "is not signed with the key of", fails: true},
		"another one only": {change: only("layer-locality-v1-demo-arm64.tar.gz"), want: "does not have one archive *-demo-amd64.tar.gz", fails: true},
	} {
		for _, from := range []string{"folder", "address"} {
			t.Run(name+", "+from, func(t *testing.T) {
				folder, unpacked := t.TempDir(), t.TempDir()
				archive(t, filepath.Join(folder, demo), map[string]string{"tools/etcd": "a program"})
				packed, err := os.ReadFile(filepath.Join(folder, demo))
				if err != nil {
					t.Fatal(err)
				}
				sums := fmt.Sprintf("%x  %s\n", sha256.Sum256(packed), demo)
				write(t, filepath.Join(folder, "SHA256SUMS"), sums)
				digest := sha256.Sum256([]byte(sums))
				signature, err := ecdsa.SignASN1(rand.Reader, keys[0], digest[:])
				if err != nil {
					t.Fatal(err)
				}
				// As cosign writes it.
				write(t, filepath.Join(folder, "SHA256SUMS.sigstore.json"), `{"messageSignature": {"signature": "`+base64.StdEncoding.EncodeToString(signature)+`"}}`)
				if test.change != nil {
					test.change(folder)
				}
				release := folder
				if from == "address" {
					server := httptest.NewServer(http.StripPrefix("/releases/download/v1/", http.FileServer(http.Dir(folder))))
					defer server.Close()
					release = server.URL + "/releases/download/v1"
				}
				cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/from-release.sh"), release+"/", unpacked, "demo-amd64")
				cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "RELEASE_KEY="+test.key, "no_proxy=127.0.0.1")
				out, err := cmd.CombinedOutput()
				if want := strings.ReplaceAll(test.want, "%R", release); (err != nil) != test.fails || !strings.Contains(string(out), want) {
					t.Errorf("error %v, and it reports %q; want %q", err, out, want)
				}
				if text, err := os.ReadFile(filepath.Join(unpacked, "tools/etcd")); (err != nil) != test.fails {
					t.Errorf("it unpacked %q, %v", text, err)
				}
			})
		}
	}
}

func remove(name string) func(string) {
	return func(folder string) { _ = os.Remove(filepath.Join(folder, name)) }
}

func altered(name string) func(string) {
	return func(folder string) {
		text, _ := os.ReadFile(filepath.Join(folder, name))
		_ = os.WriteFile(filepath.Join(folder, name), append(text, '\n'), 0o644)
	}
}

func only(name string) func(string) {
	return func(folder string) {
		sums := fmt.Sprintf("%x  %s\n", sha256.Sum256(nil), name)
		_ = os.WriteFile(filepath.Join(folder, "SHA256SUMS"), []byte(sums), 0o644)
	}
}

// TestPages checks that the repository of RPMs that the release workflow publishes has what the archives have, and a file
// for dnf that names it.
func TestPages(t *testing.T) {
	release, pages := t.TempDir(), filepath.Join(t.TempDir(), "pages")
	repo := output(t, "bash", "-ec", `eval "$(sed -n '/^repo_file() {/,/^}/p' rpm/rpms.sh)"; repo_file KEY`)
	for _, arch := range []string{"x86_64", "aarch64"} {
		archive(t, filepath.Join(release, "layer-locality-v1.0.0_layerlocality.1-rpms-"+arch+".tar.gz"), map[string]string{
			"repodata/repomd.xml": arch, "layer-locality.repo": repo, "RPM-GPG-KEY-layer-locality": "key",
		})
	}
	output(t, "scripts/pages.sh", release, pages)
	var found []string
	err := filepath.WalkDir(pages, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found = append(found, strings.TrimPrefix(path, pages+"/rpms/"))
		}
		return err
	})
	want := []string{
		"aarch64/RPM-GPG-KEY-layer-locality", "aarch64/repodata/repomd.xml", "layer-locality.repo",
		"x86_64/RPM-GPG-KEY-layer-locality", "x86_64/repodata/repomd.xml",
	}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("the folder has %q, want %q: %v", found, want, err)
	}
	text, err := os.ReadFile(filepath.Join(pages, "rpms/layer-locality.repo"))
	if err != nil {
		t.Fatal(err)
	}
	_, repository, _ := strings.Cut(strings.TrimSpace(output(t, "bash", "-c", `. scripts/lib.sh && repository_url`)), "github.com/")
	owner, name, _ := strings.Cut(repository, "/")
	address := "https://" + owner + ".github.io/" + name + "/rpms/$basearch/"
	for _, line := range []string{"baseurl=" + address, "gpgkey=" + address + "RPM-GPG-KEY-layer-locality", "priority=50", "gpgcheck=1"} {
		if !slices.Contains(strings.Split(string(text), "\n"), line) {
			t.Errorf("there is no line %q in\n%s", line, text)
		}
	}
}
