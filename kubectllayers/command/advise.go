package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
)

var adviceColumns = []output.Column{
	{Title: "KIND", Means: "Base: bases that could be one; Layer: a large layer high in the stack that each version has anew; Tag: nodes hold different contents under a tag; List: a kubelet lists no more images"},
	{Title: "ABOUT", Means: "a layer of the proposed base, a repository, a tag, or nodes"},
	{Title: "SAVES", Means: "compressed bytes that all nodes would hold less"},
	{Title: "A PULL", Means: "what a pull of one of the images takes at the most that it need not"},
	{Title: "ADVICE", Prose: true, Means: "what to change"},
	{Title: "IMAGES", Wide: true, Means: "some of the images"},
}

func (c *command) advise() *cobra.Command {
	return c.prints(&cobra.Command{
		Use: "advise", Args: cobra.NoArgs,
		Short: "What to change in how images are built, and what that saves",
		Long: help("What to change in how images are built and listed, by what nodes hold now: what saves most first.\n\n"+
			"Bases are taken to be exchangeable if their sizes differ by 5 % at most: that is a guess, and yours to judge. "+
			"The same files under different digests are not found: manifests do not have the digests of what is in layers.", adviceColumns),
		Example:           "  kubectl layers advise\n  kubectl layers advise -o wide\n  kubectl layers advise -o jsonpath='{.answer[?(@.kind==\"Base\")].savedBytes}'",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, _ []string) (*answer, error) {
			known, cluster, err := inventoryOf(ctx, r, collect.Parts{Nodes: true, PodsUnlessReported: true, Images: true})
			if err != nil {
				return nil, err
			}
			all := known.Advise()
			t := output.Answer{Columns: adviceColumns}
			for _, a := range all {
				saves, pull := "", ""
				if a.SavedBytes > 0 {
					saves = output.Bytes(float64(a.SavedBytes))
				}
				if a.PullBytes > 0 {
					pull = output.Bytes(float64(a.PullBytes))
				}
				t.Rows = append(t.Rows, output.Row{Object: a, Name: a.About, Cells: []string{string(a.Kind), short(a.About), saves, pull, a.Words, strings.Join(a.Images, " ")}})
			}
			if len(all) == 0 {
				t.Above = []string{"Nothing to change was found."}
			}
			return &answer{kind: "Advice", value: all, problems: cluster.Problems, table: t}, nil
		}),
	})
}
