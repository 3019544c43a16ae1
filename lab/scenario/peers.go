package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// WithPeers has CRI-O of a node exchange layers with other nodes; for cluster.Config.PerNode.
func WithPeers(_ string, crio, _ *cluster.Component) {
	crio.Env = []string{"CRIO_LAYER_PEERS=on"}
	TemporaryInStore("", crio, nil)
}

// TemporaryInStore has CRI-O of a node download layers to the store's file system, as WithPeers does; for
// cluster.Config.PerNode. After RoomForLayers, the store is a mount of its own, into which no link leads from /var/tmp.
func TemporaryInStore(_ string, crio, _ *cluster.Component) {
	crio.Config = map[string]any{"crio": map[string]any{"image": map[string]any{"big_files_temporary_dir": "/var/lib/containers/storage"}}}
}

// RoomForLayers gives nodes file systems for images that have room, whatever is free on this machine: CRI-O keeps
// no layers where less than a quarter is free.
func RoomForLayers(ctx context.Context, c *cluster.Cluster) error {
	for _, node := range c.Nodes() {
		if err := SmallStorage(ctx, node, 4<<30); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	return nil
}

// InstallAgent installs layer-agent on nodes with CRI-O as a user does, but for the times, with components of deploy/agent.
// root is the folder of the repository.
func (l *Lab) InstallAgent(ctx context.Context, root string, components ...string) error {
	image, err := PushProgram(ctx, l.Cluster, root, Agent)
	if err != nil {
		return err
	}
	agent, settings := filepath.Join(root, "deploy", "agent"), map[string]any{}
	settings["images"] = []any{kustomize.Image(kustomize.Shipped+Agent, image.Reference+"@"+image.Digest.String())}
	for i := range components {
		components[i] = filepath.Join(agent, "components", components[i])
	}
	if len(components) > 0 {
		settings["components"] = components
	}
	built, err := kustomize.Build(filepath.Join(agent, "cri-o"), settings)
	if err != nil {
		return err
	}
	if err := AgentArgs(built, "publish", "--renew=10s", "--spread=1s"); err != nil {
		return err
	}
	return l.Apply(ctx, built...)
}

// Serves waits until the NodeLayers of a node have an image and, if it is to serve other nodes, where.
func (l *Lab) Serves(ctx context.Context, node, image string, peer bool) error {
	return Poll(ctx, func(ctx context.Context) error {
		var of v1alpha1.NodeLayers
		if err := l.Objects.Get(ctx, client.ObjectKey{Name: node}, &of); err != nil {
			return err
		}
		if peer && of.Spec.Peer == nil {
			return fmt.Errorf("%s serves no other nodes", node)
		}
		for _, text := range of.Spec.Images {
			if slices.Contains(strings.Fields(text), image) {
				return nil
			}
		}
		return fmt.Errorf("%s is not among the %d images of %s", image, len(of.Spec.Images), node)
	})
}
