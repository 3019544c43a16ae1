// Package resolver measures layer-resolver on as many images as a large cluster
// has. It runs the real program, with its own API server and etcd, and a
// registry in this process that answers with a delay.
package resolver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Images, each named by a Deployment, in a repository of its own.
	Images int `json:"images"`
	// Pods in addition to the Deployments, 50 of each image.
	Pods int `json:"pods"`
	// Singles is the number of images that come one after another at the end.
	Singles int `json:"singles"`
	// Latency of each answer of the registry.
	Latency time.Duration `json:"latency"`
	// Tokens: if set, everything is measured once more with a registry that
	// requires a token for each repository.
	Tokens bool `json:"tokens"`
	// Workers, QPS and TagTTL are flags of layer-resolver. TagTTL is for the round
	// in which all tags are confirmed.
	Workers int           `json:"workers"`
	QPS     float64       `json:"registryQPS"`
	TagTTL  time.Duration `json:"tagTTL"`
	// Updates of a CronJob in the flood, each with FloodNames made-up images; 0: no flood.
	Updates int `json:"updates"`

	// Root of the repository; its _build/bin holds the programs.
	Root string `json:"-"`
	// Binary of layer-resolver, instead of the repository's.
	Binary string `json:"-"`
	// LogDir gets the output of layer-resolver.
	LogDir string `json:"-"`
}

// podsPerImage is the number of pods of an image that has pods at all.
const podsPerImage = 50

func (c *Config) check() error {
	for _, field := range []struct {
		flag             string
		value, low, high int
	}{
		{"images", c.Images, 1, 50_000},
		{"pods", c.Pods, 0, podsPerImage * c.Images},
		{"singles", c.Singles, 1, 1000},
		{"workers", c.Workers, 1, 1000},
		{"updates", c.Updates, 0, 1_000_000},
	} {
		if field.value < field.low || field.value > field.high {
			return fmt.Errorf("%s: %d, want %d to %d", field.flag, field.value, field.low, field.high)
		}
	}
	return nil
}

// Result is everything that was measured.
type Result struct {
	Config  Config    `json:"config"`
	Started time.Time `json:"started"`
	Rows    []Row     `json:"rows"`
	// Flood is nil if there was none.
	Flood *Flood `json:"flood,omitempty"`
}

// Row is what was measured with a registry that requires tokens, or with one
// that does not. Each of the four phases is a separate process that starts with
// the objects of the phase before.
type Row struct {
	Tokens bool `json:"tokens"`
	// Resolve: no image is known.
	Resolve Phase `json:"resolve"`
	// Restart: all images are known.
	Restart Phase `json:"restart"`
	// Confirm: all tags are due for confirmation.
	Confirm Phase `json:"confirm"`
	// Single: one unknown image after another.
	Single    Phase           `json:"single"`
	Latencies []time.Duration `json:"latencies"`
}

// Phase is one process of layer-resolver. Times are in nanoseconds from its
// start.
type Phase struct {
	Ready        time.Duration `json:"ready"`
	FirstRequest time.Duration `json:"firstRequest"`
	// Done is the time at which a watch saw the last change.
	Done     time.Duration `json:"done"`
	Requests Requests      `json:"requests"`
	// Writes of ImageManifests that the API server counted, by verb.
	Writes map[string]int `json:"writes"`
	// CPU is the processor time of the process until its end.
	CPU time.Duration `json:"cpu"`
	// AroundCPU is the processor time of kube-apiserver, etcd and this program,
	// from the start until the phase was done. This program is the registry, and
	// has the watch.
	AroundCPU map[string]time.Duration `json:"aroundCPU"`
	// PeakRSS in bytes.
	PeakRSS int64 `json:"peakRSS"`
	// Load is the machine's load average over one minute at the end.
	Load float64 `json:"load"`
}

// benchmark is a running benchmark.
type benchmark struct {
	Config
	dir      string
	server   *apiServer
	registry *registry
	// images of the Deployments, and those that come one by one.
	images, singles []image
	// honest are those of another namespace while there is a flood.
	honest []image
}

// Run starts an API server and a registry, lets layer-resolver work, and
// removes everything. It fails if an image is not resolved, or is resolved
// wrongly.
func Run(ctx context.Context, config Config) (_ *Result, err error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	b := &benchmark{Config: config}
	if err := b.prepare(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	b.Logf("making %d images", b.Images)
	count := b.Images + b.Singles + honestImages
	if b.registry, err = newRegistry(count, 100, b.Latency); err != nil {
		return nil, err
	}
	defer b.registry.Close()
	b.images, b.singles = b.registry.images[:b.Images], b.registry.images[b.Images:b.Images+b.Singles]
	b.honest = b.registry.images[b.Images+b.Singles:]

	b.Logf("starting etcd and kube-apiserver")
	if b.server, err = startAPIServer(ctx, b.Root); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.server.Stop()) }()
	if err := b.fill(ctx); err != nil {
		return nil, err
	}

	result := &Result{Config: config, Started: time.Now().UTC().Truncate(time.Second)}
	rows := []bool{false}
	if b.Tokens {
		rows = append(rows, true)
	}
	for _, tokens := range rows {
		row, err := b.measure(ctx, tokens)
		if err != nil {
			return nil, err
		}
		result.Rows = append(result.Rows, *row)
	}
	if b.Updates > 0 {
		if result.Flood, err = b.flood(ctx); err != nil {
			return nil, fmt.Errorf("flood: %w", err)
		}
	}
	return result, nil
}

// prepare creates the folders and copies the program. The copy does not change
// if the program is rebuilt meanwhile. It also has a known age: how much of a
// file counts as resident memory depends on that.
func (b *benchmark) prepare() (err error) {
	if b.Root, err = filepath.Abs(b.Root); err != nil {
		return err
	}
	if b.Binary == "" {
		b.Binary = filepath.Join(b.Root, "_build/bin/patched/layer-resolver")
	}
	program, err := os.ReadFile(b.Binary)
	if err != nil {
		return fmt.Errorf("%w: 'scripts/build.sh patched layer-resolver' makes it", err)
	}
	if err := os.MkdirAll(b.LogDir, 0o755); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "bench-resolver-"); err != nil {
		return err
	}
	b.Binary = filepath.Join(b.dir, "layer-resolver")
	if err := os.WriteFile(b.Binary, program, 0o755); err != nil {
		return errors.Join(err, os.RemoveAll(b.dir))
	}
	return nil
}

// fill creates the objects that exist before the resolver starts.
func (b *benchmark) fill(ctx context.Context) error {
	b.Logf("creating %d Deployments and %d pods", b.Images, b.Pods)
	objects := make([]client.Object, 0, b.Images+b.Pods)
	for i, image := range b.images {
		objects = append(objects, deployment(fmt.Sprintf("app-%d", i), image))
	}
	for i := range b.Pods {
		objects = append(objects, pod(fmt.Sprintf("pod-%d", i), b.images[i/podsPerImage]))
	}
	if err := b.server.createNode(ctx); err != nil {
		return err
	}
	if err := b.server.createAll(ctx, objects); err != nil {
		return err
	}
	files := map[string][]byte{"kubeconfig": b.server.Kubeconfig(), "ca.pem": b.registry.certificate()}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(b.dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// measure measures a row.
func (b *benchmark) measure(ctx context.Context, tokens bool) (_ *Row, err error) {
	b.registry.want(tokens)
	if err := b.server.forget(ctx); err != nil {
		return nil, err
	}
	const hour = time.Hour // the default of --tag-ttl: no tag is due
	row := &Row{Tokens: tokens}
	if row.Resolve, err = b.run(ctx, row.name("resolve"), hour, b.resolve); err != nil {
		return nil, err
	}
	if row.Restart, err = b.run(ctx, row.name("restart"), hour, b.restart); err != nil {
		return nil, err
	}
	b.Logf("waiting %s until all tags are due", b.TagTTL)
	select {
	case <-time.After(b.TagTTL):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if row.Confirm, err = b.run(ctx, row.name("confirm"), b.TagTTL, b.confirm); err != nil {
		return nil, err
	}
	row.Single, err = b.run(ctx, row.name("single"), hour, func(ctx context.Context, p *process) (_ time.Time, err error) {
		row.Latencies, err = b.single(ctx, p)
		return time.Now(), err
	})
	return row, err
}

func (r *Row) name(phase string) string {
	if r.Tokens {
		return phase + "-tokens"
	}
	return phase
}

// start starts layer-resolver, which may ask the registry.
func (b *benchmark) start(ctx context.Context, name string, args ...string) (*process, error) {
	return startProcess(ctx, b.Binary, filepath.Join(b.LogDir, name+".log"), []string{"SSL_CERT_FILE=" + filepath.Join(b.dir, "ca.pem")},
		append([]string{
			"--kubeconfig", filepath.Join(b.dir, "kubeconfig"), "--allow-registry", b.registry.host(), "--allow-network", "127.0.0.0/8",
		}, args...)...)
}

// run starts layer-resolver, measures it until its work is done, and ends it.
// work returns the time at which it was done.
func (b *benchmark) run(ctx context.Context, name string, ttl time.Duration, work func(context.Context, *process) (time.Time, error)) (r Phase, err error) {
	before, err := b.server.writes(ctx)
	if err != nil {
		return r, err
	}
	around, err := processorTimes()
	if err != nil {
		return r, err
	}
	b.registry.reset()
	// All images are of one namespace, and neither registry nor API server are spared.
	images := strconv.Itoa(b.Images + b.Singles + 16)
	p, err := b.start(ctx, name, "--workers", strconv.Itoa(b.Workers), "--registry-qps", fmt.Sprint(b.QPS), "--tag-ttl", ttl.String(),
		"--max-images", images, "--max-images-per-namespace", images, "--kube-api-qps", "1000", "--kube-api-burst", "2000")
	if err != nil {
		return r, err
	}
	done, err := func() (done time.Time, err error) {
		if r.Ready, err = p.ready(ctx); err != nil {
			return done, err
		}
		if done, err = work(ctx, p); err != nil {
			return done, err
		}
		if r.PeakRSS, err = p.peakRSS(); err != nil {
			return done, err
		}
		r.AroundCPU, err = processorTimes()
		return done, err
	}()
	var stopped error
	if r.CPU, stopped = p.stop(); err != nil || stopped != nil {
		return r, fmt.Errorf("%s: %w", name, errors.Join(err, stopped))
	}
	r.Done = done.Sub(p.began)
	delete(r.AroundCPU, filepath.Base(b.Binary))
	for name := range r.AroundCPU {
		r.AroundCPU[name] -= around[name]
	}
	var first time.Time
	if r.Requests, first = b.registry.counted(); !first.IsZero() {
		r.FirstRequest = first.Sub(p.began)
	}
	if r.Load, err = load(); err != nil {
		return r, err
	}
	// Only after the process has ended: the API server counts a request some time
	// after a watch has reported the change.
	if r.Writes, err = b.server.writes(ctx); err != nil {
		return r, err
	}
	for verb := range r.Writes {
		r.Writes[verb] -= before[verb]
	}
	b.Logf("%-14s  ready after %.1f s, done after %.1f s, requests %+v, writes %v, processor %.1f s, at most %.1f MiB, load %.1f",
		name, r.Ready.Seconds(), r.Done.Seconds(), r.Requests, r.Writes, r.CPU.Seconds(), mib(r.PeakRSS), r.Load)
	return r, nil
}

// resolve waits until all images are known, and checks their ImageManifests.
func (b *benchmark) resolve(ctx context.Context, p *process) (time.Time, error) {
	var last time.Time
	err := p.until(ctx, "all images were resolved", func() error { return missing(b.server.view.count(), b.Images) })
	if err != nil {
		return last, err
	}
	for _, image := range b.images {
		at, ok, err := b.server.view.appeared(image)
		if err != nil {
			return last, err
		}
		if !ok {
			return last, fmt.Errorf("%s was not resolved; see %s", image.reference, p.log)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

// restart waits until all images, which are known already, are counted. They are not looked at before they are due.
func (b *benchmark) restart(ctx context.Context, p *process) (time.Time, error) {
	err := p.until(ctx, "all images were counted", func() error {
		used, err := p.metric("layerlocality_resolver_images_in_use")
		if err != nil {
			return poll.Permanent(err)
		}
		return missing(used, b.Images)
	})
	return time.Now(), err
}

// confirm waits until the objects state that each tag was confirmed.
func (b *benchmark) confirm(ctx context.Context, p *process) (last time.Time, err error) {
	err = p.until(ctx, "all tags were confirmed", func() error {
		var count int
		count, last = b.server.view.changedSince(p.began)
		return missing(count, b.Images)
	})
	return last, err
}

// missing returns an error if count is less than wanted.
func missing(count, wanted int) error {
	if count < wanted {
		return fmt.Errorf("%d of %d", count, wanted)
	}
	return nil
}

// single creates Deployments of unknown images one after another. For each, it
// returns the time from the creation until the image was known.
func (b *benchmark) single(ctx context.Context, p *process) ([]time.Duration, error) {
	if _, err := b.restart(ctx, p); err != nil {
		return nil, err
	}
	var latencies []time.Duration
	for i, image := range b.singles {
		d := deployment(fmt.Sprintf("single-%d", i), image)
		begin := time.Now()
		if err := b.server.client.Create(ctx, d); err != nil {
			return nil, err
		}
		at, err := b.wait(ctx, p, image)
		if err != nil {
			return nil, err
		}
		latencies = append(latencies, at.Sub(begin))
		if err := b.server.client.Delete(ctx, d); err != nil {
			return nil, err
		}
	}
	return latencies, nil
}

// wait waits until an image is known, and returns when it was.
func (b *benchmark) wait(ctx context.Context, p *process, image image) (at time.Time, err error) {
	err = p.until(ctx, image.reference+" was resolved", func() (err error) {
		var ok bool
		if at, ok, err = b.server.view.appeared(image); err != nil {
			return poll.Permanent(err)
		}
		if !ok {
			return errors.New("no ImageManifest")
		}
		return nil
	})
	return at, err
}

// load returns the machine's load average over one minute.
func load() (float64, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	average, err := fs.LoadAvg()
	if err != nil {
		return 0, err
	}
	return average.Load1, nil
}
