package command

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/terminal"
)

func (c *command) nodes() *cobra.Command {
	return c.selectsNodes(&cobra.Command{
		Use: "nodes", Aliases: []string{"no"}, Args: cobra.NoArgs,
		Short: "What each node holds, and who reports that",
		Long: "What each node holds: images, layers, compressed bytes, how many of them other nodes hold too, who reports that, and when.\n\n" +
			"SOURCE: agent (layer-agent), kubelet (the patched one), joined (the node names digests that ImageManifests explain), names (nothing but names is known).",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, _ []string) (*answer, error) {
			selects, err := c.selects()
			if err != nil {
				return nil, err
			}
			known, cluster, err := inventoryOf(ctx, r, collect.Parts{Nodes: true, PodsUnlessReported: true, Images: true})
			if err != nil {
				return nil, err
			}
			labels := map[string]map[string]string{}
			for _, node := range cluster.Nodes {
				labels[node.Name] = node.Labels
			}
			nodes := slices.DeleteFunc(known.Nodes(), func(n inventory.Node) bool { return !selects(labels[n.Name]) })
			return &answer{kind: "Nodes", value: nodes, problems: cluster.Problems, table: nodesTable(nodes, cluster.Now)}, nil
		}),
	})
}

func nodesTable(nodes []inventory.Node, now time.Time) output.Answer {
	t := output.Answer{Columns: []output.Column{
		{Title: "NODE"}, {Title: "IMAGES"}, {Title: "LAYERS"}, {Title: "SIZE"}, {Title: "ELSEWHERE TOO"}, {Title: "SOURCE"}, {Title: "AGE"}, {Title: "CUT"}, {Title: "REUSE"},
		{Title: "RUNTIME", Wide: true}, {Title: "KNOWN BY", Wide: true},
	}}
	for i := range nodes {
		n := &nodes[i]
		source := string(n.Source)
		switch {
		case n.StaleAgent:
			source += ", agent silent"
		case n.Problem != "":
			source += ", agent left out"
		}
		t.Rows = append(t.Rows, []string{
			n.Name, strconv.Itoa(n.Images), strconv.Itoa(n.Layers), output.Bytes(float64(n.Bytes)), share(ptr.Deref(n.ElsewhereBytes, 0), n.Bytes), source, output.Age(n.Reported, now), cuts(n), string(n.Reuse),
			n.Runtime, knownBy(n),
		})
		t.Names = append(t.Names, "node/"+n.Name)
	}
	if len(nodes) == 0 {
		t.Above = []string{"No nodes."}
	}
	return t
}

func share(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// cuts returns what a node holds and does not list.
func cuts(n *inventory.Node) string {
	var cuts []string
	if n.CutImages > 0 {
		cuts = append(cuts, fmt.Sprintf("%d images", n.CutImages))
	}
	if n.CutLayers > 0 {
		cuts = append(cuts, fmt.Sprintf("%d layers", n.CutLayers))
	}
	if n.FullList {
		cuts = append(cuts, "list full")
	}
	if n.InvalidLines > 0 {
		cuts = append(cuts, fmt.Sprintf("%d invalid lines", n.InvalidLines))
	}
	return strings.Join(cuts, ", ")
}

func knownBy(n *inventory.Node) string {
	var parts []string
	for evidence, count := range n.Known {
		parts = append(parts, fmt.Sprintf("%s %d", evidence, count))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func (c *command) node() *cobra.Command {
	return &cobra.Command{
		Use: "node NAME", Args: exactly("the name of a node"),
		Short:             "The images of a node, the largest first",
		Long:              "The images of a node, the largest first: compressed bytes, what other images on the node share, and what would be freed if the image went.",
		ValidArgsFunction: c.completeNodes,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
			name := strings.TrimPrefix(args[0], "node/")
			if name == "" || len(name) > 253 || strings.ContainsAny(name, "/ %") {
				return nil, fmt.Errorf("%q is no name of a node: see kubectl get nodes", terminal.Line(args[0], 253))
			}
			parts := collect.Parts{Nodes: true, Node: name, Pods: true, Images: true}
			known, cluster, err := inventoryOf(ctx, r, parts)
			if err == nil && !known.Alone(name) {
				parts.Node = ""
				known, cluster, err = inventoryOf(ctx, r, parts)
			}
			if err != nil {
				return nil, err
			}
			node, ok := known.Node(name)
			if !ok {
				return nil, fmt.Errorf("there is no node %q: see kubectl get nodes", terminal.Line(name, 253))
			}
			t := nodesTable([]inventory.Node{node.Node}, cluster.Now)
			table := output.Answer{Columns: []output.Column{{Title: "IMAGE"}, {Title: "SIZE"}, {Title: "SHARED HERE"}, {Title: "FREED"}, {Title: "LAYERS"}, {Title: "KNOWN BY"}, {Title: "NAMES", Wide: true}}}
			table.Above = []string{fmt.Sprintf("%s: %s images, %s layers, %s; reported by %s, %s old; layers used again by %s", name, t.Rows[0][1], t.Rows[0][2], t.Rows[0][3], t.Rows[0][5], t.Rows[0][6], strings.ToLower(string(node.Reuse)))}
			if node.Problem != "" {
				table.Above = append(table.Above, "Its NodeLayers is left out: "+node.Problem)
			}
			for _, held := range node.Held {
				table.Rows = append(table.Rows, []string{
					first(held.Names), output.Bytes(float64(held.Bytes)), output.Bytes(float64(held.SharedBytes)), output.Bytes(float64(held.FreedBytes)), strconv.Itoa(held.Layers), string(held.Known),
					strings.Join(held.Names, " "),
				})
				table.Names = append(table.Names, first(held.Names))
			}
			return &answer{kind: "Node", value: node, problems: cluster.Problems, table: table}, nil
		}),
	}
}

// inventoryOf reads the parts of a cluster.
func inventoryOf(ctx context.Context, r *collect.Reader, parts collect.Parts) (*inventory.Inventory, *collect.Cluster, error) {
	cluster, err := r.Read(ctx, parts)
	if err != nil {
		return nil, nil, err
	}
	known, err := inventory.New(ctx, cluster)
	return known, cluster, err
}

// first returns the first of several names, shortened if it is a digest.
func first(names []string) string {
	if len(names) == 0 {
		return "(no name)"
	}
	return short(names[0])
}

// short shortens a digest to what people compare.
func short(name string) string {
	if algorithm, hex, ok := strings.Cut(name, ":"); ok && v1alpha1.IsDigest(name) {
		return algorithm + ":" + hex[:12]
	}
	return name
}

// exactly wants one argument.
func exactly(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("want %s: %s", what, cmd.UseLine())
		}
		return nil
	}
}
