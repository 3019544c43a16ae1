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

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

func (c *command) image() *cobra.Command {
	return &cobra.Command{
		Use: "image REFERENCE...", Args: cobra.MinimumNArgs(1),
		Short:             "The layers of images: on how many nodes each is, and who reports that",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
			if _, err := collect.TargetOfImages("", args); err != nil {
				return nil, err
			}
			images, cluster, err := look(ctx, r, args)
			if err != nil {
				return nil, err
			}
			if err := oneKnown(images, args, cluster.Problems); err != nil {
				return nil, err
			}
			return imagesAnswer(images, cluster), nil
		}),
	}
}

// workloads returns a command for each kind that has pods.
func (c *command) workloads() []*cobra.Command {
	commands := []*cobra.Command{c.selectsPods(&cobra.Command{
		Use: "pod [NAME]", Aliases: []string{"pods", "po"}, Args: cobra.MaximumNArgs(1),
		Short:             "The layers of the images of a pod, or of the pods with labels (-l)",
		ValidArgsFunction: c.completePods,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
			// Of many pods, only the names of their images are kept.
			var names []string
			seen := map[string]bool{}
			if err := c.pods(ctx, r, args, func(pod *v1.Pod) error {
				for _, name := range namesOf(&pod.Spec) {
					if !seen[name] {
						seen[name] = true
						names = append(names, name)
					}
				}
				return nil
			}); err != nil {
				return nil, err
			}
			return c.images(ctx, r, names)
		}),
	})}
	for _, kind := range collect.WorkloadKinds() {
		commands = append(commands, &cobra.Command{
			Use: kind + " NAME", Aliases: collect.KindAliases(kind), Args: exactly("the name of a " + kind),
			Short:             "The layers of the images of a " + kind,
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
				namespace, err := c.namespace()
				if err != nil {
					return nil, err
				}
				t, err := collect.TargetOf(ctx, r.Client, namespace, kind+"/"+args[0])
				if err != nil {
					return nil, err
				}
				return c.images(ctx, r, namesOf(&t.Pod.Spec))
			}),
		})
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
		t, err := collect.TargetOf(ctx, r.Client, namespace, "pod/"+strings.TrimPrefix(args[0], "pod/"))
		if err != nil {
			return err
		}
		return f(t.Pod)
	}
	if c.selector == "" && !c.allNamespaces {
		return fmt.Errorf("want the name of a pod, or labels with -l, or -A for all pods")
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

// images answers about the images of pods.
func (c *command) images(ctx context.Context, r *collect.Reader, names []string) (*answer, error) {
	images, cluster, err := look(ctx, r, names)
	if err != nil {
		return nil, err
	}
	return imagesAnswer(images, cluster), nil
}

// namesOf returns the names of a pod's images.
func namesOf(spec *v1.PodSpec) (names []string) {
	for _, image := range imageref.OfPod(spec) {
		names = append(names, image.Name)
	}
	return names
}

// look returns what is known of images. Without the right to read nodes, that is what
// ImageManifests say.
func look(ctx context.Context, r *collect.Reader, names []string) ([]inventory.Image, *collect.Cluster, error) {
	cluster, err := r.ReadSome(ctx, collect.Parts{Nodes: true, Pods: true, Images: true})
	if err != nil {
		return nil, nil, err
	}
	known, err := inventory.New(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	return known.Images(names), cluster, nil
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
	t := output.Answer{Columns: []output.Column{{Title: "IMAGE"}, {Title: "LAYER"}, {Title: "SIZE"}, {Title: "NODES"}, {Title: "TOLD BY"}, {Title: "PLATFORM", Wide: true}, {Title: "DIGEST", Wide: true}}}
	for i := range images {
		rows(&t, &images[i], len(cluster.Nodes), cluster.Now)
	}
	return &answer{kind: "Images", value: images, problems: cluster.Problems, table: t}
}

// rows adds an image to a table, and what to know of it below.
func rows(t *output.Answer, image *inventory.Image, nodes int, now time.Time) {
	for _, variant := range image.Variants {
		for i, layer := range variant.Layers {
			t.Rows = append(t.Rows, []string{
				image.Image, strconv.Itoa(i + 1), output.Bytes(float64(layer.Bytes)), fmt.Sprintf("%d of %d", layer.Nodes, nodes), variant.From, variant.Platform, layer.Digest,
			})
		}
	}
	t.Names = append(t.Names, image.Image)
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
			part := fmt.Sprintf("%s in %d layers", output.Bytes(float64(v.Bytes)), len(v.Layers))
			if v.Platform != "" && len(image.Variants) > 1 {
				part += " on " + v.Platform
			}
			parts = append(parts, part)
		}
		line += strings.Join(parts, ", ")
	}
	if nodes > 0 && !image.Unknown() {
		line += "; on " + holders(image.Nodes) + fmt.Sprintf(" of %d nodes", nodes)
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
	cmd := &cobra.Command{
		Use: "shared [--layers | --images IMAGE,...]", Args: cobra.ArbitraryArgs,
		Short: "The layers and bases that images on the nodes share, those that save most first",
		Long: "The bases that images on the nodes share, those that save most first; with --layers, single layers. A base is a set of layers that the same images have.\n\n" +
			"With --images A B ..., how many bytes each two of these images have in common.",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringSliceVar(&images, "images", nil, "images to compare: --images A B C, or A,B,C")
	cmd.Flags().BoolVar(&single, "layers", false, "a table of single layers instead of bases")
	cmd.MarkFlagsMutuallyExclusive("layers", "images")
	cmd.Flags().IntVar(&rows, "limit", 20, "at most so many rows in a table; 0 for all")
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
		switch all := len(table.Rows); {
		case all == 0:
			table.Above = []string{"No layer on the nodes is in more than one image."}
		case rows > 0 && all > rows:
			table.Rows = table.Rows[:rows]
			table.Below = []string{fmt.Sprintf("%d more: --limit 0 shows them", all-rows)}
		}
		return &answer{kind: "Shared", value: shared, problems: cluster.Problems, table: table}, nil
	})
	return cmd
}

func basesTable(bases []inventory.Base) output.Answer {
	t := output.Answer{Columns: []output.Column{{Title: "BASE"}, {Title: "LAYERS"}, {Title: "SIZE"}, {Title: "IMAGES"}, {Title: "NODES"}, {Title: "SAVES"}, {Title: "IMAGES AMONG OTHERS", Wide: true}}}
	for _, base := range bases {
		t.Names = append(t.Names, base.Digests...)
		t.Rows = append(t.Rows, []string{
			short(base.Digests[0]), strconv.Itoa(len(base.Digests)), output.Bytes(float64(base.Bytes)), strconv.Itoa(base.Images), strconv.Itoa(base.Nodes), output.Bytes(float64(base.SavedBytes)),
			strings.Join(base.Names, " "),
		})
	}
	return t
}

func layersTable(layers []inventory.SharedLayer) output.Answer {
	t := output.Answer{Columns: []output.Column{{Title: "LAYER"}, {Title: "SIZE"}, {Title: "IMAGES"}, {Title: "NODES"}, {Title: "SAVES"}, {Title: "DIGEST", Wide: true}}}
	for _, l := range layers {
		t.Names = append(t.Names, l.Digest)
		t.Rows = append(t.Rows, []string{short(l.Digest), output.Bytes(float64(l.Bytes)), strconv.Itoa(l.Images), strconv.Itoa(l.Nodes), output.Bytes(float64(l.SavedBytes)), l.Digest})
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
	t := output.Answer{Columns: []output.Column{{Title: "IMAGE"}}, Names: m.Images}
	for i, image := range m.Images {
		t.Columns = append(t.Columns, output.Column{Title: fmt.Sprintf("[%d]", i+1)})
		row := []string{fmt.Sprintf("[%d] %s", i+1, image)}
		for _, bytes := range m.CommonBytes[i] {
			row = append(row, output.Bytes(float64(bytes)))
		}
		t.Rows = append(t.Rows, row)
		if !m.Known[i] {
			t.Below = append(t.Below, fmt.Sprintf("%s: its layers are not known", image))
		}
	}
	return &answer{kind: "Matrix", value: m, problems: cluster.Problems, table: t}
}
