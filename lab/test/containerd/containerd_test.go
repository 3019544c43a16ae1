//go:build e2e

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	reader "github.com/layer-locality/layer-locality/agent/containerd"
	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// program is what scripts/build.sh tools containerd makes. Other versions' names end in a suffix.
const program = "../../../_build/bin/tools/containerd"

// version is one of containerd.
type version struct{ suffix, pin string }

// versions are that of the local cluster first, and an older and a newer one.
var versions = []version{{"", "CONTAINERD_VERSION"}, {old, "CONTAINERD_1_7_VERSION"}, {"-2.4", "CONTAINERD_2_4_VERSION"}}

// old is the suffix of the version whose configuration has another form.
const old = "-1.7"

// withEach runs a test with each version.
func withEach(t *testing.T, test func(*testing.T, version)) {
	for _, v := range versions {
		t.Run(livetest.Pin(t, v.pin), func(t *testing.T) {
			if v.suffix != "" && os.Getenv("FULL") == "" {
				t.Skip("FULL=1 tries other versions of containerd than that of the local cluster")
			}
			test(t, v)
		})
	}
}

// blobs is what a containerd does with the blobs of layers that are unpacked.
type blobs string

const (
	kept    blobs = "kept"
	dropped blobs = "dropped"
	// asInKind drops them, too, with all else that the nodes of kind are configured with.
	asInKind blobs = "as in kind"
	// asInK3s keeps them, because it does not configure it, with all else that k3s
	// configures.
	asInK3s blobs = "as in k3s"
)

// inChains reports whether layers are used in chains then.
func (b blobs) inChains() bool { return b == dropped || b == asInKind }

var must = testkit.Must

// hub is a registry that counts the bytes of the blobs that it sends.
type hub struct {
	host string
	sent atomic.Int64
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{}
	blobs := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = &counter{w, &h.sent}
		}
		blobs.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.host = strings.TrimPrefix(server.URL, "http://")
	return h
}

type counter struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// push pushes an image of layers, each of a megabyte.
func (h *hub) push(t *testing.T, name string, layers ...string) *images.Pushed {
	t.Helper()
	spec := images.Image{Entrypoint: []string{"/none"}}
	for _, l := range layers {
		spec.Layers = append(spec.Layers, images.Layer{Name: l, Size: 1_000_000})
	}
	return livetest.Push(t, h.host+"/"+name, spec)
}

// daemon is a containerd with its folders below one of the test.
type daemon struct {
	t               *testing.T
	folder, program string
	cmd             *exec.Cmd
	cri             runtimeapi.ImageServiceClient
}

// start starts a containerd. It ends with the test.
func start(t *testing.T, v version, b blobs) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("containerd mounts what it unpacks: run as root")
	}
	if _, err := os.Stat(program + v.suffix); err != nil {
		t.Fatalf("%v: scripts/build.sh tools containerd%s makes it", err, v.suffix)
	}
	// Short: a socket's path has at most 107 bytes.
	folder, err := os.MkdirTemp("", "ll-containerd-")
	must(t, err)
	d := &daemon{t: t, folder: folder, program: program + v.suffix}
	t.Cleanup(func() { must(t, os.RemoveAll(folder)) })
	d.configure(v, b)
	d.run()
	t.Cleanup(d.kill)
	connection, err := grpc.NewClient("unix://"+d.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	d.cri = runtimeapi.NewImageServiceClient(connection)
	d.serves()
	return d
}

// configure writes the configuration.
func (d *daemon) configure(v version, b blobs) {
	d.t.Helper()
	form, service, server := 3, "'io.containerd.cri.v1.images'", "'io.containerd.cri.v1.runtime'"
	if v.suffix == old {
		form, service, server = 2, "'io.containerd.grpc.v1.cri'.containerd", "'io.containerd.grpc.v1.cri'"
	}
	imports, tables := "", fmt.Sprintf(`
[plugins.%s]
  discard_unpacked_layers = %t
[plugins.%s.cni]
  conf_dir = %q
`, service, b == dropped, server, d.folder+"/cni")
	switch b {
	case asInKind:
		imports, tables = fmt.Sprintf("imports = [%q]", d.kinds()), ""
	case asInK3s:
		tables = d.k3s(v)
	}
	// The socket of NRI would be in /run/nri, on the host.
	text := fmt.Sprintf(`version = %d
root = %q
state = %q
disabled_plugins = ['io.containerd.nri.v1.nri']
%s
[grpc]
  address = %q
[plugins.'io.containerd.internal.v1.opt']
  path = %q
%s`, form, d.folder+"/root", d.folder+"/state", imports, d.socket(), d.folder+"/opt", tables)
	must(d.t, os.WriteFile(d.folder+"/config.toml", []byte(text), 0o600))
}

// kinds writes kind's own configuration of containerd and returns its path. Two things differ:
// where networks are, and the file that containers start with, which kind makes with its image. No
// container is started here.
func (d *daemon) kinds() string {
	d.t.Helper()
	spec, path := d.folder+"/cri-base.json", d.folder+"/kind.toml"
	must(d.t, os.WriteFile(spec, []byte("{}"), 0o600))
	text, err := os.ReadFile(filepath.Join(livetest.Module(d.t, "sigs.k8s.io/kind", "KIND_VERSION"), "images/base/files/etc/containerd/config.toml"))
	must(d.t, err)
	changed := strings.ReplaceAll(string(text), "/etc/containerd/cri-base.json", spec)
	changed += fmt.Sprintf("[plugins.'io.containerd.grpc.v1.cri'.cni]\n  conf_dir = %q\n", d.folder+"/cni")
	must(d.t, os.WriteFile(path, []byte(changed), 0o600))
	return path
}

// k3s returns the settings for images that k3s gives its containerd on Linux without options of its
// own: those for containerd 2 as k3s v1.35 writes them (ContainerdConfigTemplateV3 in its
// pkg/agent/templates/templates.go), for 1.7 as v1.29.1 does. Neither names discard_unpacked_layers.
// Left out is what containers need. Folders are those of the test; of certs.d, k3s fills what
// registries.yaml names.
func (d *daemon) k3s(v version) string {
	if v.suffix == old {
		return fmt.Sprintf(`
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = 'rancher/mirrored-pause:3.6'
[plugins.'io.containerd.grpc.v1.cri'.containerd]
  snapshotter = 'overlayfs'
  disable_snapshot_annotations = true
[plugins.'io.containerd.grpc.v1.cri'.registry]
  config_path = %q
[plugins.'io.containerd.grpc.v1.cri'.cni]
  conf_dir = %q
`, d.folder+"/certs.d", d.folder+"/cni")
	}
	return fmt.Sprintf(`
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  disable_snapshot_annotations = true
  use_local_image_pull = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'rancher/mirrored-pause:3.6'
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = %q
[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = %q
`, d.folder+"/certs.d", d.folder+"/cni")
}

func (d *daemon) socket() string { return filepath.Join(d.folder, "s.sock") }

// run starts the process, also after it was killed.
func (d *daemon) run() {
	d.t.Helper()
	output, err := os.OpenFile(d.folder+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(d.t, err)
	defer output.Close()
	d.cmd = exec.Command(d.program, "--config", d.folder+"/config.toml")
	d.cmd.Stdout, d.cmd.Stderr = output, output
	must(d.t, d.cmd.Start())
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// serves waits until CRI answers.
func (d *daemon) serves() {
	d.t.Helper()
	livetest.Eventually(d.t, time.Minute, "containerd serves", func(ctx context.Context) error {
		_, err := d.cri.ListImages(ctx, &runtimeapi.ListImagesRequest{}, grpc.WaitForReady(true))
		if text, _ := os.ReadFile(d.folder + "/log"); err != nil && len(text) > 0 {
			return fmt.Errorf("%w: %s", err, text[max(0, len(text)-2000):])
		}
		return err
	})
}

func (d *daemon) pull(image *images.Pushed) {
	d.t.Helper()
	_, err := d.cri.PullImage(d.t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image.Reference}})
	must(d.t, err)
}

func (d *daemon) remove(image *images.Pushed) {
	d.t.Helper()
	_, err := d.cri.RemoveImage(d.t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.Reference}})
	must(d.t, err)
}

func (d *daemon) reader() *reader.Reader {
	d.t.Helper()
	r, err := reader.NewReader(d.socket(), "k8s.io")
	must(d.t, err)
	d.t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestEveryDigest: of images in every format, each digest and size is as in the registry.
func TestEveryDigest(t *testing.T) {
	most := 20
	if os.Getenv("FULL") != "" {
		most = 200 // they take containerd a minute on a busy machine
	}
	all := livetest.Formats(t, most)
	withEach(t, func(t *testing.T, v version) {
		for _, b := range []blobs{kept, dropped, asInKind, asInK3s} {
			t.Run("blobs "+string(b), func(t *testing.T) { testEveryDigest(t, start(t, v, b), v, b, all) })
		}
	})
}

func testEveryDigest(t *testing.T, d *daemon, v version, b blobs, all []livetest.Format) {
	h, r := newHub(t), d.reader()
	// names are those by which each image is looked for.
	names := map[string]*images.Pushed{}
	pull := func(f livetest.Format) {
		t.Helper()
		pushed := f.Push(t, h.host)
		names[pushed.Digest.String()] = pushed
		if !f.ByDigest {
			names[pushed.Reference] = pushed
		}
		d.pull(pushed)
	}
	compare := func(spec *v1alpha1.NodeLayersSpec) {
		t.Helper()
		for name, image := range names {
			want, err := livetest.FromRegistry(t.Context(), image.ByDigest)
			must(t, err)
			got, err := livetest.FromNodeLayers(spec, name)
			must(t, err)
			if diff := livetest.Diff(got, want); diff != "" {
				t.Errorf("%s of %s:%s", name, image.Reference, diff)
			}
		}
	}
	for _, f := range all {
		pull(f)
	}
	chains := b.inChains()
	var result *read.Result
	// containerd collects garbage for 2 % of the time at most (pause_threshold): after a second of that on a busy
	// machine, not for 50.
	livetest.Eventually(t, 3*time.Minute, "blobs are kept or dropped", func(ctx context.Context) error {
		var err error
		if result, err = r.Read(ctx); err == nil && result.Contents.InChains != chains {
			err = fmt.Errorf("in chains is %t", result.Contents.InChains)
		}
		return err
	})
	spec := result.Contents.Spec(0, v1alpha1.MaxNodeListBytes)
	compare(spec)
	if len(spec.Images) != len(all) || len(result.Skipped) > 0 || !*spec.JoinsDownloads || chains != (spec.Reuse == v1alpha1.ReuseInChains) {
		t.Errorf("%d images, skipped %v, joins downloads %t, layers are used by %s", len(spec.Images), result.Skipped, *spec.JoinsDownloads, spec.Reuse)
	}
	if want := "containerd " + strings.TrimPrefix(livetest.Pin(t, v.pin), "v"); !strings.HasPrefix(spec.Runtime, want) {
		t.Errorf("the runtime is %s, want %s", spec.Runtime, want)
	}

	// The tag moves, and the image with the same configuration gets layers of another form.
	pull(livetest.Recompressed(t))
	result, err := r.Read(t.Context())
	must(t, err)
	compare(result.Contents.Spec(0, v1alpha1.MaxNodeListBytes))
}

// missing returns what a node lacks of an image by what was read of it.
func missing(result *read.Result, image *images.Pushed) int64 {
	x := index.New()
	x.SetNode("n", index.Platform{})
	x.SetChains("n", result.Contents.InChains)
	var on []index.Image
	for _, held := range result.Contents.Images {
		i := index.Image{Names: held.Names[1:2]} // its tag; the first is a digest
		for _, l := range held.Layers {
			i.Layers = append(i.Layers, index.Layer{Digest: l.Digest, Size: l.Size})
		}
		if result.Contents.InChains {
			i.Layers = index.Chain(i.Layers)
		}
		on = append(on, i)
	}
	x.SetImages("test", "n", on)
	m := index.Manifest{}
	for i, l := range image.Layers {
		m.Layers = append(m.Layers, index.Layer{Digest: l.Digest.String(), Size: l.Size})
		m.Order = append(m.Order, uint16(i))
	}
	name, err := imageref.Parse(image.Reference)
	if err != nil {
		panic(err)
	}
	var measured index.Measurement
	x.Measure([]index.Wanted{{Names: []imageref.Canonical{name}, Manifests: []index.Manifest{m}}}, index.Rules{}, time.Now(), &measured)
	bytes, _ := measured.Node("n")
	return bytes.Missing()
}

// TestMissingBytesArePulled: A = [1 2], B = [1 3] and C = [4 1] are pulled in every order. What
// the index of plugin and extender calls missing before each pull is what the registry then sends,
// within 1 %.
func TestMissingBytesArePulled(t *testing.T) { withEach(t, testMissingBytes) }

func testMissingBytes(t *testing.T, v version) {
	h := newHub(t)
	a, b, c := h.push(t, "a:v1", "one", "two"), h.push(t, "b:v1", "one", "three"), h.push(t, "c:v1", "four", "one")
	other := h.push(t, "other:v1", "five")
	rows := [][]string{{"blobs", "order", "called missing", "pulled"}}
	for _, does := range []blobs{kept, dropped, asInK3s} {
		for _, order := range [][]*images.Pushed{{a, b, c}, {a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}} {
			d := start(t, v, does)
			r := d.reader()
			var names, called, pulled []string
			for _, image := range order {
				result, err := r.Read(t.Context())
				must(t, err)
				want, before := missing(result, image), h.sent.Load()
				d.pull(image)
				got := h.sent.Load() - before
				name, _, _ := strings.Cut(strings.TrimPrefix(image.Reference, h.host+"/"), ":")
				names, called, pulled = append(names, name), append(called, livetest.Megabytes(want)), append(pulled, livetest.Megabytes(got))
				if does.inChains() { // a moment later
					nudged := time.Now()
					livetest.Eventually(t, 3*time.Minute, "the blobs are dropped", func(ctx context.Context) error {
						// The image's own: those of an earlier one may be dropped already.
						left := slices.ContainsFunc(image.Layers, func(l v1.Descriptor) bool {
							_, err := os.Stat(filepath.Join(d.folder, "root/io.containerd.content.v1.content/blobs/sha256", l.Digest.Hex))
							return err == nil
						})
						result, err := r.Read(ctx)
						if err == nil && result.Contents.InChains && !left {
							return nil
						}
						// On a busy machine, containerd's last collection may have come before it had
						// unpacked the layers. The removal of an image brings another one.
						if time.Since(nudged) > 5*time.Second {
							d.pull(other)
							d.remove(other)
							nudged = time.Now()
						}
						return errors.Join(errors.New("layers are there"), err)
					})
				}
				if off := got - want; off < -want/100 || off > max(want/100, 5000) { // the configuration has some 1,000
					t.Errorf("blobs %s, %v: %d bytes were called missing of %s, the registry sent %d", does, names, want, name, got)
				}
			}
			rows = append(rows, []string{string(does), strings.Join(names, " "), strings.Join(called, ", "), strings.Join(pulled, ", ")})
			d.kill()
		}
	}
	livetest.Table(t, rows...)
}

// TestFollows: pulls and removals are seen, also after containerd was killed and started again.
func TestFollows(t *testing.T) { withEach(t, testFollows) }

func testFollows(t *testing.T, v version) {
	h, d := newHub(t), start(t, v, kept)
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- (&read.Loop{Runtime: d.reader(), Writer: handover.NewWriter(folder)}).Run(ctx)
	}()
	from, last := handover.NewReader(folder), &handover.Report{Spec: (&contents.Contents{}).Spec(0, 0)}
	sees := func(what string, image *images.Pushed, there bool) {
		t.Helper()
		livetest.Eventually(t, time.Minute, what, func(context.Context) error {
			report, err := from.Report()
			if err != nil {
				return err
			}
			if report != nil {
				last = report
			}
			if _, err = livetest.FromNodeLayers(last.Spec, image.Reference); there {
				return err
			}
			if err == nil {
				return errors.New("it is there")
			}
			return nil
		})
	}
	a, b := h.push(t, "a:v1", "one"), h.push(t, "b:v1", "one", "two")
	d.pull(a)
	sees("a pull", a, true)
	d.kill()
	d.run()
	d.serves()
	d.pull(b)
	sees("a pull after a restart", b, true)
	d.remove(a)
	sees("a removal", a, false)

	// It hangs: the reader counts a failure, and goes on when it answers again.
	must(t, d.cmd.Process.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = d.cmd.Process.Signal(syscall.SIGCONT) })
	livetest.Eventually(t, 2*time.Minute, "a reading fails", func(context.Context) error {
		state, err := from.State()
		if err == nil && state.Errors[handover.ReadFailed] == 0 {
			err = fmt.Errorf("%+v", state)
		}
		return err
	})
	must(t, d.cmd.Process.Signal(syscall.SIGCONT))
	c := h.push(t, "c:v1", "one", "three")
	d.pull(c)
	sees("a pull after it hung", c, true)
	cancel()
	must(t, <-done)
}
