//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestLifecycle takes n2 from stock CRI-O through upgrade, restarts, crashes,
// removal of an image and the kill switch, with a pod running all the time.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	node := c.Node("n2")
	pod := runPod(t, node)
	base := images.Layer{Name: "lifecycle-base", Size: 2 << 20}
	pushImage := func(name string, more ...images.Layer) string {
		return push(t, "lifecycle/"+name+":v1", build(t, images.Image{Layers: append([]images.Layer{base}, more...)})).Reference
	}
	present := []string{pod}

	ok := t.Run("upgrade from stock", func(t *testing.T) {
		before := []string{
			pushImage("stock", layers("stock", 150_000, 1000)...),
			push(t, "lifecycle/stock-docker:v1", build(t, images.Image{Format: images.Docker, Layers: layers("stock-docker", 90_000)})).Reference,
			push(t, "lifecycle/stock-zstd:v1", build(t, images.Image{Compression: images.Zstd, Layers: layers("stock-zstd", 70_000)})).Reference,
		}
		pull(t, node, before...)
		present = append(present, before...)
		// The node has started with stock CRI-O.
		for where, list := range lists(t, node) {
			for _, image := range list {
				if image.GetSpec() != nil {
					t.Fatalf("%s: stock CRI-O gives %v a spec: %v", where, image.GetRepoTags(), image.GetSpec())
				}
			}
		}
		pulls := registryRequests(t, present...)
		must(t, node.Runtime().Restart(t.Context(), func(crio *cluster.Component) { crio.Flavour = cluster.Patched }))
		checkNames(t, node, present...)
		if after := registryRequests(t, present...); after != pulls {
			t.Errorf("the registry served %d requests for these images during the upgrade", after-pulls)
		}
		checkCRI(t, node, present...)
	}) && t.Run("skopeo", func(t *testing.T) {
		for name, spec := range map[string]images.Image{
			"skopeo":        {Layers: append([]images.Layer{base}, layers("skopeo", 110_000)...)},
			"skopeo-docker": {Format: images.Docker, Layers: layers("skopeo-docker", 1<<20)},
		} {
			pushed := push(t, "lifecycle/"+name+":v1", build(t, spec)).Reference
			_, err := node.Exec(t.Context(), "skopeo", "--insecure-policy", "copy", "--src-tls-verify=false",
				"docker://"+pushed, "containers-storage:"+pushed)
			must(t, err)
			present = append(present, pushed)
		}
		checkCRI(t, node, present...)
		waitNodeRegistry(t, node, present...)
	}) && t.Run("restart of CRI-O", func(t *testing.T) {
		must(t, node.Runtime().Restart(t.Context()))
		checkCRI(t, node, present...)
	}) && t.Run("kill CRI-O during a pull", func(t *testing.T) {
		big := pushImage("interrupted", layers("interrupted", 4<<20, 12<<20)...)
		killDuringPull(t, node, big)
		must(t, node.Runtime().Start(t.Context()))
		// The images from before are there, and nothing that was not pulled.
		checkNames(t, node, present...)
		checkCRI(t, node, present...)
		pull(t, node, big)
		present = append(present, big)
		checkCRI(t, node, present...)
	}) && t.Run("kill the kubelet", func(t *testing.T) {
		must(t, node.Kubelet().Kill(t.Context()))
		missed := pushImage("missed", layers("missed", 40_000)...)
		pull(t, node, missed)
		present = append(present, missed)
		must(t, node.Kubelet().Start(t.Context()))
		must(t, c.WaitNodeReady(t.Context(), node.Name))
		waitNodeRegistry(t, node, present...)
		checkManagedFields(t, node.Name)
	}) && t.Run("removal", func(t *testing.T) {
		gone := present[1]
		layers := registryLayers(t, gone)[gone]
		_, err := node.Exec(t.Context(), "crictl", "rmi", gone)
		must(t, err)
		present = slices.Delete(present, 1, 2)
		checkNames(t, node, present...)
		checkCRI(t, node, present...)
		// The base layer is still there, in other images.
		for _, others := range registryLayers(t, present...) {
			for digest := range others {
				delete(layers, digest)
			}
		}
		if len(layers) == 0 {
			t.Fatal("the image had no layer of its own: the test is wrong")
		}
		livetest.Eventually(t, settled, "the Node states the image no more", func(ctx context.Context) error {
			list, err := nodeimages.Get(ctx, client, node.Name)
			if err != nil {
				return err
			}
			if _, still := livetest.FindNode(list, gone); still {
				return errors.New("the image is still there")
			}
			for _, image := range list {
				for _, layer := range image.Layers {
					if _, still := layers[layer.Digest]; still {
						return fmt.Errorf("layer %s is still there, of %v", layer.Digest, image.Names)
					}
				}
			}
			return nil
		})
		waitNodeRegistry(t, node, present...)
	}) && t.Run("kill switch", func(t *testing.T) {
		must(t, node.Runtime().Restart(t.Context(), environment("CRIO_IMAGE_LAYERS=off")))
		checkNames(t, node, present...)
		none := map[string]livetest.Layers{}
		for where, list := range lists(t, node) {
			for _, reference := range present {
				none[reference] = nil
				if image := livetest.FindCRI(list, reference); image.GetSpec() != nil {
					t.Errorf("%s: %s has a spec: %v", where, reference, image.GetSpec())
				}
			}
		}
		for _, reference := range present {
			if annotations := statusOf(t, node, reference).GetSpec().GetAnnotations(); len(annotations) > 0 {
				t.Errorf("ImageStatus of %s has annotations: %v", reference, annotations)
			}
		}
		checkLogged(t, node.Runtime(), "CRIO_IMAGE_LAYERS=off")
		waitNode(t, node, none)
	}) && t.Run("unknown value of the switch", func(t *testing.T) {
		must(t, node.Runtime().Restart(t.Context(), environment("CRIO_IMAGE_LAYERS=perhaps")))
		checkCRI(t, node, present...)
		checkLogged(t, node.Runtime(), `"perhaps\" of CRIO_IMAGE_LAYERS`)
		waitNodeRegistry(t, node, present...)
	})
	if !ok {
		t.Log("the steps after a failed one did not run: they rely on it")
	}
}

func environment(pairs ...string) func(*cluster.Component) {
	return func(component *cluster.Component) { component.Env = pairs }
}

// checkNames checks that CRI-O lists these images, the pause image, and
// no others.
func checkNames(t *testing.T, node *cluster.Node, references ...string) {
	t.Helper()
	list, err := livetest.List(t.Context(), node)
	must(t, err)
	var got []string
	for _, image := range list {
		if len(image.GetRepoTags()) == 0 {
			got = append(got, fmt.Sprintf("untagged %s %v", image.GetId(), image.GetRepoDigests()))
		}
		got = append(got, image.GetRepoTags()...)
	}
	want := append(slices.Clone(references), reference("pause:1"))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: images\n  %s\nwant\n  %s", node.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// registryRequests counts the requests that the registry has answered for the
// repositories of these images, other than this test's own.
func registryRequests(t *testing.T, references ...string) int {
	t.Helper()
	log, err := os.ReadFile(c.Registry().AccessLog)
	must(t, err)
	count := 0
	for line := range strings.Lines(string(log)) {
		for _, reference := range references {
			_, path, _ := strings.Cut(reference, "/")
			repository, _, _ := strings.Cut(path, ":")
			if strings.Contains(line, "/v2/"+repository+"/") && strings.Contains(line, "cri-o/") {
				count++
			}
		}
	}
	if count == 0 {
		t.Fatalf("no request of CRI-O in %s: the test is wrong", c.Registry().AccessLog)
	}
	return count
}

// killDuringPull kills CRI-O while it downloads a layer of the image.
func killDuringPull(t *testing.T, node *cluster.Node, reference string) {
	t.Helper()
	must(t, node.SetBandwidth(16_000_000))
	defer func() { must(t, node.SetBandwidth(0)) }()
	result := make(chan error, 1)
	go func() {
		_, err := livetest.Pull(context.WithoutCancel(t.Context()), node, reference)
		result <- err
	}()
	before := received(t, node)
	livetest.Eventually(t, time.Minute, "CRI-O downloads a layer", func(context.Context) error {
		select {
		case err := <-result:
			t.Fatalf("the pull has ended before it could be interrupted: %v", err)
		default:
		}
		if n := received(t, node) - before; n < 2<<20 {
			return fmt.Errorf("%s has received %d bytes", node.Name, n)
		}
		return nil
	})
	must(t, node.Runtime().Kill(t.Context()))
	if err := <-result; err == nil {
		t.Fatal("the pull was not interrupted")
	}
}

// received returns how many bytes have come over the node's network link.
func received(t *testing.T, node *cluster.Node) int64 {
	t.Helper()
	// The network of the process is the node's.
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", node.Runtime().PID()))
	must(t, err)
	for line := range strings.Lines(string(table)) {
		if name, counters, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == "eth0" {
			n, err := strconv.ParseInt(strings.Fields(counters)[0], 10, 64)
			must(t, err)
			return n
		}
	}
	t.Fatalf("no link eth0 in\n%s", table)
	return 0
}

func checkLogged(t *testing.T, process *cluster.Process, text string) {
	t.Helper()
	log, err := os.ReadFile(process.Log())
	must(t, err)
	if !strings.Contains(string(log), text) {
		t.Errorf("%s does not have %q", process.Log(), text)
	}
}
