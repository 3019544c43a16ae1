package crio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/crio/imagelayers"
	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/bench/process"
	"github.com/layer-locality/layer-locality/lab/bench/store"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	Images int `json:"images"` // in the store
	Layers int `json:"layers"` // of each image
	Rounds int `json:"rounds"` // in each, both flavours are measured once
	Lists  int `json:"lists"`  // ListImages calls a measurement, at least listsBeforeRSS
	Starts int `json:"starts"` // of each flavour a round, by turns: each with a first list and pulls

	// BinDir holds the folders stock, patched and tools. Default: _build/bin of
	// the repository around the working directory.
	BinDir string `json:"-"`
	// LogDir gets the logs of CRI-O and the registry.
	LogDir string `json:"-"`
	// ProfileDir, if set, gets a CPU profile of CRI-O for each measurement, without FirstLists.
	ProfileDir string `json:"profileDir,omitempty"`
}

// listsBeforeRSS is how often images are listed before memory is measured.
const listsBeforeRSS = 20

func (c *Config) check() error {
	for _, field := range []struct {
		flag             string
		value, low, high int
	}{
		{"images", c.Images, 1, 20_000},
		{"layers", c.Layers, 1, imagelayers.MaxPerImage},
		{"rounds", c.Rounds, 1, 1000},
		{"lists", c.Lists, listsBeforeRSS, 100_000},
		{"starts", c.Starts, 1, 1000},
	} {
		if field.value < field.low || field.value > field.high {
			return fmt.Errorf("%s: %d, want %d to %d", field.flag, field.value, field.low, field.high)
		}
	}
	return nil
}

// Measurement is one turn of a flavour. Times are in nanoseconds.
type Measurement struct {
	Flavour cluster.Flavour `json:"flavour"`
	// Load is the machine's load average over one minute at the end.
	Load float64 `json:"load"`
	// FirstLists are the first ListImages calls after each of the round's starts of this
	// flavour, when CRI-O's cache is empty.
	FirstLists []time.Duration `json:"firstLists"`
	// Lists are later calls, as a client sees them.
	Lists []time.Duration `json:"lists"`
	// ListCPU is the mean processor time of CRI-O for one call of Lists.
	ListCPU time.Duration `json:"listCPU"`
	// Layers and Bytes of the answer: its layer annotations and its encoded size.
	Layers int `json:"layers"`
	Bytes  int `json:"bytes"`
	// Memory of CRI-O after 20 lists.
	Memory process.Memory `json:"memory"`
	// Pulls of the large image after each of these starts. It is removed before each pull.
	Pulls []time.Duration `json:"pulls"`
	// Shared is the pull of images with a common base at once.
	Shared PullAtOnce `json:"shared"`
	// Apart are those of images with nothing in common, after each of the round's starts.
	Apart []PullAtOnce `json:"apart"`
	// Bare are lists by a server that is nothing but gRPC, with the images of this
	// flavour's answer. The patched one's have layers, as a hook would add them that does
	// nothing else: what they cost there, they cost anywhere.
	Bare []time.Duration `json:"bare"`
}

// PullAtOnce is a pull of several images at once.
type PullAtOnce struct {
	Bytes int64         `json:"bytes"` // that came over the node's link
	Took  time.Duration `json:"took"`  // until all were there
}

// Result is everything that was measured, in order.
type Result struct {
	Config       Config        `json:"config"`
	Started      time.Time     `json:"started"`
	Measurements []Measurement `json:"measurements"`
}

// Run fills a store with images, lets both flavours of CRI-O take turns on it,
// and removes everything. It fails if the patched one does not report all
// layers.
func Run(ctx context.Context, config Config) (_ *Result, err error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	for _, dir := range []*string{&config.LogDir, &config.ProfileDir} {
		if *dir == "" {
			continue
		}
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(*dir, 0o755); err != nil {
			return nil, err
		}
	}
	c, err := cluster.Start(ctx, cluster.Config{
		Name:        "bench",
		BinDir:      config.BinDir,
		LogDir:      config.LogDir,
		Nodes:       1,
		RuntimeOnly: true,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		config.Logf("removing the node and its images")
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
		defer cancel()
		err = errors.Join(err, c.Stop(cleanup))
	}()
	node := c.Nodes()[0]
	pushed, err := fill(ctx, c, node, config)
	if err != nil {
		return nil, err
	}
	binaries, err := copyBinaries(c)
	if err != nil {
		return nil, err
	}
	result := &Result{Config: config, Started: time.Now().UTC().Truncate(time.Second)}
	for round := range config.Rounds {
		turns, err := takeTurns(ctx, node, binaries, pushed, config.Starts, round)
		if err != nil {
			return nil, err
		}
		for _, flavour := range order(round) {
			m, err := measure(ctx, node, flavour, binaries[flavour], pushed, config, len(result.Measurements))
			if err != nil {
				return nil, fmt.Errorf("%s CRI-O: %w", flavour, err)
			}
			m.FirstLists, m.Pulls, m.Apart = turns[flavour].FirstLists, turns[flavour].Pulls, turns[flavour].Apart
			config.Logf("round %d of %d, %-7s  first list %s, list %s (bare %s), processor %s, pull %s, %d images %.0f MB in %s, apart %s, %.1f MiB, load %.1f",
				round+1, config.Rounds, flavour, ms(median(m.FirstLists)), ms(median(m.Lists)), ms(median(m.Bare)), ms(m.ListCPU), ms(median(m.Pulls)),
				sharedImages, float64(m.Shared.Bytes)/1e6, ms(m.Shared.Took), ms(median(tooks(m.Apart))), mib(m.Memory.RSS), m.Load)
			result.Measurements = append(result.Measurements, *m)
		}
	}
	// Stop CRI-O before the cluster is killed: it writes its profile when it
	// stops.
	if err := errors.Join(result.check(), node.Runtime().Stop(ctx)); err != nil {
		return nil, err
	}
	return result, nil
}

// order alternates which flavour comes first, so that a drift affects both
// alike.
func order(round int) []cluster.Flavour {
	if round%2 == 0 {
		return []cluster.Flavour{cluster.Stock, cluster.Patched}
	}
	return []cluster.Flavour{cluster.Patched, cluster.Stock}
}

// copyBinaries copies both programs, so that their files are of the same age.
// How much of a program counts as resident memory depends on how its pages came
// into the page cache: the difference between an old file and a new one is 16
// MiB.
func copyBinaries(c *cluster.Cluster) (map[cluster.Flavour]string, error) {
	binaries := map[cluster.Flavour]string{}
	for _, flavour := range []cluster.Flavour{cluster.Stock, cluster.Patched} {
		// The flavours are beside the folder of the tools.
		content, err := os.ReadFile(filepath.Join(filepath.Dir(c.Tool("")), string(flavour), "crio"))
		if err != nil {
			return nil, err
		}
		binaries[flavour] = filepath.Join(c.Dir(), "crio-"+string(flavour))
		if err := os.WriteFile(binaries[flavour], content, 0o755); err != nil {
			return nil, err
		}
	}
	return binaries, nil
}

// list has CRI-O list its images, and returns how long that took.
func list(ctx context.Context, node *cluster.Node) (*runtimeapi.ListImagesResponse, time.Duration, error) {
	cri, err := node.CRI()
	if err != nil {
		return nil, 0, err
	}
	begin := time.Now()
	answer, err := cri.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	return answer, time.Since(begin), err
}

// start starts a flavour in place of the CRI-O that runs, and lists its images for the first time.
func start(ctx context.Context, node *cluster.Node, flavour cluster.Flavour, binary string, args ...string) (*runtimeapi.ListImagesResponse, time.Duration, error) {
	err := node.Runtime().Restart(ctx, func(s *cluster.Component) {
		s.Flavour, s.Binary, s.Args = flavour, binary, args
	})
	if err != nil {
		return nil, 0, err
	}
	return list(ctx, node)
}

// takeTurns starts both flavours so many times, and returns how long their first lists and pulls took. They take
// turns from one start to the next: for a minute, a machine can take half as long again for the thousands of small
// files that a first list reads, or for what a pull writes. round decides which is first.
func takeTurns(ctx context.Context, node *cluster.Node, binaries map[cluster.Flavour]string, pushed pushed, starts, round int) (map[cluster.Flavour]*Measurement, error) {
	turns := map[cluster.Flavour]*Measurement{cluster.Stock: {}, cluster.Patched: {}}
	for i := range starts {
		for _, flavour := range order(round + i) {
			if err := turns[flavour].turn(ctx, node, flavour, binaries[flavour], pushed); err != nil {
				return nil, fmt.Errorf("%s CRI-O: %w", flavour, err)
			}
		}
	}
	return turns, nil
}

// turn adds a first list, a pull, and one of several images at once.
func (m *Measurement) turn(ctx context.Context, node *cluster.Node, flavour cluster.Flavour, binary string, pushed pushed) error {
	_, took, err := start(ctx, node, flavour, binary)
	if err != nil {
		return err
	}
	m.FirstLists = append(m.FirstLists, took)
	cri, err := node.CRI()
	if err != nil {
		return err
	}
	if err := store.Remove(ctx, cri, pushed.large); err != nil {
		return err
	}
	// Pending disk writes must not slow down the next pull.
	unix.Sync()
	begin := time.Now()
	if err := store.Pull(ctx, cri, pushed.large); err != nil {
		return err
	}
	m.Pulls = append(m.Pulls, time.Since(begin))
	apart, err := pullAtOnce(ctx, node, cri, pushed.apart)
	m.Apart = append(m.Apart, apart)
	return err
}

func measure(ctx context.Context, node *cluster.Node, flavour cluster.Flavour, binary string, pushed pushed, config Config, number int) (*Measurement, error) {
	var profile []string
	if config.ProfileDir != "" {
		profile = []string{"--profile-cpu", filepath.Join(config.ProfileDir, fmt.Sprintf("%02d-%s.pprof", number, flavour))}
	}
	first, _, err := start(ctx, node, flavour, binary, profile...)
	if err != nil {
		return nil, err
	}
	cri, err := node.CRI()
	if err != nil {
		return nil, err
	}
	m := &Measurement{Flavour: flavour}
	m.Bytes = proto.Size(first)
	for _, image := range first.GetImages() {
		for key := range image.GetSpec().GetAnnotations() {
			if strings.HasPrefix(key, imagelayers.Prefix) {
				m.Layers++
			}
		}
	}

	pid := node.Runtime().PID()
	before, err := process.Host.CPU(pid)
	if err != nil {
		return nil, err
	}
	for i := range config.Lists {
		if i+1 == listsBeforeRSS { // with the first one
			if m.Memory, err = process.Host.Memory(pid); err != nil {
				return nil, err
			}
		}
		_, took, err := list(ctx, node)
		if err != nil {
			return nil, err
		}
		m.Lists = append(m.Lists, took)
	}
	after, err := process.Host.CPU(pid)
	if err != nil {
		return nil, err
	}
	m.ListCPU = (after - before) / time.Duration(config.Lists)

	if m.Bare, err = bareLists(ctx, first, config.Lists); err != nil {
		return nil, err
	}

	if m.Shared, err = pullAtOnce(ctx, node, cri, pushed.shared); err != nil {
		return nil, err
	}
	m.Load, err = process.Load()
	return m, err
}

// pullAtOnce pulls the images at once, and removes them.
func pullAtOnce(ctx context.Context, node *cluster.Node, cri *cluster.CRI, names []string) (PullAtOnce, error) {
	unix.Sync()
	before, err := node.Received(ctx)
	if err != nil {
		return PullAtOnce{}, err
	}
	begin := time.Now()
	group, pulls := errgroup.WithContext(ctx)
	for _, name := range names {
		group.Go(func() error { return store.Pull(pulls, cri, name) })
	}
	if err := group.Wait(); err != nil {
		return PullAtOnce{}, err
	}
	took := time.Since(begin)
	after, err := node.Received(ctx)
	if err != nil {
		return PullAtOnce{}, err
	}
	for _, name := range names {
		if err := store.Remove(ctx, cri, name); err != nil {
			return PullAtOnce{}, err
		}
	}
	return PullAtOnce{Bytes: after - before, Took: took}, nil
}

// check returns an error if the numbers do not compare what they are meant to
// compare.
func (r *Result) check() error {
	for _, m := range r.Measurements {
		switch m.Flavour {
		case cluster.Stock:
			if m.Layers != 0 {
				return fmt.Errorf("stock CRI-O reports %d layers, want none: is _build/bin/stock/crio patched?", m.Layers)
			}
		default:
			// The large image and the pause image have layers too.
			if want := r.Config.Images * r.Config.Layers; m.Layers < want {
				return fmt.Errorf("patched CRI-O reports %d layers, want at least %d: is the feature switched off?", m.Layers, want)
			}
		}
	}
	return nil
}
