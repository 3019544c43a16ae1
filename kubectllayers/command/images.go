package command

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/completion"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/terminal"
)

var imageColumns = []output.Column{
	{Title: "IMAGE", Means: "the reference"},
	{Title: "LAYER", Means: "its place, 1 is the base; sorted by digest if only a node reports it"},
	{Title: "SIZE", Means: "compressed bytes"},
	{Title: "NODES", Means: "how many hold the layer, of all"},
	{Title: "KNOWN FROM", Means: "ImageManifest (a registry's manifest) or nodes"},
	{Title: "PLATFORM", Wide: true, Means: "for which the image is, as os/architecture"},
	{Title: "DIGEST", Wide: true, Means: "of the layer"},
}

func (c *command) image() *cobra.Command {
	return c.prints(c.selectsPods(&cobra.Command{
		Use:   "image REFERENCE... | KIND/NAME... | -l LABELS | -A",
		Short: "The layers of images, or of those of pods and workloads: on how many nodes each is",
		Long: help("The layers of images: on how many nodes each is, and from where they are known. KIND/NAME stands for the images of a pod, or of an object of any kind that has pod templates; -l and -A for those of several pods. Which nodes have most of an image: plan --image.\n\n"+
			"A reference such as pod/web that is also KIND/NAME is meant with docker.io/ before it.", imageColumns),
		Example:           "  kubectl layers image quay.io/team/app:v2\n  kubectl layers image deployment/web\n  kubectl layers image -l app=web\n  kubectl layers image quay.io/team/app:v2 -o jsonpath='{.answer[*].variants[*].bytes}'",
		ValidArgsFunction: c.completeWorkloads(),
		RunE:              c.answers(c.images),
	}))
}

// completeWorkloads completes KIND/NAME of pods and workloads.
func (c *command) completeWorkloads() func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return completion.PodResourceNameCompletionFunc(c.factory)
}

// images answers about the images that references, workloads and pods have.
func (c *command) images(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
	var names, references []string
	add := func(pod *v1.Pod) error {
		for _, image := range imageref.OfPod(&pod.Spec) {
			if !slices.Contains(names, image.Name) { // of many pods, only these are kept
				names = append(names, image.Name)
			}
		}
		return nil
	}
	if len(args) > 0 && (c.selector != "" || c.allNamespaces) {
		return nil, fmt.Errorf("names, or -l and -A: not both")
	}
	for _, arg := range args {
		if !collect.IsObject(c.config, arg) {
			references, names = append(references, arg), append(names, arg)
			continue
		}
		namespace, err := c.namespace()
		if err != nil {
			return nil, err
		}
		t, err := collect.TargetOf(c.config, namespace, arg, "")
		if err != nil {
			return nil, err
		}
		_ = add(t.Pod)
	}
	if _, err := collect.TargetOfImages("", references); err != nil {
		return nil, err
	}
	if len(args) == 0 {
		if err := c.pods(ctx, r, nil, add); err != nil {
			return nil, err
		}
	}
	cluster, err := r.ReadSome(ctx, collect.Parts{Nodes: true, Pods: true, Images: true})
	if err != nil {
		return nil, err
	}
	known, err := inventory.New(ctx, cluster)
	if err != nil {
		return nil, err
	}
	images := known.Images(names)
	if len(references) == len(args) && len(args) > 0 {
		if err := oneKnown(images, references, cluster.Problems); err != nil {
			return nil, err
		}
	}
	return imagesAnswer(images, cluster), nil
}

// oldKinds are commands of earlier builds: what image KIND/NAME is now.
var oldKinds = map[string][]string{
	"pod": {"pods", "po"}, "deployment": {"deployments", "deploy"}, "statefulset": {"statefulsets", "sts"}, "daemonset": {"daemonsets", "ds"},
	"replicaset": {"replicasets", "rs"}, "job": {"jobs"}, "cronjob": {"cronjobs", "cj"},
}

// oldForms returns these commands. They go with the next release.
func (c *command) oldForms() (commands []*cobra.Command) {
	for kind, aliases := range oldKinds {
		old := c.image()
		run := old.RunE
		old.Use, old.Aliases, old.Hidden, old.Args = kind+" NAME", aliases, true, cobra.MaximumNArgs(1)
		old.Short = "What image " + kind + "/NAME is now; goes with the next release"
		old.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				args = []string{kind + "/" + strings.TrimPrefix(args[0], kind+"/")}
			}
			cmd.PrintErrf("note: %s goes with the next release: write kubectl layers image %s\n", cmd.CommandPath(), terminal.Line(strings.Join(args, ""), 300))
			return run(cmd, args)
		}
		commands = append(commands, old)
	}
	return commands
}

// pods calls f with the pod of a name, or with those of the flags -l and -A.
func (c *command) pods(ctx context.Context, r *collect.Reader, args []string, f func(*v1.Pod) error) error {
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	if len(args) == 1 {
		if c.selector != "" || c.allNamespaces {
			return fmt.Errorf("a name, or -l and -A: not both")
		}
		t, err := collect.TargetOf(c.config, namespace, "pod/"+strings.TrimPrefix(args[0], "pod/"), "")
		if err != nil {
			return err
		}
		return f(t.Pod)
	}
	if c.selector == "" && !c.allNamespaces {
		return fmt.Errorf("want a name, or the labels of pods with -l, or -A for all pods")
	}
	if _, err := c.selects(); err != nil {
		return err
	}
	where := "namespace " + namespace
	if c.allNamespaces {
		namespace, where = metav1.NamespaceAll, "all namespaces"
	}
	found := false
	err = r.PodsWith(ctx, namespace, c.selector, func(pod *v1.Pod) error {
		found = true
		return f(pod)
	})
	if err == nil && !found {
		return fmt.Errorf("no pods in %s with the labels %q: see kubectl get pods -A --show-labels", where, c.selector)
	}
	return err
}

// whereFrom is how images become known.
const whereFrom = "check the name, or have layer-resolver ask its registry (docs/resolver-install.md)"

// oneKnown fails if nothing is known of any of the images with these names, which are valid
// references. problems are what could not be read.
func oneKnown(images []inventory.Image, names []string, problems []*collect.Problem) error {
	switch {
	case slices.ContainsFunc(images, func(i inventory.Image) bool { return !i.Unknown() }):
		return nil
	case len(problems) > 0:
		return fmt.Errorf("nothing is known of %s, and not everything could be looked at: %w", some(names), problems[0])
	}
	return fmt.Errorf("nothing is known of %s: no node has it, and no ImageManifest names it: %s", some(names), whereFrom)
}

func imagesAnswer(images []inventory.Image, cluster *collect.Cluster) *answer {
	t := output.Answer{Columns: imageColumns}
	for i := range images {
		rows(&t, &images[i], len(cluster.Nodes), cluster.Now)
	}
	return &answer{kind: "Images", value: images, problems: cluster.Problems, table: t}
}

// rows adds an image to a table, and what to know of it below.
func rows(t *output.Answer, image *inventory.Image, nodes int, now time.Time) {
	for _, variant := range image.Variants {
		for i, layer := range variant.Layers {
			t.Rows = append(t.Rows, output.Row{Object: layer, Name: image.Image, Cells: []string{
				image.Image, strconv.Itoa(i + 1), output.Bytes(float64(layer.Bytes)), fmt.Sprintf("%d of %d", layer.Nodes, nodes), variant.From, variant.Platform, layer.Digest,
			}})
		}
	}
	if len(image.Variants) == 0 {
		t.Rows = append(t.Rows, output.Row{Object: image, Name: image.Image, Cells: append([]string{image.Image}, make([]string, len(imageColumns)-1)...)})
	}
	line := image.Image + ": "
	switch {
	case len(image.Names) == 0:
		line += "this is no valid reference"
	case image.Unknown() && nodes > 0:
		line += "nothing is known of it: " + whereFrom
	case len(image.Variants) == 0:
		line += "its layers are not known"
	default:
		var parts []string
		for _, v := range image.Variants {
			part := fmt.Sprintf("%s in %s", output.Bytes(float64(v.Bytes)), output.Count(len(v.Layers), "layer"))
			if v.Platform != "" && len(image.Variants) > 1 {
				part += " on " + v.Platform
			}
			parts = append(parts, part)
		}
		line += strings.Join(parts, ", ")
	}
	if nodes > 0 && !image.Unknown() {
		line += "; on " + holders(image.Nodes) + " of " + output.Count(nodes, "node")
	}
	t.Below = append(t.Below, line)
	for _, o := range image.Objects {
		switch {
		case o.Reason != "":
			t.Below = append(t.Below, fmt.Sprintf("  ImageManifest %s: %s: %s", o.Name, o.Reason, o.Message))
		case !o.Confirmed.IsZero():
			t.Below = append(t.Below, fmt.Sprintf("  ImageManifest %s: the registry confirmed it %s ago", o.Name, output.Age(o.Confirmed, now)))
		}
	}
}

func holders(by map[locality.Provenance]int) string {
	sum := 0
	var parts []string
	for evidence, n := range by {
		sum += n
		parts = append(parts, fmt.Sprintf("%d by %s", n, evidence))
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", sum, strings.Join(parts, ", "))
}

func (c *command) shared() *cobra.Command {
	var images []string
	var rows int
	var single bool
	cmd := c.prints(&cobra.Command{
		Use: "shared [--layers | --images IMAGE,...]", Args: cobra.ArbitraryArgs,
		Short: "The layers and bases that images on the nodes share, those that save most first",
		Long: help("The bases that images on the nodes share, those that save most first; with --layers, single layers. A base is a set of layers that the same images have.\n\n"+
			"With --images A B ..., how many bytes each two of these images have in common: [1] is the first one.", baseColumns),
		Example:           "  kubectl layers shared\n  kubectl layers shared --layers --limit 5\n  kubectl layers shared --images quay.io/team/app:v1 quay.io/team/app:v2",
		ValidArgsFunction: cobra.NoFileCompletions,
	})
	cmd.Flags().StringSliceVar(&images, "images", nil, "images to compare: --images A B C, or A,B,C")
	cmd.Flags().BoolVar(&single, "layers", false, "a table of single layers instead of bases")
	cmd.MarkFlagsMutuallyExclusive("layers", "images")
	cmd.Flags().IntVar(&rows, "limit", 20, "at most so many rows in a table with headers; 0 for all")
	cmd.RunE = c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
		if len(images) == 0 && len(args) > 0 {
			return nil, fmt.Errorf("to compare images, put --images before them")
		}
		images = append(images, args...)
		if len(images) == 1 || len(images) > 50 {
			return nil, fmt.Errorf("--images: want 2 to 50 images, not %d", len(images))
		}
		if _, err := collect.TargetOfImages("", images); err != nil {
			return nil, err
		}
		if len(images) > 0 {
			return compare(ctx, r, images)
		}
		known, cluster, err := inventoryOf(ctx, r, collect.Parts{Nodes: true, Images: true})
		if err != nil {
			return nil, err
		}
		shared := known.Shared()
		table := basesTable(shared.Bases)
		if single {
			table = layersTable(shared.Layers)
		}
		table.Most, table.All = rows, "--limit 0"
		if len(table.Rows) == 0 {
			table.Above = []string{"No layer on the nodes is in more than one image."}
		}
		return &answer{kind: "Shared", value: shared, problems: cluster.Problems, table: table}, nil
	})
	return cmd
}

var baseColumns = []output.Column{
	{Title: "BASE", Means: "digest of one of its layers; with --layers LAYER, that of the layer"},
	{Title: "LAYERS", Means: "how many it has"},
	{Title: "SIZE", Means: "compressed bytes of them"},
	{Title: "IMAGES", Means: "how many have it"},
	{Title: "NODES", Means: "on how many its rarest layer is"},
	{Title: "SAVES", Means: "how much more these images would take if each had its own"},
	{Title: "AMONG OTHERS", Wide: true, Means: "some of the images"},
}

var layerColumns = []output.Column{{Title: "LAYER"}, {Title: "SIZE"}, {Title: "IMAGES"}, {Title: "NODES"}, {Title: "SAVES"}, {Title: "DIGEST", Wide: true}}

func basesTable(bases []inventory.Base) output.Answer {
	t := output.Answer{Columns: baseColumns}
	for _, base := range bases {
		t.Rows = append(t.Rows, output.Row{Object: base, Name: base.Digests[0], Cells: []string{
			short(base.Digests[0]), strconv.Itoa(len(base.Digests)), output.Bytes(float64(base.Bytes)), strconv.Itoa(base.Images), strconv.Itoa(base.Nodes), output.Bytes(float64(base.SavedBytes)),
			strings.Join(base.Names, " "),
		}})
	}
	return t
}

func layersTable(layers []inventory.SharedLayer) output.Answer {
	t := output.Answer{Columns: layerColumns}
	for _, l := range layers {
		t.Rows = append(t.Rows, output.Row{Object: l, Name: l.Digest, Cells: []string{short(l.Digest), output.Bytes(float64(l.Bytes)), strconv.Itoa(l.Images), strconv.Itoa(l.Nodes), output.Bytes(float64(l.SavedBytes)), l.Digest}})
	}
	return t
}

// compare returns what images have in common. Without the right to read nodes, that is what ImageManifests
// have.
func compare(ctx context.Context, r *collect.Reader, images []string) (*answer, error) {
	cluster, err := r.ReadSome(ctx, collect.Parts{Nodes: true, Images: true})
	if err != nil {
		return nil, err
	}
	known, err := inventory.New(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if err := oneKnown(known.Images(images), images, cluster.Problems); err != nil {
		return nil, err
	}
	return matrix(known.Common(images), cluster), nil
}

func matrix(m inventory.Matrix, cluster *collect.Cluster) *answer {
	t := output.Answer{Columns: []output.Column{{Title: "IMAGE"}}}
	for i, image := range m.Images {
		t.Columns = append(t.Columns, output.Column{Title: fmt.Sprintf("[%d]", i+1)})
		row := []string{fmt.Sprintf("[%d] %s", i+1, image)}
		for _, bytes := range m.CommonBytes[i] {
			row = append(row, output.Bytes(float64(bytes)))
		}
		t.Rows = append(t.Rows, output.Row{Name: image, Cells: row, Object: map[string]any{"image": image, "known": m.Known[i], "commonBytes": m.CommonBytes[i]}})
		if !m.Known[i] {
			t.Below = append(t.Below, fmt.Sprintf("%s: its layers are not known", image))
		}
	}
	return &answer{kind: "Matrix", value: m, problems: cluster.Problems, table: t}
}
