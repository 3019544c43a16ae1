package command

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/completion"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/terminal"
)

var nodeColumns = []output.Column{
	{Title: "NODE", Means: "name of the node"},
	{Title: "IMAGES", Means: "images on it, each once"},
	{Title: "LAYERS", Means: "layers of them, each once"},
	{Title: "SIZE", Means: "compressed bytes of these layers; an estimate for images that are known by name"},
	{Title: "KNOWN FROM", Means: "layer-agent on the node; kubelet, a patched one; manifests: the kubelet lists digests, and ImageManifests have the layers; names, and nothing else is known; nothing: no image is listed. The best that holds for one of the images"},
	{Title: "REPORTED", Means: "how long ago", Age: true},
	{Title: "ON OTHER NODES", Wide: true, Means: "share of SIZE that at least one other node holds"},
	{Title: "NOT LISTED", Wide: true, Means: "what the node holds, but does not list, so that the scheduler does not have it; list full: the kubelet lists 50 images or more, so there may be others"},
	{Title: "LAYER REUSE", Wide: true, Means: "Digest: a layer is used again whatever is below it; Chain: only above the same layers"},
	{Title: "RUNTIME", Wide: true, Means: "container runtime and its version"},
	{Title: "IMAGES KNOWN BY", Wide: true, Means: "number of images known by layers (the node states them), manifest (an ImageManifest), name (neither), use (a pod uses it, the node does not list it)"},
}

// sources are what tables call them.
var sources = map[inventory.Source]string{inventory.FromAgent: "layer-agent", inventory.Joined: "manifests"}

func (c *command) nodes() *cobra.Command {
	return c.prints(c.watches(c.selectsNodes(&cobra.Command{
		Use: "nodes", Aliases: []string{"no"}, Args: cobra.NoArgs,
		Short: "What each node holds, and who reports that",
		Long: help("What each node holds: images, layers, compressed bytes, who reports that, and when.\n\n"+
			"If layer-agent reports all nodes, this is what it states in sum. What other nodes hold, too, and what is not listed, takes all lists: -o wide, json and the others read them.", nodeColumns),
		Example:           "  kubectl layers nodes\n  kubectl layers nodes -l pool=gpu -o wide\n  kubectl layers nodes --sort-by=.bytes --no-headers\n  kubectl layers nodes -o custom-columns=NODE:.name,BYTES:.bytes",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, _ []string) (*answer, error) {
			selects, err := c.selects()
			if err != nil {
				return nil, err
			}
			if c.output.Brief() {
				if nodes, ok := r.Brief(ctx, c.selector); ok {
					return &answer{kind: "Nodes", table: briefTable(nodes)}, nil
				}
			}
			known, cluster, err := inventoryOf(ctx, r, collect.Parts{Nodes: true, PodsUnlessReported: true, Images: true})
			if err != nil {
				return nil, err
			}
			labels := labelsOf(cluster)
			nodes := slices.DeleteFunc(known.Nodes(), func(n inventory.Node) bool { return !selects(labels[n.Name]) })
			return &answer{kind: "Nodes", value: nodes, problems: cluster.Problems, table: nodesTable(nodes, cluster.Now)}, nil
		}),
	})))
}

func labelsOf(cluster *collect.Cluster) map[string]map[string]string {
	labels := map[string]map[string]string{}
	for _, node := range cluster.Nodes {
		labels[node.Name] = node.Labels
	}
	return labels
}

// briefTable has the columns that are not wide.
func briefTable(nodes []collect.Brief) output.Answer {
	t := output.Answer{Columns: nodeColumns}
	for _, n := range nodes {
		cells := []string{n.Name, strconv.Itoa(n.Images), strconv.Itoa(n.Layers), output.Bytes(float64(n.Bytes)), sources[inventory.FromAgent], n.Age}
		t.Rows = append(t.Rows, output.Row{Cells: append(cells, make([]string, len(nodeColumns)-len(cells))...), Name: "node/" + n.Name})
	}
	return t
}

func nodesTable(nodes []inventory.Node, now time.Time) output.Answer {
	t := output.Answer{Columns: nodeColumns}
	for i := range nodes {
		n := &nodes[i]
		elsewhere := "-"
		if n.ElsewhereBytes != nil {
			elsewhere = share(*n.ElsewhereBytes, n.Bytes)
		}
		t.Rows = append(t.Rows, output.Row{Object: n, Name: "node/" + n.Name, Cells: []string{
			n.Name, strconv.Itoa(max(n.Images, n.TotalImages)), strconv.Itoa(max(n.Layers, n.TotalLayers)), output.Bytes(float64(max(n.Bytes, n.TotalBytes))), sourceOf(n), output.Age(n.Reported, now),
			elsewhere, cuts(n), string(n.Reuse), n.Runtime, knownBy(n),
		}})
	}
	if len(nodes) == 0 {
		t.Above = []string{"No nodes."}
	}
	return t
}

// sourceOf returns who reports a node, and whether an object of layer-agent does not count.
func sourceOf(n *inventory.Node) string {
	source := string(n.Source)
	if sources[n.Source] != "" {
		source = sources[n.Source]
	}
	switch {
	case n.StaleAgent:
		return source + ", layer-agent silent"
	case n.Problem != "":
		return source + ", layer-agent left out"
	}
	return source
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
	for _, cut := range []struct {
		n    int
		what string
	}{{n.CutImages, "image"}, {n.CutLayers, "layer"}, {n.InvalidLines, "invalid line"}} {
		if cut.n > 0 {
			cuts = append(cuts, output.Count(cut.n, cut.what))
		}
	}
	if n.FullList {
		cuts = append(cuts, "list full")
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

var heldColumns = []output.Column{
	{Title: "IMAGE", Means: "one of its names"},
	{Title: "SIZE", Means: "compressed bytes of its layers"},
	{Title: "SHARED HERE", Means: "of these, what other images on the node have, too"},
	{Title: "FREED", Means: "what goes when the image is removed"},
	{Title: "LAYERS", Means: "how many it has"},
	{Title: "KNOWN BY", Means: "layers (the node states them), manifest (an ImageManifest), name (neither), use (a pod uses it, the node does not list it)"},
	{Title: "NAMES", Wide: true, Means: "all its names"},
}

// mostArriving is for how many pods it is printed what is on its way.
const mostArriving = 10

func (c *command) node() *cobra.Command {
	return c.prints(c.watches(&cobra.Command{
		Use: "node NAME", Args: exactly("the name of a node"),
		Short:             "The images of a node, the largest first",
		Long:              help("The images of a node, the largest first: compressed bytes, what other images on the node share, and what would be freed if the image went. Above them is what the node still lacks for pods that were placed there; --watch follows it.", heldColumns),
		Example:           "  kubectl layers node n1\n  kubectl layers node n1 --sort-by=.freedBytes\n  kubectl layers node n1 -o json",
		ValidArgsFunction: completion.ResourceNameCompletionFunc(c.factory, "node"),
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
			age := fmt.Sprintf("reported %s ago", output.Age(node.Reported, cluster.Now))
			table := output.Answer{Columns: heldColumns, Ages: []string{age}}
			table.Above = []string{fmt.Sprintf("%s: %s, %s, %s; known from %s, %s; layers used again by %s", name, output.Count(node.Images, "image"), output.Count(node.Layers, "layer"),
				output.Bytes(float64(node.Bytes)), sourceOf(&node.Node), age, strings.ToLower(string(node.Reuse)))}
			if missing := cuts(&node.Node); missing != "" {
				table.Above = append(table.Above, "Not listed: "+missing)
			}
			if node.Problem != "" {
				table.Above = append(table.Above, "Its NodeLayers is left out: "+node.Problem)
			}
			for _, a := range node.Arriving[:min(len(node.Arriving), mostArriving)] {
				placed := fmt.Sprintf("placed %s ago", output.Age(a.Since, cluster.Now))
				table.Ages = append(table.Ages, placed)
				table.Above = append(table.Above, fmt.Sprintf("Arriving: %s for pod %s/%s, %s", output.Bytes(float64(a.Bytes)), terminal.Line(a.Namespace, 63), terminal.Line(a.Pod, 253), placed))
			}
			if more := len(node.Arriving) - mostArriving; more > 0 {
				table.Above = append(table.Above, fmt.Sprintf("Arriving: for %s more", output.Count(more, "pod")))
			}
			for i := range node.Held {
				held := &node.Held[i]
				table.Rows = append(table.Rows, output.Row{Object: held, Name: first(held.Names), Cells: []string{
					first(held.Names), output.Bytes(float64(held.Bytes)), output.Bytes(float64(held.SharedBytes)), output.Bytes(float64(held.FreedBytes)), strconv.Itoa(held.Layers), string(held.Known),
					strings.Join(held.Names, " "),
				}})
			}
			return &answer{kind: "Node", value: node, problems: cluster.Problems, table: table}, nil
		}),
	}))
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
