package command

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/terminal"
)

func (c *command) plan() *cobra.Command {
	var of source
	var bandwidth string
	cmd := c.selectsNodes(&cobra.Command{
		Use: "plan POD | KIND/NAME | -f FILE | --image IMAGE", Args: cobra.MaximumNArgs(1),
		Short: "What each node would have to pull for a pod",
		Long: "What each node would have to pull for a pod: of a name, of a workload, in a file, or made of images. It is computed as the scheduler's plugin does, from objects read now.\n\n" +
			"Nodes that do not take pods, whose taints are not tolerated, that do not match the selector or node affinity, or have too little of what is requested, are ruled out. Other filters are not looked at.",
		Example:           "  kubectl layers plan web-0\n  kubectl layers plan deployment/web --bandwidth 100M\n  kubectl layers plan -f web.yaml\n  kubectl get jobset train -o yaml | kubectl layers plan -f - --template workers\n  kubectl layers plan --image quay.io/team/app:v2",
		ValidArgsFunction: c.completePods,
	})
	of.flags(cmd)
	cmd.Flags().StringVar(&bandwidth, "bandwidth", "", "bits a second that a node's link has, such as 100M or 1Gbit: shows seconds")
	cmd.RunE = c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
		bits, err := parseBandwidth(bandwidth)
		if err != nil {
			return nil, err
		}
		selects, err := c.selects()
		if err != nil {
			return nil, err
		}
		t, err := c.target(ctx, r, args, of)
		if err != nil {
			return nil, err
		}
		cluster, err := r.Read(ctx, collect.Parts{Nodes: true, Pods: true, Images: true})
		if err != nil {
			return nil, err
		}
		ended := plan.Ended(t.Pod)
		if ended != "" {
			t.Pod.Spec.NodeName = "" // it has left its node
		}
		p, err := plan.Of(ctx, cluster, t.String(), t.Pod, bits)
		if err != nil {
			return nil, err
		}
		mean, fit := p.Mean()
		labels := map[string]map[string]string{}
		for _, node := range cluster.Nodes {
			labels[node.Name] = node.Labels
		}
		p.Nodes = slices.DeleteFunc(p.Nodes, func(n plan.Node) bool { return !selects(labels[n.Node]) })
		table := planTable(p)
		table.Below = append(table.Below, fmt.Sprintf("%s fits on %d of %d nodes, which lack %s on average.", p.Of, fit, len(cluster.Nodes), output.Bytes(mean)))
		switch {
		case ended != "":
			table.Below = append(table.Below, fmt.Sprintf("It has ended (%s): this is for another one like it. kubectl layers why %s shows how it was.", ended, t.Name))
		case t.Pod.Spec.NodeName != "":
			table.Below = append(table.Below, fmt.Sprintf("It is on %s already: what it brought there counts. kubectl layers why %s shows how it was before.", terminal.Line(t.Pod.Spec.NodeName, 253), t.Name))
		}
		return &answer{kind: "Plan", value: p, problems: cluster.Problems, table: table}, nil
	})
	return cmd
}

// source is what names the pod of plan and imagelocality, besides an argument.
type source struct {
	file, template string
	images         []string
}

func (s *source) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.file, "filename", "f", "", "file with a pod, or an object of any kind with pod templates, - for standard input")
	cmd.Flags().StringVar(&s.template, "template", "", "name or path of the one that is meant if the object in the file has several pod templates, such as workers or spec.replicatedJobs[1].template.spec.template")
	cmd.Flags().StringSliceVar(&s.images, "image", nil, "image of a pod that does not exist; several make one pod")
}

// target returns what the arguments of plan stand for.
func (c *command) target(ctx context.Context, r *collect.Reader, args []string, of source) (*collect.Target, error) {
	namespace, err := c.namespace()
	if err != nil {
		return nil, err
	}
	name := strings.Join(args, "")
	switch {
	case of.file != "" && len(of.images) > 0, len(of.images) > 0 && name != "", of.file == "" && len(of.images) == 0 && name == "":
		return nil, fmt.Errorf("want one of POD or KIND/NAME, -f FILE, and --image IMAGE: see kubectl layers plan --help")
	case of.file == "" && of.template != "":
		return nil, fmt.Errorf("--template is for an object in a file: save it and add -f FILE")
	case len(of.images) > 0:
		return collect.TargetOfImages(namespace, of.images)
	case of.file == "-":
		return collect.TargetInFile(ctx, c.in, "standard input", namespace, name, of.template)
	case of.file != "":
		from, err := os.Open(of.file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the file: %w", err)
		}
		defer from.Close()
		return collect.TargetInFile(ctx, from, of.file, namespace, name, of.template)
	}
	return collect.TargetOf(ctx, r.Client, namespace, name)
}

func planTable(p *plan.Plan) output.Answer {
	t := output.Answer{Columns: []output.Column{{Title: "NODE"}, {Title: "MISSING"}, {Title: "PRESENT"}, {Title: "ARRIVING"}, {Title: "TOTAL"}}}
	if p.BitsPerSecond > 0 {
		t.Columns = append(t.Columns, output.Column{Title: "TIME"})
	}
	t.Columns = append(t.Columns, output.Column{Title: "RULED OUT"}, output.Column{Title: "LINK HAS TO PULL", Wide: true})
	for i := range p.Nodes {
		n := &p.Nodes[i]
		row := []string{n.Node, output.Bytes(float64(n.MissingBytes)), output.Bytes(float64(n.PresentBytes)), output.Bytes(float64(n.ArrivingBytes + n.CrowdedBytes)), output.Bytes(float64(n.TotalBytes))}
		if n.Seconds != nil {
			row = append(row, output.Seconds(*n.Seconds))
		}
		t.Rows = append(t.Rows, append(row, strings.Join(n.RuledOut, "; "), output.Bytes(float64(n.PendingBytes))))
		t.Names = append(t.Names, "node/"+n.Node)
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
	cmd := c.selectsNodes(&cobra.Command{
		Use: "imagelocality POD | KIND/NAME | -f FILE | --image IMAGE", Args: cobra.MaximumNArgs(1),
		Short:             "What kube-scheduler's own ImageLocality gives each node for a pod, and why",
		Long:              "What kube-scheduler's own plugin ImageLocality gives each node for a pod, 0 to 100 points, and why it is 0 so often.",
		ValidArgsFunction: c.completePods,
	})
	of.flags(cmd)
	cmd.RunE = c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
		t, err := c.target(ctx, r, args, of)
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
		table := output.Answer{Columns: []output.Column{{Title: "NODE"}, {Title: "POINTS"}, {Title: "WHY"}}}
		for i, rating := range plan.ImageLocality(&t.Pod.Spec, nodes) {
			if !selects(nodes[i].Labels) {
				continue
			}
			v := points{Node: rating.Node, Points: rating.Points, Renamed: rating.Renamed, Why: terminal.Line(rating.Why, 1000)}
			values = append(values, v)
			table.Rows = append(table.Rows, []string{v.Node, fmt.Sprint(v.Points), v.Why})
			table.Names = append(table.Names, "node/"+v.Node)
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
