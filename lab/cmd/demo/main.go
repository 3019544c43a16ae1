// Command demo shows on a real cluster what this project does: it follows the
// layers of images from the registry's manifest through CRI-O and the kubelet to
// the Node objects that schedulers see, and runs a scheduler that uses them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var logDir, binDir string
	var stock, agent bool
	command := &cobra.Command{
		Use:   "demo",
		Short: "Show image layers from the registry to the scheduler on a real three-node cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if agent {
				return runAgent(cmd.Context(), logDir, binDir)
			}
			if stock {
				return run(cmd.Context(), logDir, binDir, ofStock)
			}
			return run(cmd.Context(), logDir, binDir, ofPatched)
		},
	}
	command.Flags().StringVar(&logDir, "log-dir", "_out/demo/log", "folder for the log files, which stay")
	command.Flags().StringVar(&binDir, "bin-dir", "", "folder that holds stock, patched, tools and lab (default: _build/bin of this repository)")
	command.Flags().BoolVar(&stock, "stock", false, "replace nothing: CRI-O, kubelet and control plane are stock, only scheduler and resolver are ours")
	command.Flags().BoolVar(&agent, "agent", false, "replace nothing, on nodes with containerd and CRI-O: layer-agent reports what they hold, and our scheduler is a Deployment")
	command.MarkFlagsMutuallyExclusive("stock", "agent")
	code := terminal.Run(ctx, command)
	stop()
	if code != 0 {
		fmt.Fprintf(terminal.Stderr, "demo: FAILED: the logs of all components are in %s\n", logDir)
	}
	os.Exit(code)
}

// say prints a step with the time since the start.
var say = func() func(string, ...any) {
	begin := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(terminal.Stdout, "%5.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
}()

// edition is what differs between the demos.
type edition struct {
	// intro is printed first, nodes describes them, summary is what was shown.
	intro, nodes, summary string
	// flavour is that of three nodes, state shows the objects from which the scheduler has what they hold.
	flavour cluster.Flavour
	state   func(ctx context.Context, lab *scenario.Lab, placements []placement, shared []v1.Descriptor) error
}

var (
	ofPatched = edition{
		flavour: cluster.Patched,
		intro: `Layers of two images on their way from CRI-O to the Node objects; then where LayerLocality and stock, the
plugins that Kubernetes has by default, send a third pod, and pods with images that no node has pulled. A score
is 0 to 100: 100 is a node with nothing to pull and no more load than the others. Links have %d Mbit/s.`,
		nodes:   "three nodes, each with its own patched CRI-O and kubelet",
		summary: "Node objects state layers, and pods start where layers are, even of images that no node has pulled",
		state:   stateLayers,
	}
	ofStock = edition{
		flavour: cluster.Stock,
		intro: `Everything is stock but kube-scheduler and layer-resolver. The nodes name images by digest, and ImageManifests
have their layers; then where LayerLocality and stock, the plugins that Kubernetes has by default, send a third
pod, and pods with images that no node has pulled. A score is 0 to 100: 100 is a node with nothing to pull and
no more load than the others. Links have %d Mbit/s.`,
		nodes:   "three nodes with stock CRI-O and kubelet, and a stock control plane",
		summary: "nothing was replaced, and pods start where layers are, even of images that no node has pulled",
		state:   stateNames,
	}
)

func run(ctx context.Context, logDir, binDir string, e edition) error {
	scheduler := scenario.Schedulers()
	scheduler.Flavour = cluster.Patched
	return e.play(ctx, cluster.Config{
		LogDir:    logDir,
		BinDir:    binDir,
		Flavour:   e.flavour,
		Lab:       true,
		Scheduler: scheduler,
		Addons:    []cluster.Addon{addons.Resolver(cluster.Component{})},
	}, func(lab *scenario.Lab) error { return show(ctx, lab, e) })
}

// play removes the logs of an earlier run, starts a cluster, calls f, removes the cluster, and prints
// what was shown if all of that went well.
func (e *edition) play(ctx context.Context, config cluster.Config, f func(*scenario.Lab) error) (err error) {
	if config.LogDir, err = filepath.Abs(config.LogDir); err != nil {
		return err
	}
	if err := os.RemoveAll(config.LogDir); err != nil {
		return err
	}
	fmt.Fprintf(terminal.Stdout, e.intro+"\n\n", bandwidth/1_000_000)
	say("starting %s", e.nodes)
	config.Name, config.Bandwidth = "demo", bandwidth
	config.Logf = func(format string, args ...any) {
		fmt.Fprintf(terminal.Stdout, "         cluster "+format+"\n", args...)
	}
	c, err := cluster.Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		say("removing the cluster")
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, c.Stop(cleanup))
		if err == nil {
			say("nothing is left")
			fmt.Fprintln(terminal.Stdout, "demo: ok: "+e.summary)
		}
	}()
	lab, err := scenario.NewLab(c)
	if err != nil {
		return err
	}
	return f(lab)
}

const (
	bandwidth  = 100_000_000 // bits per second, of every node
	layerBytes = 15_000_000
)

// placement is an image and the node that has it.
type placement struct {
	node  *cluster.Node
	image *images.Pushed
}

func show(ctx context.Context, lab *scenario.Lab, e edition) error {
	c := lab.Cluster
	family, err := scenario.PushFamily(ctx, c, "app", layerBytes)
	if err != nil {
		return err
	}
	for _, image := range []*images.Pushed{family.One, family.Two} {
		say("pushed %s: %s", image.Reference, describe(image.Layers))
	}
	shared := family.Shared()
	say("both images have the layers %s", describe(shared))

	cpu, err := lab.FillingCPU(ctx)
	if err != nil {
		return err
	}
	p1 := scenario.Pod{Name: "p1", Image: family.One.Reference, Scheduler: scenario.Layers, MilliCPU: cpu}
	p2 := scenario.Pod{Name: "p2", Image: family.Two.Reference, Scheduler: scenario.Layers, MilliCPU: cpu}
	if err := lab.Submit(ctx, p1, p2); err != nil {
		return err
	}
	if err := lab.Ready(ctx, p1.Name, p2.Name); err != nil {
		return err
	}
	nodes, err := lab.Placed(ctx, p1.Name, p2.Name)
	if err != nil {
		return err
	}
	placements := []placement{{c.Node(nodes[p1.Name]), family.One}, {c.Node(nodes[p2.Name]), family.Two}}
	for i, name := range []string{p1.Name, p2.Name} {
		say("pod %s fills %s, which has pulled %s", name, placements[i].node.Name, placements[i].image.Reference)
	}
	if err := e.state(ctx, lab, placements, shared); err != nil {
		return err
	}
	if err := compare(ctx, lab, family, cpu, placements[0].node, placements[1].node); err != nil {
		return err
	}
	if err := lab.Remove(ctx, p1.Name); err != nil {
		return err
	}
	return neverPulled(ctx, lab)
}

// stateLayers follows layers from CRI-O to the Node objects.
func stateLayers(ctx context.Context, lab *scenario.Lab, placements []placement, shared []v1.Descriptor) error {
	for _, p := range placements {
		if err := showCRI(ctx, p, shared); err != nil {
			return err
		}
	}
	say("our kubelets report an image when it has been pulled: waiting for the Node objects")
	for _, p := range placements {
		if err := showNode(ctx, lab.Cluster, p, shared); err != nil {
			return err
		}
	}
	return nil
}

// stateNames shows the two objects from which the scheduler has the layers on stock nodes: the
// Node names a digest, and an ImageManifest has its layers.
func stateNames(ctx context.Context, lab *scenario.Lab, placements []placement, shared []v1.Descriptor) error {
	say("stock kubelets list images every 30 s: waiting for the Node objects")
	for _, p := range placements {
		if err := showNode(ctx, lab.Cluster, p, nil); err != nil {
			return err
		}
	}
	if err := showManifests(ctx, lab, []*images.Pushed{placements[0].image, placements[1].image}); err != nil {
		return err
	}
	for _, p := range placements {
		manifest, err := lab.Manifest(ctx, p.image.Reference)
		if err != nil {
			return err
		}
		if manifest == nil {
			return fmt.Errorf("no ImageManifest has %s; see %s", p.image.Reference, lab.Cluster.Addon(addons.LayerResolver).Log())
		}
		fmt.Fprintf(terminal.Stdout, "$ kubectl get imagemanifest %.19s... -o json | jq .spec.layers\n%s\n\n", manifest.Name, mark(manifest.Spec.Layers, shared))
		err = scenario.Poll(ctx, func(ctx context.Context) error { return lab.Joined(ctx, p.image.Reference, p.node.Name) })
		if err != nil {
			return fmt.Errorf("%w; see %s", err, lab.Cluster.Scheduler().Log())
		}
		say("so %s has all layers of %s, by the scheduler's index", p.node.Name, p.image.Reference)
	}
	return nil
}

// compare submits another pod with the first image to both schedulers, once the
// pod with the second image is gone.
func compare(ctx context.Context, lab *scenario.Lab, family scenario.Family, cpu int64, first, second *cluster.Node) error {
	if err := lab.Remove(ctx, "p2"); err != nil {
		return err
	}
	say("pod p2 is deleted: %s is free and still has %s; %s is full", second.Name, describe(family.Shared()), first.Name)
	ratings, err := lab.Rate(ctx, family.One.Reference)
	if err != nil {
		return err
	}
	fmt.Fprintf(terminal.Stdout, "\nkube-scheduler# /debug/layerlocality?image=%s\n", family.One.Reference)
	printRatings(ratings)
	fmt.Fprintln(terminal.Stdout)

	ours, err := tryThird(ctx, lab, family, scenario.Layers, cpu, func(tries, _ int) bool { return tries == rounds })
	if err != nil {
		return err
	}
	if ours[second.Name].tries != rounds {
		return fmt.Errorf("%s sent pods of %s to %v and not all of them to %s; see %s",
			scenario.Layers, family.One.Reference, slices.Sorted(maps.Keys(ours)), second.Name, lab.Cluster.Scheduler().Log())
	}
	// For stock the free nodes are equal, and it takes one at random.
	var free []string
	for _, node := range lab.Cluster.Nodes() {
		if node != first {
			free = append(free, node.Name)
		}
	}
	stock, err := tryThird(ctx, lab, family, scenario.Stock, cpu, func(_, nodes int) bool { return nodes == len(free) })
	if err != nil {
		return err
	}
	printComparison(family, second.Name, free, ours, stock)
	return nil
}

// outcome is a node to which a scheduler sent the third pod, how often, and how the pod started there the last time.
type outcome struct {
	scenario.Start
	tries int
}

const (
	// rounds is how often LayerLocality is asked.
	rounds = 3
	// maxTries is how often a scheduler is asked at most. Stock has two nodes to choose from, so this many tries
	// draw both in 1 - 2/2^10 of all runs: 511 of 512.
	maxTries = 10
)

// tryThird submits a third pod to the scheduler, again and again, until enough returns true of the number of tries and
// of nodes that it was sent to, or there were maxTries. It returns the outcomes by node.
func tryThird(ctx context.Context, lab *scenario.Lab, family scenario.Family, scheduler string, cpu int64, enough func(tries, nodes int) bool) (map[string]outcome, error) {
	name := map[string]string{scenario.Layers: "LayerLocality", scenario.Stock: "stock"}[scheduler]
	drawn := map[string]outcome{}
	for try := 1; try <= maxTries && !enough(try-1, len(drawn)); try++ {
		start, err := lab.Try(ctx, scenario.Pod{
			Name: fmt.Sprintf("p3-%s-%d", scheduler, try), Image: family.One.Reference, Scheduler: scheduler, MilliCPU: cpu,
		}, family.One)
		if err != nil {
			return nil, err
		}
		say("pod p3 by %s: %s, which pulls %.1f MB in %.1f s", name, start.Node, float64(start.Bytes)/1e6, start.Pull.Seconds())
		drawn[start.Node] = outcome{Start: start, tries: drawn[start.Node].tries + 1}
	}
	return drawn, nil
}

// printRatings prints the score of each node and what it consists of.
func printRatings(ratings *scenario.Ratings) {
	for _, node := range ratings.Nodes {
		why := strings.ReplaceAll(node.Why, "; ", "\n                        ")
		fmt.Fprintf(terminal.Stdout, "  %s  score %3d of 100  %s\n", node.Node, node.Score, why)
	}
}

// printComparison prints what a third pod pulls by LayerLocality, and by stock on each of the free nodes, among
// which it draws: what is expected of stock is the mean of them, however often it drew which.
func printComparison(family scenario.Family, second string, free []string, ours, stock map[string]outcome) {
	tries := 0
	for _, drawn := range stock {
		tries += drawn.tries
	}
	megabytes := func(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
	seconds := func(pull time.Duration) string { return fmt.Sprintf("%.1f s", pull.Seconds()) }
	best := ours[second]
	rows := [][]string{
		{"third pod by", "goes to", "pulls", "in", "expected", "in this run"},
		{"LayerLocality", second, megabytes(best.Bytes), seconds(best.Pull), "always", fmt.Sprintf("%d of %d times", best.tries, rounds)},
	}
	var bytes, pull float64
	for i, node := range free {
		drawn, ok := stock[node]
		if !ok { // once in 512 runs
			drawn.Bytes = sum(family.One.Layers)
			if node == second {
				drawn.Bytes -= sum(family.Shared())
			}
			drawn.Pull = time.Duration(float64(drawn.Bytes) / bandwidth * 8 * float64(time.Second))
		}
		bytes += float64(drawn.Bytes) / float64(len(free))
		pull += drawn.Pull.Seconds() / float64(len(free))
		rows = append(rows, []string{[]string{"stock", ""}[min(i, 1)], node, megabytes(drawn.Bytes), seconds(drawn.Pull),
			fmt.Sprintf("1 time in %d", len(free)), fmt.Sprintf("%d of %d times", drawn.tries, tries)})
	}
	fmt.Fprintln(terminal.Stdout)
	printRows(rows)
	fmt.Fprintln(terminal.Stdout)
	say("on average stock pulls %.1f MB in %.1f s for it; LayerLocality saves %.1f MB (%.0f %%) and %.1f s of them",
		bytes/1e6, pull, (bytes-float64(best.Bytes))/1e6, 100*(1-float64(best.Bytes)/bytes), pull-best.Pull.Seconds())
}

// sum returns the bytes of layers together, compressed.
func sum(layers []v1.Descriptor) int64 {
	var bytes int64
	for _, layer := range layers {
		bytes += layer.Size
	}
	return bytes
}

const (
	// holder is the node that has the base of the images of neverPulled.
	holder              = "n1"
	baseBytes, ownBytes = 60_000_000, 2_000_000
	siblings            = 3
)

// neverPulled starts pods with images of which nodes have pulled only the base,
// with and without layer-resolver, and with stock.
func neverPulled(ctx context.Context, lab *scenario.Lab) error {
	base := images.Layer{Name: "base", Size: baseBytes}
	first, err := scenario.PushOnBase(ctx, lab.Cluster, "first:v1", base, ownBytes)
	if err != nil {
		return err
	}
	if err := lab.Hold(ctx, scenario.Pod{Name: "first", Image: first.Reference, Node: holder}, baseBytes); err != nil {
		return err
	}
	say("a pod has run on %s, which has pulled %s: %s", holder, first.Reference, describe(first.Layers))

	rows := [][]string{{"a pod of each of them", "runs on", "pulled", "by node"}}
	for _, way := range scenario.Ways {
		all, err := lab.NeverPulled(ctx, way, "new-"+way.Short, siblings, base, ownBytes, holder)
		if err != nil {
			return err
		}
		if way.Resolver {
			say("pushed %d images on the same base, which a Deployment without replicas names and no node has pulled", siblings)
			if err := showManifests(ctx, lab, all); err != nil {
				return err
			}
		}
		started, err := lab.Together(ctx, "new-"+way.Short, way.Scheduler, all)
		if err != nil {
			return err
		}
		say("by %s: they pull %.1f MB", way.Name, float64(started.Pulled.Total())/1e6)
		if way.Resolver && slices.ContainsFunc(started.Nodes, func(node string) bool { return node != holder }) {
			return fmt.Errorf("%s sent pods to %v and not to %s, which has the base; see %s",
				way.Scheduler, started.Nodes, holder, lab.Cluster.Scheduler().Log())
		}
		rows = append(rows, []string{way.Name, strings.Join(started.Nodes, ", "),
			fmt.Sprintf("%.1f MB", float64(started.Pulled.Total())/1e6), started.Pulled.String()})
	}
	fmt.Fprintln(terminal.Stdout)
	printRows(rows)
	fmt.Fprintln(terminal.Stdout)
	return nil
}

// showManifests prints what "kubectl get imagemanifests" prints about images.
func showManifests(ctx context.Context, lab *scenario.Lab, all []*images.Pushed) error {
	var references []string
	for _, image := range all {
		references = append(references, image.Reference)
	}
	rows, err := lab.ManifestTable(ctx, references...)
	if err != nil {
		return err
	}
	for _, row := range rows[1:] {
		row[0] = row[0][:min(len(row[0]), len("sha256-")+12)] + "..."
	}
	fmt.Fprintf(terminal.Stdout, "\n$ kubectl get imagemanifests\n")
	printRows(rows)
	fmt.Fprintln(terminal.Stdout)
	return nil
}

func printRows(rows [][]string) {
	w := tabwriter.NewWriter(terminal.Stdout, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

func describe(layers []v1.Descriptor) string {
	var text []string
	for _, layer := range layers {
		text = append(text, fmt.Sprintf("%s %.1f MB", layer.Digest.Hex[:8], float64(layer.Size)/1e6))
	}
	return strings.Join(text, ", ")
}

// criImage is the part of an image in crictl's JSON that the demo shows.
type criImage struct {
	RepoTags []string `json:"repoTags"`
	Spec     struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"spec"`
}

// showCRI prints what CRI-O reports about the image and compares it with the
// registry's manifest.
func showCRI(ctx context.Context, p placement, shared []v1.Descriptor) error {
	out, err := p.node.Exec(ctx, "crictl", "images", "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Images []criImage `json:"images"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return fmt.Errorf("%s: crictl images -o json: %w", p.node.Name, err)
	}
	i := slices.IndexFunc(list.Images, func(image criImage) bool { return slices.Contains(image.RepoTags, p.image.Reference) })
	if i < 0 {
		return fmt.Errorf("%s: crictl images does not list %s; see %s", p.node.Name, p.image.Reference, p.node.Runtime().Log())
	}
	fmt.Fprintf(terminal.Stdout, "\n%s# crictl images -o json    (%s)\n%s\n\n", p.node.Name, p.image.Reference, mark(list.Images[i], shared))
	for _, layer := range p.image.Layers {
		key, want := "imageLayer."+layer.Digest.String(), fmt.Sprint(layer.Size)
		if got := list.Images[i].Spec.Annotations[key]; got != want {
			return fmt.Errorf("%s: %s has %q for %s, the registry's manifest has %s; see %s",
				p.node.Name, p.image.Reference, got, key, want, p.node.Runtime().Log())
		}
	}
	return nil
}

// showNode waits until the Node has the image, with the given layers, and prints its entry
// of it.
func showNode(ctx context.Context, c *cluster.Cluster, p placement, shared []v1.Descriptor) error {
	const limit, tick = 90 * time.Second, 10 * time.Second
	client, err := c.Client()
	if err != nil {
		return err
	}
	begin, told := time.Now(), time.Now()
	err = poll.Until(ctx, 500*time.Millisecond, limit, func(ctx context.Context) error {
		all, err := nodeimages.Get(ctx, client, p.node.Name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(image nodeimages.Image) bool { return slices.Contains(image.Names, p.image.Reference) })
		if i >= 0 && statesAll(all[i].Layers, shared) {
			fmt.Fprintf(terminal.Stdout, "\n$ kubectl get node %s -o json | jq '.status.images[%d]'\n%s\n\n", p.node.Name, i, mark(all[i], shared))
			return nil
		}
		if time.Since(told) >= tick {
			told = time.Now()
			say("%s: not there yet after %.0f s of at most %s", p.node.Name, time.Since(begin).Seconds(), limit)
		}
		return fmt.Errorf("node %s does not state the layers %s of %s", p.node.Name, describe(shared), p.image.Reference)
	})
	if err != nil {
		return fmt.Errorf("%w; see %s", err, p.node.Kubelet().Log())
	}
	if len(shared) > 0 {
		say("%s: the layers of %s are in its Node object (those below 1 MiB are left out)", p.node.Name, p.image.Reference)
	}
	return nil
}

func statesAll(stated []nodeimages.Layer, layers []v1.Descriptor) bool {
	return !slices.ContainsFunc(layers, func(d v1.Descriptor) bool {
		return !slices.Contains(stated, nodeimages.Layer{Digest: d.Digest.String(), SizeBytes: d.Size})
	})
}

// mark prints v as JSON and points at the lines with the shared layers.
func mark(v any, shared []v1.Descriptor) string {
	out, err := json.MarshalIndent(v, "  ", "  ")
	if err != nil {
		return err.Error()
	}
	lines := strings.Split("  "+string(out), "\n")
	for i, line := range lines {
		if slices.ContainsFunc(shared, func(d v1.Descriptor) bool { return strings.Contains(line, d.Digest.String()) }) {
			lines[i] += "   <-- shared"
		}
	}
	return strings.Join(lines, "\n")
}
