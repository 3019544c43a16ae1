// Command resolver-image builds layer-resolver and its container image with Go alone: no
// container tool, no root, no Kubernetes tree.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/sbom"
	"github.com/layer-locality/layer-locality/terminal"
)

const program = "layer-resolver"

// options are the flags.
type options struct {
	out, push, certificates string
	platforms               []string
	insecure                bool
}

func main() {
	var o options
	command := &cobra.Command{
		Use:   "resolver-image",
		Short: "Build layer-resolver and its image, in the root of the repository",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return o.run(command.Context()) },
	}
	f := command.Flags()
	f.StringVar(&o.out, "out", "_out/resolver-image", "folder for the binaries and the images")
	f.StringVar(&o.push, "push", "", "registry and path to push it to, such as registry.example.com/layer-locality, with the credentials of docker or podman")
	f.StringSliceVar(&o.platforms, "platform", nil, "linux/amd64, linux/arm64: default that of this machine; several make an index when they are pushed")
	f.StringVar(&o.certificates, "certificates", "", "CA certificates for the image (default: those of this machine)")
	f.BoolVar(&o.insecure, "insecure", false, "push by plain HTTP")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := terminal.Run(ctx, command)
	stop()
	os.Exit(code)
}

func (o *options) run(ctx context.Context) error {
	version, err := readVersion("versions.env")
	if err != nil {
		return err
	}
	certificates, err := readCertificates(o.certificates)
	if err != nil {
		return err
	}
	if len(o.platforms) == 0 {
		arch, err := output(ctx, "go", "env", "GOHOSTARCH")
		if err != nil {
			return err
		}
		o.platforms = []string{"linux/" + arch}
	}
	repository := "localhost/layer-locality"
	if o.push != "" {
		repository = strings.TrimSuffix(o.push, "/")
	}
	var nameOptions []name.Option
	if o.insecure {
		nameOptions = append(nameOptions, name.Insecure)
	}
	tag, err := name.NewTag(repository+"/"+program+":"+strings.ReplaceAll(version, "+", "_"), nameOptions...)
	if err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	images := make([]v1.Image, len(o.platforms))
	for i, text := range o.platforms {
		platform, err := v1.ParsePlatform(text)
		if err != nil || platform.OS != "linux" || platform.Architecture == "" {
			return fmt.Errorf("--platform %q: expected linux/amd64 or linux/arm64", text)
		}
		if images[i], err = o.build(ctx, platform, version, tag, certificates); err != nil {
			return err
		}
	}
	if o.push == "" {
		return nil
	}
	return o.pushTo(ctx, tag, images)
}

// build compiles the program for a platform, and writes the binary, and an image that docker,
// podman, ctr and kind load.
func (o *options) build(ctx context.Context, platform *v1.Platform, version string, tag name.Tag, certificates []byte) (v1.Image, error) {
	folder := filepath.Join(o.out, platform.Architecture)
	texts := filepath.Join(folder, "licenses")
	if err := os.RemoveAll(texts); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(texts, 0o755); err != nil {
		return nil, err
	}
	binary := filepath.Join(folder, program)
	compile := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+version, "-o", binary, "./cmd/"+program)
	compile.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+platform.Architecture, "GOFLAGS=", "GOWORK=off")
	compile.Stdout, compile.Stderr = terminal.Stderr, terminal.Stderr
	if err := compile.Run(); err != nil {
		return nil, fmt.Errorf("compiling %s for %s: %w", program, platform, err)
	}
	if err := copyGoLicense(ctx, texts); err != nil {
		return nil, err
	}
	bom, err := sbom.Describe(ctx, binary, sbom.Options{Name: program, Version: version, Source: ".", Texts: texts})
	if err != nil {
		return nil, err
	}
	contents, err := newContents(binary, texts, certificates, bom)
	if err != nil {
		return nil, err
	}
	image, err := contents.image(platform, version)
	if err != nil {
		return nil, err
	}
	archive := filepath.Join(folder, program+".tar")
	if err := tarball.WriteToFile(archive, tag, image); err != nil {
		return nil, err
	}
	fmt.Fprintf(terminal.Stdout, "%s\n%s (%s, %s)\n", binary, archive, tag, platform)
	return image, nil
}

// pushTo pushes an image, or an index of several, and prints its digest.
func (o *options) pushTo(ctx context.Context, tag name.Tag, images []v1.Image) error {
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	var pushed interface{ Digest() (v1.Hash, error) }
	var err error
	if len(images) == 1 {
		pushed, err = images[0], remote.Write(tag, images[0], with...)
	} else {
		var index v1.ImageIndex = empty.Index
		for _, image := range images {
			config, err := image.ConfigFile()
			if err != nil {
				return err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
		}
		pushed, err = index, remote.WriteIndex(tag, index, with...)
	}
	if err != nil {
		return fmt.Errorf("pushing %s: %w", tag, err)
	}
	digest, err := pushed.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(terminal.Stdout, tag.Digest(digest.String()))
	return nil
}

// readVersion returns how the program is called: v1.2.3+layerlocality.1.
func readVersion(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w: run this in the root of the repository", err)
	}
	if err != nil {
		return "", err
	}
	pin := func(key string) string {
		if found := regexp.MustCompile("(?m)^" + key + "=(.+)$").FindSubmatch(text); found != nil {
			return string(found[1])
		}
		return ""
	}
	kubernetes, revision := pin("KUBERNETES_VERSION"), pin("LAYERLOCALITY_REVISION")
	if kubernetes == "" || revision == "" {
		return "", fmt.Errorf("%s: no KUBERNETES_VERSION or no LAYERLOCALITY_REVISION", path)
	}
	return kubernetes + "+layerlocality." + revision, nil
}

// readCertificates returns the certificates of a file, or those of this machine.
func readCertificates(path string) ([]byte, error) {
	if path != "" {
		return os.ReadFile(path)
	}
	for _, path := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
		if content, err := os.ReadFile(path); err == nil {
			return content, nil
		}
	}
	return nil, errors.New("this machine has no CA certificates: install ca-certificates, or name a file with --certificates")
}

// copyGoLicense copies the license of Go, whose standard library every binary has.
func copyGoLicense(ctx context.Context, texts string) error {
	version, err := output(ctx, "go", "env", "GOVERSION")
	if err != nil {
		return err
	}
	root, err := output(ctx, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	folder := filepath.Join(texts, "std@"+version)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, file := range []string{"LICENSE", "PATENTS"} {
		// Where Go's own archives have it, or Fedora.
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			content, err = os.ReadFile(filepath.Join("/usr/share/licenses/golang", file))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, file), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("no license text of %s: install Go from https://go.dev/dl (%w)", version, err)
		}
	}
	return nil
}

func output(ctx context.Context, command string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, command, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", command, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
