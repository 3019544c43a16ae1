package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/terminal"
)

var planColumns = []output.Column{
	{Title: "NODE", Means: "name of the node; dim if the pod does not fit there"},
	{Title: "TO PULL", Means: "compressed bytes that the node lacks and nobody pulls yet"},
	{Title: "PRESENT", Means: "what it has of the pod's images"},
	{Title: "ARRIVING", Means: "what of its images pods bring that were placed there"},
	{Title: "ALL", Means: "what the pod's images have for this node's platform"},
	{Title: "PULL TIME", Means: "of TO PULL alone on the link, with --bandwidth"},
	{Title: "DOES NOT FIT", Prose: true, Means: "why: cordoned, taints, selector or node affinity, too little of what it requests. Other filters (volumes, affinity of pods, topology) are not looked at"},
	{Title: "QUEUE", Wide: true, Means: "what the node still has to pull for all pods, before these images"},
}

// best is how many nodes plan shows without --all.
const best = 10

func (c *command) plan() *cobra.Command {
	var of source
	var bandwidth string
	var all bool
	cmd := c.prints(c.watches(c.selectsNodes(&cobra.Command{
		Use: "plan POD | KIND/NAME | -f FILE | --image IMAGE", Args: cobra.MaximumNArgs(1),
		Short: "What each node would have to pull for a pod, the best first",
		Long: help("What each node would have to pull for a pod: of a name, of a workload, in a file, or made of images. A table has the first ten nodes; --all, --no-headers and other forms have all.\n\n"+
			"The scheduler rates the nodes, with its arguments and its memory. If it cannot be asked, this program does so as the scheduler would with default arguments, and a line states that.", planColumns),
		Example:           "  kubectl layers plan web-0\n  kubectl layers plan deployment/web --bandwidth 100M\n  kubectl layers plan -f web.yaml --all\n  kubectl get jobset train -o yaml | kubectl layers plan -f - --pod-template workers\n  kubectl layers plan --image quay.io/team/app:v2",
		ValidArgsFunction: c.completeWorkloads(),
	})))
	of.flags(cmd, c.output)
	cmd.Flags().StringVar(&bandwidth, "bandwidth", "", "bits a second that a node's link has, such as 100M or 1Gbit: shows seconds")
	cmd.Flags().BoolVar(&all, "all", false, "a row for each node, not for the first ten")
	cmd.RunE = c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
		bits, err := parseBandwidth(bandwidth)
		if err != nil {
			return nil, err
		}
		if _, err := c.selects(); err != nil {
			return nil, err
		}
		t, err := c.target(args, &of)
		if err != nil {
			return nil, err
		}
		ended := plan.Ended(t.Pod)
		p, problems, err := c.rated(ctx, r, t)
		if err != nil {
			return nil, err
		}
		p.At(bits)
		if c.selector != "" {
			uids, problem := r.NodeUIDs(ctx, c.selector)
			if problem != nil {
				return nil, problem
			}
			p.Nodes = slices.DeleteFunc(p.Nodes, func(n plan.Node) bool { return uids[n.Node] == "" })
			if len(p.Nodes) == 0 {
				return nil, c.noNode()
			}
		}
		mean, fit := p.Mean()
		table := planTable(p)
		if !all {
			table.Most, table.All = best, "--all"
		}
		table.Below = append(table.Below, fmt.Sprintf("%s fits on %d of %s, which lack %s on average.", p.Of, fit, output.Count(len(p.Nodes), "node"), output.Bytes(mean)))
		if p.RatedBy != "" {
			table.Below = append(table.Below, fmt.Sprintf("Rated by the scheduler (%s).", p.RatedBy))
		} else {
			table.Below = append(table.Below, fmt.Sprintf("Rated by this program with default arguments, because the scheduler was not asked: %s.", p.NotAsked))
		}
		switch {
		case ended != "":
			table.Below = append(table.Below, fmt.Sprintf("It has ended (%s): this is for another one like it. kubectl layers why %s shows how it was.", ended, t.Name))
		case t.Pod.Spec.NodeName != "":
			table.Below = append(table.Below, fmt.Sprintf("It is on %s already: what it brought there counts. kubectl layers why %s shows how it was before.", terminal.Line(t.Pod.Spec.NodeName, 253), t.Name))
		}
		return &answer{kind: "Plan", value: p, problems: problems, table: table}, nil
	})
	return cmd
}

// noNode returns that the flag -l selects nothing.
func (c *command) noNode() error {
	return fmt.Errorf("no node has the labels %q: see kubectl get nodes --show-labels", terminal.Line(c.selector, 200))
}

// rated has the scheduler rate nodes for a pod, or else rates them by what is read now.
func (c *command) rated(ctx context.Context, r *collect.Reader, t *collect.Target) (*plan.Plan, []*collect.Problem, error) {
	if plan.Ended(t.Pod) != "" {
		t.Pod.Spec.NodeName = "" // it has left its node
	}
	scheduler, err := c.openScheduler(ctx, r)
	if err == nil {
		defer scheduler.Close()
		var p *plan.Plan
		if p, err = plan.Asked(ctx, scheduler, t); err == nil {
			return p, nil, nil
		}
	}
	cluster, problem := r.Read(ctx, collect.Parts{Nodes: true, Pods: true, Images: true, For: []*v1.Pod{t.Pod}})
	if problem != nil {
		return nil, nil, problem
	}
	p, unrated := plan.Of(ctx, cluster, t)
	if unrated != nil {
		return nil, nil, unrated
	}
	p.NotAsked = err.Error()
	return p, cluster.Problems, nil
}

// source is what names the pod of plan and imagelocality, besides an argument.
type source struct {
	files    resource.FilenameOptions
	template string
	images   []string
	// read is what the files have. They are read once: one may be standard input.
	read *collect.Target
}

// flags adds the flags to a command.
func (s *source) flags(cmd *cobra.Command, forms *output.Flags) {
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if s.template != "" {
			return
		}
		if s.template = forms.TakeTemplate(); s.template != "" {
			cmd.PrintErrf("note: --template names a pod template here: write --pod-template %s, for this goes with the next release; for a Go template, add -o go-template\n", terminal.Line(s.template, 100))
		}
	}
	cmdutil.AddFilenameOptionFlags(cmd, &s.files, "that have a pod, or an object of any kind with pod templates")
	cmd.Flags().StringVar(&s.template, "pod-template", "", "name or path of the pod template, if an object has several, such as workers or spec.replicatedJobs[1].template.spec.template")
	cmd.Flags().StringSliceVar(&s.images, "image", nil, "image of a pod that does not exist; several make one pod")
}

// target returns what the arguments of plan stand for.
func (c *command) target(args []string, of *source) (*collect.Target, error) {
	namespace, err := c.namespace()
	if err != nil {
		return nil, err
	}
	name, inFile := strings.Join(args, ""), !cmdutil.IsFilenameSliceEmpty(of.files.Filenames, of.files.Kustomize)
	switch {
	case inFile && len(of.images) > 0, len(of.images) > 0 && name != "", !inFile && len(of.images) == 0 && name == "":
		return nil, fmt.Errorf("want one of POD or KIND/NAME, -f FILE, and --image IMAGE: see kubectl layers plan --help")
	case len(of.images) > 0:
		return collect.TargetOfImages(namespace, of.images)
	case inFile:
		if of.read == nil {
			of.read, err = collect.TargetInFile(c.config, &of.files, namespace, name, of.template)
		}
		return of.read, err
	}
	return collect.TargetOf(c.config, namespace, name, of.template)
}

func planTable(p *plan.Plan) output.Answer {
	t := output.Answer{Columns: planColumns}
	if p.BitsPerSecond == 0 {
		t.Columns = slices.DeleteFunc(slices.Clone(planColumns), func(c output.Column) bool { return c.Title == "PULL TIME" })
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		cells := []string{n.Node, output.Bytes(float64(n.MissingBytes)), output.Bytes(float64(n.PresentBytes)), output.Bytes(float64(n.ArrivingBytes + n.CrowdedBytes)), output.Bytes(float64(n.TotalBytes))}
		if n.Seconds != nil {
			cells = append(cells, output.Seconds(*n.Seconds))
		}
		cells = append(cells, strings.Join(n.RuledOut, "; "), output.Bytes(float64(n.PendingBytes)))
		t.Rows = append(t.Rows, output.Row{Object: n, Name: "node/" + n.Node, Dim: len(n.RuledOut) > 0, Cells: cells})
	}
	for _, image := range p.Images {
		switch image.Known {
		case "layers":
		case "name":
			t.Below = append(t.Below, fmt.Sprintf("%s is known by name only: its size is an estimate, and shared layers do not count.", image.Image))
		default:
			t.Below = append(t.Below, fmt.Sprintf("%s is not known (%s), so it does not count: layer-resolver asks registries for images that workloads name.", image.Image, image.Known))
		}
	}
	return t
}

func (c *command) imageLocality() *cobra.Command {
	var of source
	columns := []output.Column{{Title: "NODE", Means: "name of the node"}, {Title: "POINTS", Means: "0 to 100, before the weight of the plugin"}, {Title: "WHY", Prose: true, Means: "the calculation"}}
	cmd := c.prints(c.selectsNodes(&cobra.Command{
		Use: "imagelocality POD | KIND/NAME | -f FILE | --image IMAGE", Args: cobra.MaximumNArgs(1),
		Short:             "What kube-scheduler's own ImageLocality gives each node for a pod, and why",
		Long:              help("What kube-scheduler's own plugin ImageLocality gives each node for a pod, and why that is 0 so often.", columns),
		Example:           "  kubectl layers imagelocality deployment/web\n  kubectl layers imagelocality --image quay.io/team/app:v2",
		ValidArgsFunction: c.completeWorkloads(),
	}))
	of.flags(cmd, c.output)
	cmd.RunE = c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
		t, err := c.target(args, &of)
		if err != nil {
			return nil, err
		}
		nodes, err := r.NodeNames(ctx)
		if err != nil {
			return nil, err
		}
		selects, err := c.selects()
		if err != nil {
			return nil, err
		}
		values := []points{}
		table := output.Answer{Columns: columns}
		for i, rating := range plan.ImageLocality(&t.Pod.Spec, nodes) {
			if !selects(nodes[i].Labels) {
				continue
			}
			v := points{Node: rating.Node, Points: rating.Points, Renamed: rating.Renamed, Why: terminal.Line(rating.Why, 1000)}
			values = append(values, v)
			table.Rows = append(table.Rows, output.Row{Object: v, Name: "node/" + v.Node, Cells: []string{v.Node, fmt.Sprint(v.Points), v.Why}})
		}
		if len(values) == 0 && c.selector != "" {
			return nil, c.noNode()
		}
		return &answer{kind: "ImageLocality", value: values, table: table}, nil
	})
	return cmd
}

// points are those of ImageLocality.
type points struct {
	Node string `json:"node"`
	// Points before the weight of the plugin, 0 to 100; Renamed if the node had the images under
	// the names in the pod.
	Points  int64  `json:"points"`
	Renamed int64  `json:"renamed"`
	Why     string `json:"why"`
}
