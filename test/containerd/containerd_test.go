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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	reader "github.com/layer-locality/layer-locality/agent/containerd"
	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/internal/cluster/images"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// program is what scripts/build.sh tools containerd makes.
const program = "../../_build/bin/tools/containerd"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
	built, err := images.Build(spec)
	must(t, err)
	pushed, err := images.Push(t.Context(), h.host+"/"+name, built)
	must(t, err)
	return pushed
}

// daemon is a containerd with its folders below one of the test.
type daemon struct {
	t      *testing.T
	folder string
	cmd    *exec.Cmd
	cri    runtimeapi.ImageServiceClient
}

// start starts a containerd. It ends with the test.
func start(t *testing.T, discard bool) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("containerd mounts what it unpacks: run as root")
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: scripts/build.sh tools containerd makes it", err)
	}
	// Short: a socket's path has at most 107 bytes.
	folder, err := os.MkdirTemp("", "ll-containerd-")
	must(t, err)
	d := &daemon{t: t, folder: folder}
	config := fmt.Sprintf(`version = 3
root = %q
state = %q
[grpc]
  address = %q
[plugins.'io.containerd.cri.v1.images']
  discard_unpacked_layers = %t
[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = %q
`, folder+"/root", folder+"/state", d.socket(), discard, folder+"/cni")
	must(t, os.WriteFile(folder+"/config.toml", []byte(config), 0o600))
	t.Cleanup(func() {
		d.kill()
		must(t, os.RemoveAll(folder))
	})
	d.run()
	connection, err := grpc.NewClient("unix://"+d.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	d.cri = runtimeapi.NewImageServiceClient(connection)
	d.serves()
	return d
}

func (d *daemon) socket() string { return filepath.Join(d.folder, "s.sock") }

// run starts the process, also after it was killed.
func (d *daemon) run() {
	d.t.Helper()
	output, err := os.OpenFile(d.folder+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(d.t, err)
	defer output.Close()
	d.cmd = exec.Command(program, "--config", d.folder+"/config.toml")
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

// held returns the layers of an image as the texts of a NodeLayers say.
func held(spec *v1alpha1.NodeLayersSpec, name string) (livetest.Layers, error) {
	for _, text := range spec.Images {
		image, err := v1alpha1.ParseNodeImage(text, len(spec.Layers))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(image.Names, name) {
			continue
		}
		layers := livetest.Layers{}
		for _, place := range image.Layers {
			l, err := v1alpha1.ParseLayer(spec.Layers[place])
			if err != nil {
				return nil, err
			}
			layers[l.Digest] = l.Size
		}
		return layers, nil
	}
	return nil, fmt.Errorf("%s is not among %q", name, spec.Images)
}

// TestEveryDigest: of images in every format, each digest and size is as in the registry.
func TestEveryDigest(t *testing.T) {
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard_unpacked_layers=%t", discard), func(t *testing.T) {
			h, d := newHub(t), start(t, discard)
			base, top := images.Layer{Name: "base", Size: 2_000_000}, images.Layer{Name: "top", Size: 20_000}
			var all []*images.Pushed
			// In this order most layers are not fetched: the files of "zstd" and "plain" are
			// there already, with another compression.
			for _, next := range []struct {
				name string
				images.Image
			}{
				{"gzip", images.Image{Layers: []images.Layer{base, top}}},
				{"docker", images.Image{Layers: []images.Layer{top, base, top}, Format: images.Docker}},
				{"zstd", images.Image{Layers: []images.Layer{base}, Compression: images.Zstd}},
				{"plain", images.Image{Layers: []images.Layer{top}, Compression: images.Uncompressed}},
			} {
				built, err := images.Build(next.Image)
				must(t, err)
				pushed, err := images.Push(t.Context(), h.host+"/"+next.name+":v1", built)
				must(t, err)
				all = append(all, pushed)
				index, err := images.Index(built)
				must(t, err)
				pushed, err = images.Push(t.Context(), h.host+"/"+next.name+"-index:v1", index)
				must(t, err)
				all = append(all, pushed)
			}
			for _, image := range all {
				d.pull(image)
			}
			r := d.reader()
			var result *read.Result
			livetest.Eventually(t, 30*time.Second, "blobs are kept or dropped", func(ctx context.Context) error {
				var err error
				if result, err = r.Read(ctx); err == nil && result.Contents.InChains != discard {
					err = fmt.Errorf("in chains is %t", result.Contents.InChains)
				}
				return err
			})
			spec := result.Contents.Spec()
			for _, image := range all {
				want, err := livetest.FromRegistry(t.Context(), image.Reference)
				must(t, err)
				for _, name := range []string{image.Reference, image.Digest.String()} {
					got, err := held(spec, name)
					must(t, err)
					if diff := livetest.Diff(got, want); diff != "" {
						t.Errorf("%s:%s", name, diff)
					}
				}
			}
			// Four images, each by a manifest and an index of it.
			if len(spec.Images) != 8 || len(result.Skipped) > 0 || !strings.HasPrefix(spec.Runtime, "containerd 2.") || !*spec.JoinsDownloads {
				t.Errorf("%d images, skipped %v, %s", len(spec.Images), result.Skipped, spec.Runtime)
			}
			if discard != (spec.Reuse == v1alpha1.ReuseInChains) {
				t.Errorf("layers are used by %s", spec.Reuse)
			}
		})
	}
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
// is called missing before each pull is what the registry then sends, within 1 %.
func TestMissingBytesArePulled(t *testing.T) {
	h := newHub(t)
	a, b, c := h.push(t, "a:v1", "one", "two"), h.push(t, "b:v1", "one", "three"), h.push(t, "c:v1", "four", "one")
	other := h.push(t, "other:v1", "five")
	rows := [][]string{{"blobs", "order", "called missing", "pulled"}}
	for _, discard := range []bool{false, true} {
		for _, order := range [][]*images.Pushed{{a, b, c}, {a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}} {
			d := start(t, discard)
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
				if discard { // a moment later
					nudged := time.Now()
					livetest.Eventually(t, 60*time.Second, "the blobs are dropped", func(ctx context.Context) error {
						result, err := r.Read(ctx)
						if err == nil && result.Contents.InChains {
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
					t.Errorf("discard %t, %v: %d bytes were called missing of %s, the registry sent %d", discard, names, want, name, got)
				}
			}
			kept := map[bool]string{false: "kept", true: "dropped"}[discard]
			rows = append(rows, []string{kept, strings.Join(names, " "), strings.Join(called, ", "), strings.Join(pulled, ", ")})
			d.kill()
		}
	}
	livetest.Table(t, rows...)
}

// TestFollows: pulls and removals are seen, also after containerd was killed and started again.
func TestFollows(t *testing.T) {
	h, d := newHub(t), start(t, false)
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- (&read.Loop{Runtime: d.reader(), Writer: handover.NewWriter(folder)}).Run(ctx)
	}()
	from, last := handover.NewReader(folder), &handover.Report{Spec: (&contents.Contents{}).Spec()}
	sees := func(what string, image *images.Pushed, there bool) {
		t.Helper()
		livetest.Eventually(t, 30*time.Second, what, func(context.Context) error {
			report, err := from.Report()
			if err != nil {
				return err
			}
			if report != nil {
				last = report
			}
			if _, err = held(last.Spec, image.Reference); there {
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

	// It hangs: the reader says so, and goes on when it answers again.
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
