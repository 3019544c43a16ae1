// Package command has the commands of kubectl layers: what each asks for, and the tables of its answers.
package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/klog/v2"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/completion"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/terminal"
)

// command is what all commands share.
type command struct {
	config  *genericclioptions.ConfigFlags
	factory cmdutil.Factory
	// Flags.
	output        *output.Flags
	selector      string
	allNamespaces bool
	watch         bool
	chunkSize     int64
	scheduler     collect.SchedulerOptions
}

// New returns the command with all its commands, for a version of the program.
func New(version string) *cobra.Command {
	c := &command{config: genericclioptions.NewConfigFlags(true), output: output.NewFlags()}
	c.factory = cmdutil.NewFactory(c.config)
	completion.SetFactoryForCompletion(c.factory)
	root := &cobra.Command{
		Use:   "kubectl-layers",
		Short: "Which node holds which image layers, and what that is worth for a pod",
		Long: "Which node holds which image layers, where a pod would find most of its own, and why a pod went where it is.\n" +
			"Sizes are compressed bytes, as registries send them. docs/kubectl-layers.md has a page on every command.",
		Example:     "  kubectl layers nodes\n  kubectl layers plan deployment/web\n  kubectl layers why web-0",
		Version:     version,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl layers"},
	}
	flags := root.PersistentFlags()
	c.config.AddFlags(flags)
	quietly(root)
	flags.Int64Var(&c.chunkSize, "chunk-size", cmdutil.DefaultChunkSize, "size of chunks in which large lists are read, 0: all at once; by default a fifth of it for NodeLayers, which are large")
	flags.StringVar(&c.scheduler.URL, "scheduler-url", "", "address of the scheduler's secure port, such as https://10.0.0.1:10259, where no port can be forwarded to its pod")
	flags.StringVar(&c.scheduler.Namespace, "scheduler-namespace", collect.DefaultSchedulerNamespace, "namespace of the scheduler's lease and of the service account")
	flags.StringVar(&c.scheduler.PodNamespace, "scheduler-pod-namespace", "", "namespace of the scheduler's pod, if it is another one: layer-locality with deploy/scheduler/okd")
	flags.StringSliceVar(&c.scheduler.Leases, "scheduler-lease", collect.DefaultLeases, "lease of the scheduler; of several, the first that there is")
	flags.StringVar(&c.scheduler.ServiceAccount, "scheduler-service-account", collect.DefaultServiceAccount, "service account whose token the scheduler gets: it may read the debug paths, besides what every account may")
	for flag, complete := range map[string]func(string) []string{
		"namespace": func(name string) []string { return completion.CompGetResource(c.factory, "namespace", name) },
		"context":   completion.ListContextsInConfig, "cluster": completion.ListClustersInConfig, "user": completion.ListUsersInConfig,
	} {
		_ = root.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, name string) ([]string, cobra.ShellCompDirective) {
			return complete(name), cobra.ShellCompDirectiveNoFileComp
		})
	}
	root.SetFlagErrorFunc(func(sub *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, sub.CommandPath())
	})
	root.AddCommand(c.nodes(), c.node(), c.image(), c.shared(), c.plan(), c.why(), c.savings(), c.qos(), c.advise(), c.prefetch(), c.imageLocality())
	root.AddCommand(c.oldForms()...)
	return root
}

// quietly gives a command the flag -v of klog. Without it, what client-go logs is left out: an error is one sentence.
func quietly(root *cobra.Command) {
	log := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(log)
	v := pflag.PFlagFromGoFlag(log.Lookup("v"))
	v.Shorthand, v.Usage = "v", "how much of what is asked is logged: 6 has each request, 8 also what is in it"
	root.PersistentFlags().AddFlag(v)
	root.PersistentPreRun = func(*cobra.Command, []string) {
		if !v.Changed {
			klog.SetSlogLogger(slog.New(slog.DiscardHandler))
		}
	}
}

// prints gives a command the flags that choose a form.
func (c *command) prints(cmd *cobra.Command) *cobra.Command {
	c.output.Add(cmd)
	return cmd
}

// selectsNodes gives a command about nodes the flag -l, and selectsPods one about pods -l and -A. No other
// has them: its answer would be about all.
func (c *command) selectsNodes(cmd *cobra.Command) *cobra.Command {
	cmdutil.AddLabelSelectorFlagVar(cmd, &c.selector)
	return cmd
}

func (c *command) selectsPods(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "the pods of all namespaces")
	return c.selectsNodes(cmd)
}

// watches gives a command the flag -w.
func (c *command) watches(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "after the answer, ask again and again, and print each answer that is another one")
	return cmd
}

// reader returns a Reader of the cluster that the user's flags name.
func (c *command) reader(cmd *cobra.Command) (*collect.Reader, error) {
	config, err := c.config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster to ask: %w: name a kubeconfig with --kubeconfig or a context with --context", err)
	}
	r, err := collect.New(config)
	if err == nil && cmd.Flags().Changed("chunk-size") {
		r.ChunkSize = max(0, c.chunkSize)
	}
	return r, err
}

// namespace returns the namespace of the flags or of the context.
func (c *command) namespace() (string, error) {
	namespace, _, err := c.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("no namespace: %w: name one with -n", err)
	}
	return namespace, nil
}

// document is what json, yaml and templates print.
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

// asks is the function of a command that is done when it has an answer.
type asks func(ctx context.Context, r *collect.Reader, args []string) (*answer, error)

// Between two answers, a command waits so long, or so many times as long as the last one took: it takes a tenth of a
// cluster's time at most.
const (
	pause       = 2 * time.Second
	pauseFactor = 10
)

// answers returns what runs a command. With --watch it prints answers until it is interrupted: on a terminal one in place
// of the other, elsewhere those that differ from the one before in more than ages. After the first one, errors are noted,
// each once, and the command asks again.
func (c *command) answers(f asks) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if _, err := c.output.Printer(); err != nil {
			return err
		}
		r, err := c.reader(cmd)
		if err != nil {
			return err
		}
		write := func(to io.Writer, a *output.Answer) error {
			p, err := c.output.Printer() // of kubectl's, some print their headers once
			if err == nil {
				err = p(to, a)
			}
			if err != nil {
				return fmt.Errorf("cannot print the answer: %w", err)
			}
			return nil
		}
		var last *bytes.Buffer
		show := func(a *answer) error {
			a.table.Value = document{apiVersion, a.kind, a.value, a.problems}
			compared := a.table.WithoutAges()
			if terminal.Width(cmd.OutOrStdout()) > 0 {
				if len(a.table.Rows) > 0 {
					a.table.Below = append(a.table.Below, fmt.Sprintf("Sizes are compressed bytes. What columns mean: %s --help", cmd.CommandPath()))
				}
				compared = &a.table
			}
			var text bytes.Buffer
			if err := write(&text, compared); err != nil || last != nil && bytes.Equal(text.Bytes(), last.Bytes()) {
				return err
			}
			last = &text
			if c.watch {
				terminal.Clear(cmd.OutOrStdout())
			}
			if err := write(cmd.OutOrStdout(), &a.table); err != nil {
				return err
			}
			for _, p := range a.problems { // in json too, but there they are easily missed
				cmd.PrintErrf("note: %s\n", terminal.Line(p.Error(), 1000))
			}
			return nil
		}
		failed := ""
		for {
			began := time.Now()
			a, err := ask(cmd.Context(), r, args, f)
			if c.watch && cmd.Context().Err() != nil {
				return nil //nolint:nilerr // to interrupt it is how a watch ends
			}
			switch {
			case err != nil && last == nil:
				return err
			case err != nil && err.Error() != failed:
				failed = err.Error()
				cmd.PrintErrf("note: %s; asked again every %s or more seldom\n", terminal.Line(failed, 1000), pause)
			case err == nil:
				failed = ""
				if err := show(a); err != nil || !c.watch {
					return err
				}
			}
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(max(pause, pauseFactor*time.Since(began))):
			}
		}
	}
}

// ask returns an answer. What waits for a terminal or a server does not outlive the context: it ends with the program.
func ask(ctx context.Context, r *collect.Reader, args []string, f asks) (*answer, error) {
	type result struct {
		*answer
		error
	}
	done := make(chan result, 1)
	go func() {
		a, err := f(ctx, r, args)
		done <- result{a, err}
	}()
	select {
	case <-ctx.Done():
	case a := <-done:
		if ctx.Err() == nil {
			return a.answer, a.error
		}
	}
	return nil, errors.New("interrupted")
}

// help returns the text of --help: what a command is about, and what its columns mean.
func help(about string, columns []output.Column) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\nColumns:\n", about)
	t := tabwriter.NewWriter(&text, 0, 8, 3, ' ', 0)
	for _, column := range columns {
		only := ""
		if column.Wide {
			only = " (-o wide)"
		}
		fmt.Fprintf(t, "  %s\t%s%s\n", column.Title, column.Means, only)
	}
	_ = t.Flush() // to memory
	return strings.TrimRight(text.String(), "\n")
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
