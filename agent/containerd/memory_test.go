package containerd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/agent/handover"
)

// The child of TestTenThousandImages finds here where the daemon serves, and how many bytes it
// may take.
const (
	socketKey = "TEST_CONTAINERD_SOCKET"
	limitKey  = "TEST_MEMORY_LIMIT"
)

const manyImages = 10_000

// 10,000 images, each with an index, three records and ten layers, are read and handed over in
// the memory that the DaemonSet gives. The child is what reads, without the daemon.
func TestTenThousandImages(t *testing.T) {
	if socket := os.Getenv(socketKey); socket != "" {
		readsMany(t, socket)
		return
	}
	if os.Getenv("FULL") == "" {
		t.Skip("takes some ten seconds of a processor: FULL=1, as make test-all sets it")
	}
	d := start(t)
	for i := range manyImages {
		name, layers := fmt.Sprint("image-", i), []string{}
		for l := range 5 {
			layers = append(layers, fmt.Sprintf("base-%d-%d", i%100, l))
		}
		for l := range 5 {
			layers = append(layers, fmt.Sprintf("own-%d-%d", i, l))
		}
		d.fetched(layers...)
		target := d.index("index-"+name, digest("never-"+name), d.manifest(name, layers...))
		d.unpacked(name, "overlayfs")
		repository := "registry.example.com/a-team/" + name
		d.record(target, repository+":v1", repository+"@"+target, digest("config of "+name))
	}
	shipped := reader(t)
	limit := shipped.Resources.Limits[corev1.ResourceMemory]
	program, err := os.Executable()
	must(t, err)
	child := exec.CommandContext(t.Context(), program, "-test.run=^TestTenThousandImages$", "-test.v")
	child.Env = append(os.Environ(), socketKey+"="+d.socket, fmt.Sprint(limitKey, "=", limit.Value()), "GOGC=25") // as cmd/layer-agent sets it
	for _, variable := range shipped.Env {
		child.Env = append(child.Env, variable.Name+"="+variable.Value)
	}
	output, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	t.Logf("%s", output)
}

// reader returns the container that reads, as it is shipped.
func reader(t *testing.T) corev1.Container {
	t.Helper()
	text, err := os.ReadFile("../../deploy/agent/base/daemonset.yaml")
	must(t, err)
	var set appsv1.DaemonSet
	must(t, yaml.UnmarshalStrict(text, &set))
	for _, c := range set.Spec.Template.Spec.Containers {
		if c.Name == "read" && len(c.Env) > 0 && c.Resources.Limits.Memory().Value() > 0 {
			return c
		}
	}
	t.Fatal("no container read with a limit of memory")
	return corev1.Container{}
}

// readsMany is the child.
func readsMany(t *testing.T, socket string) {
	r, err := NewReader(socket, "k8s.io")
	must(t, err)
	defer r.Close()
	writer := handover.NewWriter(t.TempDir())
	for range 3 {
		result, err := r.Read(t.Context())
		must(t, err)
		spec := result.Contents.Spec()
		if len(spec.Images) != manyImages || len(spec.Layers) != 100*5+manyImages*5 || len(result.Skipped) > 0 || result.Incomplete {
			t.Fatalf("%d images, %d layers, skipped %v", len(spec.Images), len(spec.Layers), result.Skipped)
		}
		must(t, writer.WriteReport(&handover.Report{Spec: spec}))
	}
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, after, _ := bytes.Cut(status, []byte("\nVmHWM:"))
	fields := strings.Fields(string(after))
	if len(fields) == 0 {
		t.Fatalf("no peak of memory in %s", status)
	}
	peak, err := strconv.ParseInt(fields[0], 10, 64) // KiB
	must(t, err)
	limit, err := strconv.ParseInt(os.Getenv(limitKey), 10, 64)
	must(t, err)
	if t.Logf("%d images took %d MiB at most", manyImages, peak>>10); peak<<10 > limit {
		t.Errorf("it took %d MiB, the container has %d", peak>>10, limit>>20)
	}
}
