package command

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/terminal"
)

// completion is how long a shell waits for names, and maxNames how many it gets.
const (
	completion = 3 * time.Second
	maxNames   = 500
)

// complete returns the names of the objects that a shell offers; none if the cluster does not answer.
func (c *command) complete(args []string, list func(context.Context, *collect.Reader, metav1.ListOptions) (runtime.Object, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	r, err := c.reader()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completion)
	defer cancel()
	objects, err := list(ctx, r, metav1.ListOptions{Limit: maxNames})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	_ = meta.EachListItem(objects, func(object runtime.Object) error { // of lists of Kubernetes, so there is no error
		if o, err := meta.Accessor(object); err == nil {
			names = append(names, terminal.Line(o.GetName(), 253))
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (c *command) completeNodes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.complete(args, func(ctx context.Context, r *collect.Reader, o metav1.ListOptions) (runtime.Object, error) {
		return r.Client.CoreV1().Nodes().List(ctx, o)
	})
}

func (c *command) completePods(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.complete(args, func(ctx context.Context, r *collect.Reader, o metav1.ListOptions) (runtime.Object, error) {
		namespace, err := c.namespace()
		if err != nil {
			return nil, err
		}
		return r.Client.CoreV1().Pods(namespace).List(ctx, o)
	})
}

// completeContexts returns the contexts of the kubeconfig.
func (c *command) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	config, err := c.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

func (c *command) completeNamespaces(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return c.complete(nil, func(ctx context.Context, r *collect.Reader, o metav1.ListOptions) (runtime.Object, error) {
		return r.Client.CoreV1().Namespaces().List(ctx, o)
	})
}
