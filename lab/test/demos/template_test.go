//go:build e2e

package demos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/demos/steps"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestFewest starts the scheduler that the steps of scheduler/template make, with the configuration of the text: it places
// a pod on the node with fewer pods.
func TestFewest(t *testing.T) {
	livetest.Long(t, "the steps, in lab/test/template")
	prepare(t)
	folder := t.TempDir()
	var printed bytes.Buffer
	if err := steps.Follow(t.Context(), root, folder, &printed); err != nil {
		t.Fatalf("%v\n%s", err, &printed)
	}
	text, err := os.ReadFile(filepath.Join(root, steps.Readme))
	must(t, err)
	config := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if config == nil {
		t.Fatal("the text has no configuration")
	}
	file := filepath.Join(folder, "fewest.yaml")
	must(t, os.WriteFile(file, bytes.ReplaceAll(config[1], []byte("/etc/kubernetes/scheduler.conf"), []byte(c.Kubeconfig())), 0o600))
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	scheduler := exec.CommandContext(ctx, filepath.Join(folder, "fewest-scheduler"), "--config", file, "--secure-port=0", "-v=10")
	scheduler.Stdout, scheduler.Stderr = &log, &log
	must(t, scheduler.Start())
	end := func() {
		cancel()
		_ = scheduler.Wait() // killed
	}
	defer end()

	lab, err := scenario.NewLab(c)
	must(t, err)
	pods := []scenario.Pod{
		{Name: "other-1", Image: "busybox", Node: "n1"}, {Name: "other-2", Image: "busybox", Node: "n1"},
		{Name: "fewest", Image: "busybox", Scheduler: "fewest"},
	}
	for _, pod := range pods {
		livetest.RemoveAtEnd(t, lab, pod.Name)
		must(t, lab.Submit(t.Context(), pod))
	}
	nodes, err := lab.Placed(t.Context(), "fewest")
	must(t, err)
	livetest.Eventually(t, time.Minute, "the event names the scheduler", func(ctx context.Context) error {
		events, err := lab.Client.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled,regarding.name=fewest"})
		if err == nil && (len(events.Items) == 0 || events.Items[0].ReportingController != "fewest") {
			err = fmt.Errorf("%+v", events.Items)
		}
		return err
	})
	end()
	if nodes["fewest"] != "n2" || !strings.Contains(log.String(), `plugin="Fewest"`) {
		t.Errorf("n1 has two pods, and the pod went to %s:\n%s", nodes["fewest"], &log)
	}
}
