package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/agent/containerd"
	"github.com/layer-locality/layer-locality/agent/crio"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// The values of --runtime.
const (
	auto           = "auto"
	withContainerd = "containerd"
	withCRIO       = "cri-o"
)

// readOptions are the flags of the reader.
type readOptions struct {
	runtime   string
	socket    string
	namespace string
	storage   []string
	handover  string
	// minLayerBytes is the size of layers from which on they are listed.
	minLayerBytes int64
}

func newReadCommand() *cobra.Command {
	o := &readOptions{}
	cmd := &cobra.Command{
		Use:   "read",
		Short: "Read what the container runtime holds; needs its socket or its folder, no token and no network",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.runtime, "runtime", auto, "container runtime: containerd, cri-o, or auto for the one that is there")
	f.StringVar(&o.socket, "socket", "/run/containerd/containerd.sock", "socket of containerd")
	f.StringVar(&o.namespace, "namespace", "k8s.io", "namespace of containerd in which the kubelet's images are; moby with Docker Engine 29 or later")
	f.StringSliceVar(&o.storage, "storage", []string{"/var/lib/containers/storage"}, "root of CRI-O's containers-storage; further ones are additional image stores")
	f.StringVar(&o.handover, "handover", handoverFolder, "folder that is shared with the publisher")
	f.Int64Var(&o.minLayerBytes, "min-layer-bytes", defaultMinLayerBytes, "smallest layer that is listed, in compressed bytes; all are listed where layers are used in chains")
	return cmd
}

func (o *readOptions) run(ctx context.Context) error {
	if o.minLayerBytes < 0 || o.minLayerBytes > v1alpha1.MaxLayerBytes {
		return fmt.Errorf("--min-layer-bytes=%d: want a number from 0 to %d", o.minLayerBytes, int64(v1alpha1.MaxLayerBytes))
	}
	runtime, err := o.reader()
	if err != nil {
		return err
	}
	if c, ok := runtime.(*containerd.Reader); ok {
		defer c.Close()
	}
	if info, err := os.Stat(o.handover); err != nil || !info.IsDir() {
		return fmt.Errorf("--handover=%s is no folder: mount one that the publisher has too", o.handover)
	}
	return (&read.Loop{Runtime: runtime, Writer: handover.NewWriter(o.handover), MinLayerBytes: o.minLayerBytes}).Run(ctx)
}

// reader returns the reader of the runtime that was chosen, or of the one that is there.
func (o *readOptions) reader() (read.Runtime, error) {
	if len(o.storage) == 0 {
		return nil, fmt.Errorf("--storage is empty: want the root of a containers-storage")
	}
	switch o.runtime {
	case withContainerd:
		return containerd.NewReader(o.socket, o.namespace)
	case withCRIO:
		return crio.NewReader(o.storage...), nil
	case auto:
	default:
		return nil, fmt.Errorf("--runtime=%s: want %s, %s or %s", o.runtime, auto, withContainerd, withCRIO)
	}
	folder := filepath.Join(o.storage[0], crio.Folder)
	socket, store := exists(o.socket), exists(folder)
	switch {
	case socket && store:
		return nil, fmt.Errorf("both %s and %s are there: choose one with --runtime", o.socket, folder)
	case socket:
		return containerd.NewReader(o.socket, o.namespace)
	case store:
		return crio.NewReader(o.storage...), nil
	}
	return nil, fmt.Errorf("neither %s nor %s is there: set --runtime, --socket or --storage to what this node has, and mount it", o.socket, folder)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
