package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/peers"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// peersOptions are the flags of what passes layers between nodes.
type peersOptions struct {
	kubeconfig, token, handover string
	folder, socket, ip, zone    string
	port, bytes                 int
	address                     string
}

func newPeersCommand() *cobra.Command {
	o := &peersOptions{}
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Pass layers between nodes: serve those that CRI-O keeps, and ask other nodes for those that it lacks",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without, the pod's service account")
	f.StringVar(&o.token, "token-file", "/var/run/secrets/kubernetes.io/serviceaccount/token", "file with the token of the service account, which names the node")
	f.StringVar(&o.handover, "handover", handoverFolder, "folder that is shared with the publisher")
	f.StringVar(&o.folder, "folder", "/var/lib/containers/storage/layer-peers", "folder in which CRI-O keeps layers")
	f.StringVar(&o.socket, "socket", "/run/containers/storage/layer-peers/agent.sock", "socket that CRI-O asks")
	f.StringVar(&o.ip, "ip", "", "IP address at which other nodes reach this one")
	f.StringVar(&o.zone, "zone", "", "zone of this node; nodes of that zone are asked first")
	f.IntVar(&o.port, "port", 9451, "port that serves other nodes")
	f.IntVar(&o.bytes, "bytes-per-second", 64<<20, "bytes a second that are sent to other nodes, at most")
	f.StringVar(&o.address, "bind-address", ":9452", "address that serves /metrics, /livez and /readyz")
	return cmd
}

func (o *peersOptions) validate() error {
	if o.bytes < peers.LeastBytes {
		return fmt.Errorf("--bytes-per-second=%d: want %d or more", o.bytes, peers.LeastBytes)
	}
	if net.ParseIP(o.ip) == nil {
		return fmt.Errorf("--ip=%s: want an IP address", o.ip)
	}
	if o.port < 1 || o.port > 65535 {
		return fmt.Errorf("--port=%d: want a number from 1 to 65535", o.port)
	}
	return nil
}

func (o *peersOptions) run(ctx context.Context) error {
	if err := o.validate(); err != nil {
		return err
	}
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	config.BearerTokenFile = o.token
	node, err := identityIn(o.token)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := peers.NewMetrics(registry)
	identity, err := peers.NewIdentity()
	if err != nil {
		return err
	}
	events, err := peers.NewEvents(config, node.Name)
	if err != nil {
		return err
	}
	index := peers.NewIndex(node.Name, o.zone)
	server, err := peers.NewServer(identity, index, o.folder, o.bytes, metrics)
	if err != nil {
		return fmt.Errorf("--folder=%s: %w", o.folder, err)
	}
	port := strconv.Itoa(o.port)
	public, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	defer public.Close()
	if err := os.Remove(o.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--socket: %w", err)
	}
	local, err := (&net.ListenConfig{}).Listen(ctx, "unix", o.socket)
	if err != nil {
		return fmt.Errorf("--socket=%s: %w", o.socket, err)
	}
	defer local.Close()
	return observed(ctx, o.address, handler(registry, func() error { return nil }), func(ctx context.Context) error {
		all, ctx := errgroup.WithContext(ctx)
		all.Go(func() error { return index.Run(ctx, config) })
		all.Go(func() error { return server.Serve(ctx, public) })
		all.Go(func() error { return peers.NewAsker(identity, index, metrics, events).ServeLocal(ctx, local) })
		all.Go(func() error {
			out, address := handover.NewWriter(o.handover), net.JoinHostPort(net.ParseIP(o.ip).String(), port)
			identity.Run(ctx, func(keys []string) error {
				err := out.WritePeer(&v1alpha1.NodePeer{Address: address, Keys: keys, Zone: o.zone})
				if err != nil {
					klog.FromContext(ctx).Error(err, "Other nodes do not learn the key of this one; trying again")
				}
				return err
			})
			return nil
		})
		return all.Wait()
	})
}
