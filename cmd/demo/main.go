// Command demo shows on a real cluster what this project is about: the layers
// of images, from the registry's manifest over CRI-O and the kubelet to the
// Node objects that schedulers see.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/cluster"
	"github.com/layer-locality/layer-locality/cluster/images"
	"github.com/layer-locality/layer-locality/internal/nodelayers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var logDir string
	command := &cobra.Command{
		Use:           "demo",
		Short:         "Show image layers from the registry to NodeStatus on a real three-node cluster",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), logDir)
		},
	}
	command.Flags().StringVar(&logDir, "log-dir", "_out/demo/log", "folder for the log files, which stay")
	err := command.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: FAILED: %v\n", err)
		fmt.Fprintf(os.Stderr, "demo: the logs of all components are in %s\n", logDir)
		os.Exit(1)
	}
}

// say prints a step with the time since the start.
var say = func() func(string, ...any) {
	begin := time.Now()
	return func(format string, args ...any) {
		fmt.Printf("%5.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
}()

func run(ctx context.Context, logDir string) (err error) {
	logDir, err = filepath.Abs(logDir)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(logDir); err != nil { // of an earlier run
		return err
	}
	say("starting three nodes, each with its own patched CRI-O and kubelet")
	c, err := cluster.Start(ctx, cluster.Config{
		Name:    "demo",
		LogDir:  logDir,
		Flavour: cluster.Patched,
		Logf:    func(format string, args ...any) { fmt.Printf("         cluster "+format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	defer func() {
		say("removing the cluster")
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, c.Stop(cleanup))
		if err == nil {
			say("nothing is left")
			fmt.Println("demo: ok: layers of two images from the registry, over CRI-O and the kubelet, in the status of their nodes")
		}
	}()
	return show(ctx, c)
}

// placement is an image and the node that pulls it.
type placement struct {
	node  *cluster.Node
	image *images.Pushed
}

func show(ctx context.Context, c *cluster.Cluster) error {
	base := images.Layer{Name: "base", Size: 20 << 20}
	placements := []placement{{node: c.Node("n1")}, {node: c.Node("n2")}}
	for i, spec := range []struct {
		name string
		own  images.Layer
	}{
		{"shop", images.Layer{Name: "shop", Size: 6 << 20}},
		{"blog", images.Layer{Name: "blog", Size: 3 << 20}},
	} {
		image, err := images.Build(images.Image{Layers: []images.Layer{base, spec.own}})
		if err != nil {
			return err
		}
		reference := c.Registry().Address + "/" + spec.name + ":v1"
		if placements[i].image, err = images.Push(ctx, reference, image); err != nil {
			return err
		}
		say("pushed %s: %s", reference, describe(placements[i].image.Layers))
	}
	shared := slices.IndexFunc(placements[0].image.Layers, func(d v1.Descriptor) bool {
		return slices.ContainsFunc(placements[1].image.Layers, func(e v1.Descriptor) bool {
			return d.Digest == e.Digest && d.Size > base.Size
		})
	})
	if shared < 0 {
		return errors.New("the two images share no base layer")
	}
	base0 := placements[0].image.Layers[shared]
	say("both images have the layer %s", base0.Digest)

	for _, p := range placements {
		say("%s pulls %s", p.node.Name, p.image.Reference)
		if _, err := p.node.Exec(ctx, "crictl", "pull", p.image.Reference); err != nil {
			return err
		}
	}
	for _, p := range placements {
		if err := showCRI(ctx, p, base0); err != nil {
			return err
		}
	}
	say("the kubelets list images every 30 s: waiting for the Node objects")
	for _, p := range placements {
		if err := showNode(ctx, c, p, base0); err != nil {
			return err
		}
	}
	return nil
}

func describe(layers []v1.Descriptor) string {
	var text []string
	for _, layer := range layers {
		text = append(text, fmt.Sprintf("%s %.1f MB", layer.Digest.Hex[:12], float64(layer.Size)/1e6))
	}
	return strings.Join(text, ", ")
}

// criImage is what the demo shows of an image in crictl's JSON.
type criImage struct {
	RepoTags []string `json:"repoTags"`
	Spec     struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"spec"`
}

// showCRI prints what CRI-O reports of the image and compares it with the
// registry's manifest.
func showCRI(ctx context.Context, p placement, shared v1.Descriptor) error {
	out, err := p.node.Exec(ctx, "crictl", "images", "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Images []criImage `json:"images"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return fmt.Errorf("%s: crictl images -o json: %w", p.node.Name, err)
	}
	i := slices.IndexFunc(list.Images, func(image criImage) bool { return slices.Contains(image.RepoTags, p.image.Reference) })
	if i < 0 {
		return fmt.Errorf("%s: crictl images does not list %s; see %s", p.node.Name, p.image.Reference, p.node.CRIO().Log())
	}
	fmt.Printf("\n%s# crictl images -o json    (%s)\n%s\n\n", p.node.Name, p.image.Reference, mark(list.Images[i], shared))
	for _, layer := range p.image.Layers {
		key, want := "imageLayer."+layer.Digest.String(), fmt.Sprint(layer.Size)
		if got := list.Images[i].Spec.Annotations[key]; got != want {
			return fmt.Errorf("%s: %s has %q for %s, the registry's manifest says %s; see %s",
				p.node.Name, p.image.Reference, got, key, want, p.node.CRIO().Log())
		}
	}
	return nil
}

// showNode prints what the Node says of the image once it says it.
func showNode(ctx context.Context, c *cluster.Cluster, p placement, shared v1.Descriptor) error {
	const limit, tick = 90 * time.Second, 10 * time.Second
	begin, told := time.Now(), time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := c.Client()
	if err != nil {
		return err
	}
	for {
		all, err := nodelayers.Get(ctx, client, p.node.Name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(image nodelayers.Image) bool { return slices.Contains(image.Names, p.image.Reference) })
		if i >= 0 && slices.ContainsFunc(all[i].Layers, func(l nodelayers.Layer) bool {
			return l.Digest == shared.Digest.String() && l.SizeBytes == shared.Size
		}) {
			fmt.Printf("\n$ kubectl get node %s -o json | jq '.status.images[%d]'\n%s\n\n", p.node.Name, i, mark(all[i], shared))
			say("%s: the layers of %s are in its Node object (those below 1 MiB are left out)", p.node.Name, p.image.Reference)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s node %s does not state layer %s of %s; see %s",
				limit, p.node.Name, shared.Digest, p.image.Reference, p.node.Kubelet().Log())
		case <-time.After(500 * time.Millisecond):
			if time.Since(told) >= tick {
				told = time.Now()
				say("%s: not there yet after %.0f s of at most %s", p.node.Name, time.Since(begin).Seconds(), limit)
			}
		}
	}
}

// mark prints v as JSON and points at the lines with the shared layer.
func mark(v any, shared v1.Descriptor) string {
	out, err := json.MarshalIndent(v, "  ", "  ")
	if err != nil {
		return err.Error()
	}
	lines := strings.Split("  "+string(out), "\n")
	for i, line := range lines {
		if strings.Contains(line, shared.Digest.String()) {
			lines[i] += "   <-- shared"
		}
	}
	return strings.Join(lines, "\n")
}
