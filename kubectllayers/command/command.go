// Package command has the commands of kubectl layers: what each asks for, and the tables of its answers.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/terminal"
)

// command is what all commands share.
type command struct {
	in     io.Reader
	config *genericclioptions.ConfigFlags
	// Flags.
	output        string
	selector      string
	allNamespaces bool
	scheduler     collect.SchedulerOptions
}

// New returns the command with all its commands, for a version of the program. in is what -f - reads.
func New(in io.Reader, version string) *cobra.Command {
	c := &command{in: in, config: genericclioptions.NewConfigFlags(true)}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // an error is one sentence
	root := &cobra.Command{
		Use:   "kubectl-layers",
		Short: "Which node holds which image layers, and what that is worth for a pod",
		Long: "Which node holds which image layers, where a pod would find most of its own, and why a pod went where it is.\n" +
			"Sizes are compressed bytes, as registries send them. docs/kubectl-layers.md has a page on every command.",
		Version:     version,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl layers"},
	}
	root.SetIn(in)
	flags := root.PersistentFlags()
	c.config.AddFlags(flags)
	flags.StringVarP(&c.output, "output", "o", "", "table, wide, json, yaml or name")
	flags.StringVar(&c.scheduler.URL, "scheduler-url", "", "address of the scheduler's secure port, such as https://10.0.0.1:10259, where no port can be forwarded to its pod")
	flags.StringVar(&c.scheduler.Namespace, "scheduler-namespace", collect.DefaultSchedulerNamespace, "namespace of the scheduler's lease and of the service account")
	flags.StringVar(&c.scheduler.PodNamespace, "scheduler-pod-namespace", "", "namespace of the scheduler's pod, if it is another one: layer-locality with deploy/scheduler/okd")
	flags.StringSliceVar(&c.scheduler.Leases, "scheduler-lease", collect.DefaultLeases, "lease of the scheduler; of several, the first that there is")
	flags.StringVar(&c.scheduler.ServiceAccount, "scheduler-service-account", collect.DefaultServiceAccount, "service account whose token the scheduler gets: it may read the debug path, besides what every account may")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "wide", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("namespace", c.completeNamespaces)
	_ = root.RegisterFlagCompletionFunc("context", c.completeContexts)
	root.SetFlagErrorFunc(func(sub *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, sub.CommandPath())
	})
	root.AddCommand(c.nodes(), c.node(), c.image(), c.shared(), c.plan(), c.why(), c.imageLocality(), c.savings())
	root.AddCommand(c.workloads()...)
	return root
}

// selectsNodes gives a command about nodes the flag -l, and selectsPods one about pods -l and -A. No other
// has them: its answer would be about all.
func (c *command) selectsNodes(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&c.selector, "selector", "l", "", "only nodes that have these labels")
	return cmd
}

func (c *command) selectsPods(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&c.selector, "selector", "l", "", "the pods that have these labels")
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "the pods of all namespaces")
	return cmd
}

// reader returns a Reader of the cluster that the user's flags name.
func (c *command) reader() (*collect.Reader, error) {
	config, err := c.config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster to ask: %w: name a kubeconfig with --kubeconfig or a context with --context", err)
	}
	return collect.New(config)
}

// namespace returns the namespace of the flags or of the context.
func (c *command) namespace() (string, error) {
	namespace, _, err := c.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("no namespace: %w: name one with -n", err)
	}
	return namespace, nil
}

// document is what json and yaml print.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Answer     any    `json:"answer"`
	// Problems are what could not be read: the answer is smaller without it.
	Problems []*collect.Problem `json:"problems,omitempty"`
}

// apiVersion is that of the documents.
const apiVersion = "kubectl.layerlocality.io/v1"

// answer is what a command prints.
type answer struct {
	// kind and value are what json and yaml print.
	kind  string
	value any
	table output.Answer
	// problems are what could not be read.
	problems []*collect.Problem
}

// answers returns the function of a command that is done when it has an answer.
func (c *command) answers(f func(ctx context.Context, r *collect.Reader, args []string) (*answer, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		form, err := output.ParseForm(c.output)
		if err != nil {
			return err
		}
		r, err := c.reader()
		if err != nil {
			return err
		}
		a, err := f(cmd.Context(), r, args)
		if err != nil {
			if ctx := cmd.Context(); ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return err
		}
		table := a.table
		table.Value = document{apiVersion, a.kind, a.value, a.problems}
		if err := output.Print(cmd.OutOrStdout(), form, &table); err != nil {
			return fmt.Errorf("cannot print the answer: %w", err)
		}
		for _, p := range a.problems { // in json too, but there they are easily missed
			cmd.PrintErrf("note: %s\n", terminal.Line(p.Error(), 1000))
		}
		return nil
	}
}

// selects returns a function that reports whether labels are those of the flag -l.
func (c *command) selects() (func(map[string]string) bool, error) {
	selector, err := labels.Parse(c.selector)
	if err != nil {
		return nil, fmt.Errorf("--selector: %w", err)
	}
	return func(set map[string]string) bool { return selector.Matches(labels.Set(set)) }, nil
}

// parseBandwidth reads bits a second: 100M, 1G, 12.5Mi, also with "bit", "bit/s" or "bps" behind it.
func parseBandwidth(value string) (int64, error) {
	if value == "" {
		return 0, nil
	}
	number := strings.ToLower(value)
	for _, unit := range []string{"bit/s", "bps", "bit"} {
		if cut, ok := strings.CutSuffix(number, unit); ok {
			number = cut
			break
		}
	}
	number = strings.NewReplacer("g", "G", "m", "M", "ki", "Ki").Replace(number)
	q, err := resource.ParseQuantity(number)
	if err != nil || q.Value() <= 0 || q.Value() > math.MaxInt64/16 { // too large a number is 0
		return 0, fmt.Errorf("--bandwidth %q: want bits a second, such as 100M or 1Gbit", terminal.Line(value, 50))
	}
	return q.Value(), nil
}
