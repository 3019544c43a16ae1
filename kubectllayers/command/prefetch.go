package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
)

// prefetched is what an ImagePrefetch brings to a node, or what it waits for.
type prefetched struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Source made it: object (a user), template, tag or node.
	Source   string   `json:"source"`
	Workload string   `json:"workload,omitempty"`
	Images   []string `json:"images,omitempty"`
	Node     string   `json:"node,omitempty"`
	// State of the node is Pulling, Ready, Used, Wasted or a reason of failure, without a node that of the object.
	State string `json:"state"`
	Bytes int64  `json:"bytes"`
	// UsedBytes are those of images that pods there used.
	UsedBytes int64 `json:"usedBytes,omitempty"`
	// WastedBytes are the others, once they are taken for wasted.
	WastedBytes int64     `json:"wastedBytes,omitempty"`
	Since       time.Time `json:"since"`
	Message     string    `json:"message,omitempty"`
}

var prefetchColumns = []output.Column{
	{Title: "PREFETCH", Means: "the ImagePrefetch; with its namespace with -A"},
	{Title: "WHY", Means: "who made it: object, a user; or a source of layer-prefetcher: template, a rollout; tag, a moved tag; node, a new node"},
	{Title: "FOR", Means: "the workload that it is for"},
	{Title: "NODE", Means: "where the images come to"},
	{Title: "STATE", Means: "Pulling; Ready, and no pod has used it yet; Used; Wasted: no pod used it in time; or why it failed, or waits"},
	{Title: "SIZE", Means: "compressed bytes that the node pulls or has pulled"},
	{Title: "SINCE", Means: "how long ago that began", Age: true},
	{Title: "MESSAGE", Prose: true, Means: "more about that"},
	{Title: "IMAGES", Wide: true, Means: "which images"},
}

func (c *command) prefetch() *cobra.Command {
	cmd := c.prints(c.watches(&cobra.Command{
		Use: "prefetch", Args: cobra.NoArgs,
		Short:             "What layer-prefetcher brings to which node, why, and whether pods used it",
		Long:              help("What layer-prefetcher brings to which node before pods need it, why, and whether pods used it.", prefetchColumns),
		Example:           "  kubectl layers prefetch\n  kubectl layers prefetch -A -w\n  kubectl layers prefetch --sort-by=.bytes -o wide",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, _ []string) (*answer, error) {
			namespace, err := c.namespace()
			if err != nil {
				return nil, err
			}
			if c.allNamespaces {
				namespace = metav1.NamespaceAll
			}
			objects, problem := r.Prefetches(ctx, namespace)
			if problem != nil {
				return nil, problem
			}
			var pods []*v1.Pod
			a := &answer{kind: "Prefetch"}
			err = r.PodsWith(ctx, namespace, v1alpha1.PrefetchPodLabel, func(pod *v1.Pod) error {
				pods = append(pods, pod)
				return nil
			})
			if errors.As(err, &problem) && problem.Partial() {
				a.problems = append(a.problems, problem)
			} else if err != nil {
				return nil, err
			}
			all := prefetchedBy(objects, pods)
			a.value, a.table = all, prefetchTable(all, c.allNamespaces, r.Now())
			return a, nil
		}),
	}))
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "those of all namespaces")
	return cmd
}

// prefetchedBy returns what ImagePrefetches and their pods state: each node that pulled, failed or pulls, and what else an
// object waits for or ended with.
func prefetchedBy(objects []v1alpha1.ImagePrefetch, pods []*v1.Pod) []prefetched {
	all := []prefetched{}
	for i := range objects {
		o := &objects[i]
		one := prefetched{
			Namespace: o.Namespace, Name: o.Name, Source: cmp.Or(o.Labels[v1alpha1.PrefetchSourceLabel], "object"), Images: o.Status.Images,
		}
		if w := o.Spec.Workload; w != nil {
			one.Workload = w.Kind + "/" + w.Name
		}
		before := len(all)
		for _, n := range o.Status.Nodes {
			one.Node, one.Bytes, one.UsedBytes, one.Since, one.Message, one.State = n.Name, n.Bytes, n.UsedBytes, n.Time.Time, n.Message, "Ready"
			if one.WastedBytes = 0; n.Wasted {
				one.WastedBytes = n.Bytes - n.UsedBytes
			}
			switch {
			case n.Reason != "":
				one.State = n.Reason
			case n.UsedBytes > 0:
				one.State = "Used"
			case n.Wasted:
				one.State = "Wasted"
			}
			all = append(all, one)
		}
		one.UsedBytes, one.WastedBytes = 0, 0
		for _, pod := range pods {
			if !metav1.IsControlledBy(pod, o) || slices.ContainsFunc(o.Status.Nodes, func(n v1alpha1.PrefetchedNode) bool {
				return n.Name == pod.Annotations[v1alpha1.PrefetchNodeAnnotation] && !n.Time.Before(&pod.CreationTimestamp)
			}) {
				continue
			}
			one.Node, one.State, one.Since, one.Message = pod.Annotations[v1alpha1.PrefetchNodeAnnotation], "Pulling", pod.CreationTimestamp.Time, ""
			one.Bytes, _ = strconv.ParseInt(pod.Annotations[v1alpha1.PrefetchBytesAnnotation], 10, 64)
			all = append(all, one)
		}
		condition := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionComplete)
		if condition == nil {
			condition = &metav1.Condition{Reason: "Unknown", Message: "layer-prefetcher has not seen it yet", LastTransitionTime: o.CreationTimestamp}
		}
		if len(all) == before || !slices.Contains([]string{v1alpha1.ReasonPulling, v1alpha1.ReasonComplete}, condition.Reason) {
			one.Node, one.Bytes, one.State, one.Since, one.Message = "", 0, condition.Reason, condition.LastTransitionTime.Time, condition.Message
			all = append(all, one)
		}
	}
	return all
}

func prefetchTable(all []prefetched, namespaces bool, now time.Time) output.Answer {
	t := output.Answer{Columns: prefetchColumns}
	var moved, used, wasted int64
	for _, p := range all {
		used += p.UsedBytes
		if p.State != v1alpha1.ReasonPulling {
			moved += p.Bytes
		}
		wasted += p.WastedBytes
		name, size := p.Name, ""
		if namespaces {
			name = p.Namespace + "/" + name
		}
		if p.Bytes > 0 {
			size = output.Bytes(float64(p.Bytes))
		}
		t.Rows = append(t.Rows, output.Row{Object: p, Name: "imageprefetch/" + p.Name, Cells: []string{
			name, p.Source, p.Workload, p.Node, p.State, size, output.Age(p.Since, now), p.Message, strings.Join(p.Images, " "),
		}})
	}
	if len(all) == 0 {
		t.Above = []string{"No ImagePrefetches (docs/prefetch.md)."}
	} else {
		t.Below = []string{fmt.Sprintf("Nodes pulled %s ahead; of that, pods used %s, and %s is wasted.", output.Bytes(float64(moved)), output.Bytes(float64(used)), output.Bytes(float64(wasted)))}
	}
	return t
}
