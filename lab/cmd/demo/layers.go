package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/scheduler/placements"
	"github.com/layer-locality/layer-locality/terminal"
)

// print runs kubectl layers as a user does, and shows what it prints.
func (d *agentDemo) print(ctx context.Context, args ...string) error {
	out, err := d.lab.KubectlLayers(ctx, ".", args...)
	if err != nil {
		return err
	}
	fmt.Fprintf(terminal.Stdout, "\n$ kubectl layers %s\n%s", strings.Join(args, " "), out)
	return nil
}

// questions has kubectl layers print what nodes hold, what a pod will pull, why it went where it
// went, and what all that saved. Its numbers have to be what the registry sent.
func (d *agentDemo) questions(ctx context.Context) error {
	rights, err := kustomize.Build(filepath.Join("deploy", "kubectl-layers"), nil)
	if err != nil {
		return err
	}
	if err := d.lab.Apply(ctx, rights...); err != nil {
		return err
	}
	const pod = "agent-next"
	image, err := d.announced(ctx, pod)
	if err != nil {
		return err
	}
	say("applied deploy/kubectl-layers: kubectl layers asks the scheduler through a forwarded port")
	if err := d.print(ctx, "nodes"); err != nil {
		return err
	}
	of := []string{"plan", "--image", image.Reference}
	if err := d.print(ctx, append(of, "--bandwidth", "100M")...); err != nil {
		return err
	}
	var planned plan.Plan
	if err := d.lab.AskKubectlLayers(ctx, ".", &planned, of...); err != nil {
		return err
	}
	start, err := d.lab.Start(ctx, scenario.Pod{Name: pod, Image: image.Reference, Scheduler: scenario.Layers}, image)
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"why", pod}, {"savings"}} {
		if err := d.print(ctx, args...); err != nil {
			return err
		}
	}
	var told []plan.Why
	if err := d.lab.AskKubectlLayers(ctx, ".", &told, "why", pod); err != nil {
		return err
	}
	var saved placements.Savings
	if err := d.lab.AskKubectlLayers(ctx, ".", &saved, "savings"); err != nil {
		return err
	}
	i := slices.IndexFunc(planned.Nodes, func(n plan.Node) bool { return n.Node == start.Node })
	switch {
	case i < 0:
		return fmt.Errorf("plan does not name %s, where the pod runs", start.Node)
	case len(told) != 1 || told[0].Decision == nil:
		return fmt.Errorf("why does not have what the scheduler remembers: %+v", told)
	case len(saved.Profiles) != 1 || saved.Profiles[0].Profile != scenario.Layers:
		return fmt.Errorf("savings has the profiles %+v, want %s", saved.Profiles, scenario.Layers)
	}
	before, after := planned.Nodes[i].MissingBytes, told[0].Decision.Chosen.MissingBytes
	fmt.Fprintln(terminal.Stdout)
	say("%s was to pull %.1f MB by plan and by why; the registry sent it %.1f MB", start.Node, float64(after)/1e6, float64(start.Bytes)/1e6)
	if before != after || math.Abs(float64(after-start.Bytes)) > 0.01*float64(start.Bytes) {
		return fmt.Errorf("plan has %d bytes, why %d, and the registry sent %d", before, after, start.Bytes)
	}
	return nil
}
