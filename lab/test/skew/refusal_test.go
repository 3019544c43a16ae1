//go:build e2e

package skew

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestRefusal runs a stock and a patched kubelet, n1 and n2, with apiservers
// that do not keep layers. Both nodes get the same changes at the same time; the
// patched kubelet must not write its status more often.
//
// Regular reports, every 5 minutes with a random delay of up to 2.5 minutes
// after a change, are postponed beyond the test, because they would change the
// numbers by one. All other writes have a reason. A kubelet that insists on
// layers has one at every computation of its status: 18 in three minutes.
//
// The guard tries again every ten minutes. A kubelet's first attempt is with its
// first layers, so in a write that a stock kubelet also does.
func TestRefusal(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Config{
		Name:    "skew-refusal",
		Nodes:   2,
		Runtime: cluster.Component{Flavour: cluster.Patched},
		Kubelet: cluster.Component{Config: map[string]any{"nodeStatusReportFrequency": "2h"}},
		PerNode: func(node string, _, kubelet *cluster.Component) {
			if node == "n2" {
				kubelet.Flavour = cluster.Patched
			}
		},
		AuditPolicy: auditlog.NodeWrites,
	})
	one, two := c.push(t, "one:v1", "base", "one"), c.push(t, "two:v1", "base", "two")
	pull := func(image string) func(string) {
		return func(node string) { c.pull(t, node, image) }
	}
	remove := func(image string) func(string) {
		return func(node string) {
			_, err := c.Node(node).Exec(t.Context(), "crictl", "rmi", image)
			must(t, err)
		}
	}

	t.Run("stock apiserver", func(t *testing.T) {
		compareWrites(t, c, time.Minute, pull(one), pull(two), remove(one))
		checkRefusal(t, c, 1, two, one)
	})
	if t.Failed() {
		return
	}
	t.Run("gate off", func(t *testing.T) {
		c.replaceAPIServer(t, gateOff)
		for _, node := range c.Nodes() {
			must(t, node.Kubelet().Restart(t.Context())) // the new process has layers to try with
		}
		compareWrites(t, c, time.Minute, pull(one), remove(two))
		checkRefusal(t, c, 2, one, two)
	})
}

// compareWrites makes one change after the other to the images of both nodes,
// and counts the status writes of both from the first change until one step
// after the last. A step is long enough for the kubelets to see a change, so
// that each change is a separate write.
func compareWrites(t *testing.T, c live, step time.Duration, changes ...func(node string)) {
	waitQuiet(t, c, 25*time.Second)
	begin := time.Now()
	for i, change := range changes {
		for _, node := range c.Nodes() {
			change(node.Name)
		}
		select {
		case <-time.After(time.Until(begin.Add(time.Duration(i+1) * step))):
		case <-t.Context().Done():
		}
	}

	log, err := auditlog.Read(c.AuditLog())
	must(t, err)
	window := time.Duration(len(changes)) * step
	writes := map[string]int{}
	for _, node := range c.Nodes() {
		seen := log.StatusWrites(node.Name).Between(begin, begin.Add(window))
		writes[node.Name] = len(seen)
		for _, at := range seen.Times() {
			t.Logf("%s wrote its status at second %.1f of %.0f", node.Name, at.Sub(begin).Seconds(), window.Seconds())
		}
	}
	t.Logf("status writes in %s: stock kubelet %d, patched kubelet %d", window, writes["n1"], writes["n2"])
	if writes["n1"] < len(changes) {
		t.Errorf("the audit log has %d status writes of the stock kubelet for %d changes of its images", writes["n1"], len(changes))
	}
	if writes["n2"] > writes["n1"] {
		t.Errorf("the patched kubelet wrote its status %d times, the stock one %d times", writes["n2"], writes["n1"])
	}
}

// checkRefusal checks that the patched kubelet has logged the number of
// refusals, and that it reports images all the same.
func checkRefusal(t *testing.T, c live, refusals int, present, removed string) {
	t.Helper()
	if n := logged(t, c.Node("n2").Kubelet(), refusalMessage); n != refusals {
		t.Errorf("the patched kubelet logged %d times that its layers were not kept, want %d", n, refusals)
	}
	for _, node := range c.Nodes() {
		c.check(t, node.Name, present, withoutLayers)
		c.check(t, node.Name, removed, absent)
	}
}

// waitQuiet waits until no kubelet has written its status for the given time.
func waitQuiet(t *testing.T, c live, quiet time.Duration) {
	t.Helper()
	livetest.Eventually(t, 3*time.Minute, fmt.Sprintf("no status write for %s", quiet), func(context.Context) error {
		log, err := auditlog.Read(c.AuditLog())
		if err != nil {
			return err
		}
		now := time.Now()
		for _, node := range c.Nodes() {
			writes := log.StatusWrites(node.Name)
			if len(writes) == 0 {
				return fmt.Errorf("%s has not written its status: %w", node.Name, errNotYet)
			}
			if last := writes.Between(now.Add(-quiet), now); len(last) > 0 {
				return fmt.Errorf("%s wrote its status at %v: %w", node.Name, last.Times(), errNotYet)
			}
		}
		return nil
	})
}
