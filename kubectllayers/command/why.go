package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/completion"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/scheduler/placements"
	"github.com/layer-locality/layer-locality/terminal"
)

var whyColumns = []output.Column{
	{Title: "NAMESPACE", Means: "of the pod"}, {Title: "POD", Means: "its name"}, {Title: "NODE", Means: "where it is"},
	{Title: "LACKED", Means: "compressed bytes of its images that the node did not have when the pod was placed; about: estimated by events and by what the node has now"},
	{Title: "MEAN NODE LACKED", Means: "the mean of the nodes that it fitted on"},
	{Title: "SAVED", Means: "the difference"},
	{Title: "BEST NODE", Means: "the one with the highest score for layers"},
	{Title: "SCHEDULER", Wide: true, Means: "that the pod names"},
}

func (c *command) why() *cobra.Command {
	return c.prints(c.selectsPods(&cobra.Command{
		Use: "why [POD | -l LABELS | -A]", Args: cobra.MaximumNArgs(1),
		Short: "Why a pod is on its node, and what it pulled",
		Long: help("Why a pod is on its node, as far as layers are concerned: what that node, the best and the mean one had when the pod was placed, and what the kubelet pulled. Of several pods, a table.\n\n"+
			"The scheduler remembers its last 10,000 placements, or fewer if their names are long. It is asked through a port that is forwarded to the pod that holds its lease, with a token of ten minutes that may read the debug path only, never with yours. "+
			"Without it, nodes are rated now, and the answer notes that.", whyColumns),
		Example:           "  kubectl layers why web-0\n  kubectl layers why -l app=web\n  kubectl layers why -A -l team=a -o wide",
		ValidArgsFunction: completion.ResourceNameCompletionFunc(c.factory, "pod"),
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, args []string) (*answer, error) {
			var pods []*v1.Pod
			if err := c.pods(ctx, r, args, func(pod *v1.Pod) error {
				if len(pods) == maxPods {
					return fmt.Errorf("these are more than %d pods, and the scheduler is asked about each: name fewer with -l or -n", maxPods)
				}
				pods = append(pods, pod)
				return nil
			}); err != nil {
				return nil, err
			}
			w := &asker{c: c, r: r, pods: pods}
			defer func() { w.scheduler.Close() }()
			answers := make([]*plan.Why, 0, len(pods))
			answered := false
			for _, pod := range pods {
				a, err := w.of(ctx, pod)
				if err != nil {
					return nil, err
				}
				answers = append(answers, a)
				answered = answered || a.Decision != nil || a.Now != nil || len(a.Pulls) > 0
			}
			if !answered {
				return nil, w.nothing(pods)
			}
			return whyAnswer(answers, w.problems), nil
		}),
	}))
}

// maxPods is how many pods why is about.
const maxPods = 500

// asker asks about several pods.
type asker struct {
	c *command
	r *collect.Reader
	// pods are all that are asked about.
	pods []*v1.Pod
	// scheduler is asked; unreachable is why it cannot be.
	scheduler   *collect.Scheduler
	unreachable error
	opened      bool
	// cluster is read once it is needed; unrated is why it cannot be.
	cluster  *collect.Cluster
	unrated  error
	problems []*collect.Problem
}

// of answers about a pod. What the user may not read is noted, if it leaves something to say;
// any other failure would be that of the next pod, too.
func (w *asker) of(ctx context.Context, pod *v1.Pod) (*plan.Why, error) {
	if pod.Spec.NodeName == "" {
		return plan.Unplaced(pod), nil
	}
	pulls, all, err := plan.Pulls(ctx, w.r.Client, pod)
	if err != nil {
		p := w.r.Explain("events in namespace "+pod.Namespace, err)
		if !p.Partial() {
			return nil, p
		}
		w.note(p)
	} else if !all {
		w.note(&collect.Problem{
			What: fmt.Sprintf("all events of pod %s/%s", pod.Namespace, pod.Name), Why: "there are too many",
			Help: fmt.Sprintf("see kubectl -n %s events --for pod/%s", pod.Namespace, pod.Name),
		})
	}
	decision, forgotten := w.remembered(ctx, pod)
	if decision != nil {
		return plan.Remembered(pod, *decision, pulls), nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.cluster == nil && w.unrated == nil {
		if w.cluster, err = w.r.Read(ctx, collect.Parts{Nodes: true, Pods: true, Images: true, For: w.pods}); err != nil {
			w.unrated = fmt.Errorf("%s And nodes cannot be rated now: %w", forgotten, err)
		} else {
			w.note(w.cluster.Problems...)
		}
	}
	if w.unrated == nil {
		return plan.Rated(ctx, w.cluster, pod, pulls, forgotten)
	}
	var p *collect.Problem
	if !errors.As(w.unrated, &p) || !p.Partial() {
		return nil, w.unrated
	}
	w.note(p)
	return plan.Forgotten(pod, pulls, forgotten), nil
}

// note keeps problems, each once.
func (w *asker) note(problems ...*collect.Problem) {
	for _, p := range problems {
		if !slices.ContainsFunc(w.problems, func(known *collect.Problem) bool { return known.Error() == p.Error() }) {
			w.problems = append(w.problems, p)
		}
	}
}

// nothing returns why there is no answer about any of the pods.
func (w *asker) nothing(pods []*v1.Pod) error {
	switch {
	case w.unrated != nil:
		return w.unrated
	case len(pods) == 1:
		return plan.ErrUnplaced(pods[0])
	}
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return fmt.Errorf("none of %d pods has a node (%s): kubectl layers plan POD shows what nodes have for one", len(pods), some(names))
}

// some joins some of many names.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "...")
	}
	return strings.Join(names, ", ")
}

// remembered returns what the scheduler remembers of placing a pod, or why it does not.
func (w *asker) remembered(ctx context.Context, pod *v1.Pod) (*placements.Placement, string) {
	if !w.opened {
		w.opened = true
		w.scheduler, w.unreachable = w.c.openScheduler(ctx, w.r)
	}
	if w.unreachable != nil {
		return nil, fmt.Sprintf("The scheduler's memory cannot be read (%s).", w.unreachable)
	}
	a, err := w.scheduler.Placements(ctx, pod.Namespace, pod.Name)
	if err != nil {
		w.unreachable = err // and is not asked again: it may have taken long to fail
		return w.remembered(ctx, pod)
	}
	for i := range a.Placements {
		if a.Placements[i].UID == pod.UID {
			return &a.Placements[i], ""
		}
	}
	return nil, fmt.Sprintf("The scheduler does not remember this pod: it has %d placements since %s, and the pod is of the scheduler %s.",
		a.Remembered, a.Since.UTC().Format(time.RFC3339), terminal.Line(pod.Spec.SchedulerName, 253))
}

// openScheduler connects to the debug endpoint of the scheduler that the flags name.
func (c *command) openScheduler(ctx context.Context, r *collect.Reader) (*collect.Scheduler, error) {
	o := c.scheduler
	o.Now = r.Now
	return collect.OpenScheduler(ctx, r.Config, r.Client, o)
}

func whyAnswer(answers []*plan.Why, problems []*collect.Problem) *answer {
	a := &answer{kind: "Why", value: answers, problems: problems, table: output.Answer{Columns: whyColumns}}
	var unplaced []string
	for _, one := range answers {
		if one.Node == "" {
			unplaced = append(unplaced, one.Namespace+"/"+one.Pod)
			continue
		}
		row := []string{one.Namespace, one.Pod, one.Node, "", "", "", "", one.Scheduler}
		if d := one.Decision; d != nil {
			row[3] = output.Bytes(float64(d.Chosen.MissingBytes))
			if d.Mean != nil {
				row[4], row[5] = output.Bytes(d.Mean.MissingBytes), output.Bytes(*one.SavedBytes)
			}
			if d.Best != nil {
				row[6] = d.Best.Node
			}
		} else if one.Now != nil && one.Now.PulledBytes != nil {
			row[3] = "about " + output.Bytes(float64(*one.Now.PulledBytes))
		}
		a.table.Rows = append(a.table.Rows, output.Row{Object: one, Name: "node/" + one.Node, Cells: row})
	}
	if len(answers) == 1 {
		a.table.Text = answers[0].Words
	}
	if len(unplaced) > 0 {
		a.table.Below = []string{fmt.Sprintf("Without a node: %s. kubectl layers plan POD shows what nodes have for one.", some(unplaced))}
	}
	return a
}

func (c *command) savings() *cobra.Command {
	var prometheus, selector, since string
	columns := []output.Column{
		{Title: "PROFILE", Means: "of the scheduler"}, {Title: "PODS", Means: "that it placed on one of several nodes"},
		{Title: "PULLED", Means: "compressed bytes that the chosen nodes lacked"}, {Title: "MEAN NODE", Means: "what the mean of the nodes that they fitted on lacked"},
		{Title: "SAVED", Means: "the difference"}, {Title: "SHARE", Means: "of MEAN NODE"},
	}
	cmd := c.prints(c.watches(&cobra.Command{
		Use: "savings", Args: cobra.NoArgs,
		Short: "What placements saved, by profile",
		Long: help("What placements saved, by profile.\n\n"+
			"Without flags, the scheduler reports what it saved since it started. With --prometheus, Prometheus returns what was saved --since a time.", columns),
		Example:           "  kubectl layers savings\n  kubectl layers savings --prometheus http://127.0.0.1:9090 --since 7d",
		ValidArgsFunction: cobra.NoFileCompletions,
	}))
	cmd.Flags().StringVar(&prometheus, "prometheus", "", "URL of a Prometheus that scrapes the scheduler")
	cmd.Flags().StringVar(&selector, "prometheus-selector", "", "labels of the series, such as cluster=\"a\", where that Prometheus is for several clusters")
	cmd.Flags().StringVar(&since, "since", "24h", "time before now, with --prometheus")
	cmd.RunE = c.answers(func(ctx context.Context, r *collect.Reader, _ []string) (*answer, error) {
		var s *placements.Savings
		var problems []*collect.Problem
		if prometheus == "" {
			for _, flag := range []string{"since", "prometheus-selector"} {
				if cmd.Flags().Changed(flag) {
					return nil, fmt.Errorf("--%s needs --prometheus URL: the scheduler itself only has what it saved since it started", flag)
				}
			}
			scheduler, err := c.openScheduler(ctx, r)
			if err != nil {
				return nil, err
			}
			defer scheduler.Close()
			if s, err = scheduler.Savings(ctx); err != nil {
				return nil, err
			}
		} else {
			ago, err := collect.ParseSince(since)
			if err != nil {
				return nil, err
			}
			if s, problems, err = collect.SavingsOf(ctx, prometheus, selector, ago); err != nil {
				return nil, err
			}
		}
		t := output.Answer{Columns: columns}
		for i := range s.Profiles {
			p := &s.Profiles[i]
			p.Profile = terminal.Line(p.Profile, 253)
			saved := p.MeanMissingBytes - float64(p.MissingBytes)
			part := "-"
			if p.MeanMissingBytes > 0 {
				part = fmt.Sprintf("%.0f %%", 100*saved/p.MeanMissingBytes)
			}
			t.Rows = append(t.Rows, output.Row{Object: p, Name: p.Profile, Cells: []string{p.Profile, fmt.Sprint(p.Pods), output.Bytes(float64(p.MissingBytes)), output.Bytes(p.MeanMissingBytes), output.Bytes(saved), part}})
		}
		t.Ages = []string{s.Since.UTC().Format(time.RFC3339)} // with --prometheus, a time before now
		t.Below = []string{fmt.Sprintf("Since %s. Left out: pods for which one node alone was looked at (no other fitted, it was nominated, opportunistic batching) and images of which nothing was known.", t.Ages[0])}
		if len(s.Profiles) == 0 {
			t.Above = []string{"No pod was placed on one of several nodes yet."}
		}
		return &answer{kind: "Savings", value: s, problems: problems, table: t}, nil
	})
	return cmd
}
