// Command localcluster starts and stops a real Kubernetes cluster on this
// machine; package cluster describes what it is made of.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/schedulerconfig"
	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := terminal.Run(ctx, command())
	stop()
	os.Exit(code)
}

// options are the flags that name a cluster.
type options struct{ name, dir string }

func (o *options) folder() string {
	if o.dir != "" {
		return o.dir
	}
	return folder.Default(o.name)
}

func command() *cobra.Command {
	o := new(options)
	root := &cobra.Command{
		Use:   "localcluster",
		Short: "A real Kubernetes cluster on this machine",
		Long:  "localcluster starts and stops a real Kubernetes cluster on one Linux machine, as root:\netcd, a control plane, an image registry, and nodes with CRI-O and a kubelet each.",
	}
	root.PersistentFlags().StringVar(&o.name, "name", "demo", "name of the cluster")
	root.PersistentFlags().StringVar(&o.dir, "dir", "", "folder for everything of the cluster (default "+folder.Default("<name>")+")")
	root.AddCommand(up(o), down(o), status(o), restartScheduler(o), execute(o))
	return root
}

func up(o *options) *cobra.Command {
	var config cluster.Config
	var flavour, bandwidth, schedulerConfig string
	var gates map[string]string
	c := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster, leave it running and print how to use it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config.Name, config.Dir, config.Flavour = o.name, o.dir, cluster.Flavour(flavour)
			var err error
			if config.Bandwidth, err = cluster.ParseBandwidth(bandwidth); err != nil {
				return err
			}
			if schedulerConfig != "" {
				if config.Scheduler.Config, err = schedulerconfig.Read(schedulerConfig); err != nil {
					return fmt.Errorf("--scheduler-config: %w", err)
				}
			}
			parsed, err := parseGates(gates)
			if err != nil {
				return err
			}
			for _, component := range []*cluster.Component{&config.Kubelet, &config.APIServer, &config.ControllerManager, &config.Scheduler} {
				component.FeatureGates = parsed
			}
			config.Logf = func(format string, args ...any) {
				fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
			}
			running, err := cluster.Start(cmd.Context(), config)
			if err != nil {
				return err
			}
			if err := running.Detach(); err != nil {
				return errors.Join(err, running.Stop(context.WithoutCancel(cmd.Context())))
			}
			printUsage(cmd.OutOrStdout(), running)
			return running.Close()
		},
	}
	f := c.Flags()
	f.IntVar(&config.Nodes, "nodes", 3, "number of nodes")
	f.StringVar(&bandwidth, "bandwidth", "0", `what each node can download, as in "100mbit"; 0 for no limit`)
	f.StringVar(&flavour, "flavour", string(cluster.Patched), "build of CRI-O and the Kubernetes components: stock or patched")
	f.StringVar(&config.BinDir, "bin-dir", "", "folder that holds stock, patched and tools (default: _build/bin of this repository)")
	f.StringVar(&config.LogDir, "log-dir", "", "folder for log files that outlive the cluster (default: log in the cluster's folder)")
	f.StringToStringVar(&gates, "feature-gates", nil, "feature gates of all Kubernetes components, as in Name=true,Other=false")
	f.StringVar(&schedulerConfig, "scheduler-config", "", "KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) of the kube-scheduler; its kubeconfig and leader election are the cluster's own")
	f.StringArrayVar(&config.Scheduler.Args, "scheduler-arg", nil, "further argument of the kube-scheduler, as in --scheduler-arg=--v=4; may be repeated")
	f.StringVar((*string)(&config.ContainerRuntime), "container-runtime", string(cluster.CRIO), "container runtime of the nodes: crio, containerd, containerd-1.7 or containerd-2.4")
	f.BoolVar(&config.RuntimeOnly, "runtime-only", false, "only a registry and nodes with a container runtime: no control plane, no kubelets")
	return c
}

func parseGates(in map[string]string) (map[string]bool, error) {
	out := make(map[string]bool, len(in))
	for name, value := range in {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("feature gate %s=%s: want true or false", name, value)
		}
		out[name] = on
	}
	return out, nil
}

// printUsage prints lines to paste into a shell.
func printUsage(w io.Writer, c *cluster.Cluster) {
	if c.APIServer() != nil {
		fmt.Fprintf(w, "export KUBECONFIG=%s\n", c.Kubeconfig())
	}
	fmt.Fprintf(w, "export REGISTRY=%s  # plain HTTP\n", c.Registry().Address)
	for _, node := range c.Nodes() {
		fmt.Fprintf(w, "%s --runtime-endpoint unix://%s images  # %s\n", c.Tool("crictl"), node.CRISocket(), node.Name)
	}
	fmt.Fprintf(w, "# logs: %s\n", c.LogDir())
}

func down(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster and remove all of it, also what a killed start left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			begin := time.Now()
			// Continue: an interrupted removal would leave the rest to the
			// next one.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Minute)
			defer cancel()
			if err := cluster.Clean(ctx, o.folder()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%5.1f s  nothing is left of the cluster in %s\n", time.Since(begin).Seconds(), o.folder())
			return nil
		},
	}
}

func status(o *options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what runs; fails unless all of it does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Open(o.folder())
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = terminal.WriteJSON(cmd.OutOrStdout(), s)
			} else {
				err = printStatus(cmd.OutOrStdout(), s)
			}
			if down := s.Down(); err == nil && len(down) > 0 {
				err = fmt.Errorf("down: %s", strings.Join(down, ", "))
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printStatus(w io.Writer, s *cluster.Status) error {
	fmt.Fprintf(w, "cluster %s in %s, network %s, registry %s\n", s.Name, s.Dir, s.Subnet, s.Registry)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tBINARY\tLOG")
	for _, p := range s.Processes {
		pid := "down"
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", p.Name, pid, p.Binary, p.Log)
	}
	return table.Flush()
}

func restartScheduler(o *options) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "restart-scheduler",
		Short: "Restart kube-scheduler with another configuration",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fields, err := schedulerconfig.Read(config)
			if err != nil {
				return fmt.Errorf("--config: %w", err)
			}
			c, err := cluster.Open(o.folder())
			if err != nil {
				return err
			}
			defer c.Close()
			return c.Scheduler().Restart(cmd.Context(), func(s *cluster.Component) { s.Config = fields })
		},
	}
	c.Flags().StringVar(&config, "config", "", "KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1); its kubeconfig and leader election are the cluster's own")
	_ = c.MarkFlagRequired("config") // there is that flag
	return c
}

func execute(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:                   "exec NODE [--] COMMAND [ARG...]",
		Short:                 "Run a command inside a node, as in: exec n1 crictl images",
		Args:                  cobra.MinimumNArgs(2),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Open(o.folder())
			if err != nil {
				return err
			}
			defer c.Close()
			node := c.Node(args[0])
			if node == nil {
				return fmt.Errorf("no node %q in the cluster in %s", args[0], filepath.Clean(o.folder()))
			}
			inside := node.Command(args[1], args[2:]...)
			inside.Stdin, inside.Stdout, inside.Stderr = os.Stdin, os.Stdout, os.Stderr //nolint:forbidigo // the user's own command: it may need a terminal
			err = node.Run(cmd.Context(), inside)
			if exit := new(exec.ExitError); errors.As(err, &exit) {
				os.Exit(max(1, exit.ExitCode()))
			}
			return err
		},
	}
	// Flags after the command belong to the command.
	c.Flags().SetInterspersed(false)
	return c
}
