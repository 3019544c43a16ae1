//go:build e2e

package skew

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/cluster"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// TestRefusal runs a stock and a patched kubelet, n1 and n2, with an apiserver
// that does not keep layers. Both nodes go through the same changes in the same
// three minutes; the patched kubelet must not write its status more often.
//
// Regular reports, every 5 minutes with a random delay of up to 2.5 minutes
// after a change, are put off beyond the window: they would blur the numbers by
// one. What is left are writes for a reason. A kubelet that insists on layers
// has one at every computation of its status: 18 in the window.
//
// The guard tries again every ten minutes. The first try is in the window, with
// the first layers there are, thus in a write that the stock kubelet does too.
func TestRefusal(t *testing.T) {
	for _, test := range []struct {
		name      string
		apiserver cluster.Component
	}{
		{"stock", cluster.Component{Flavour: cluster.Stock}},
		{"gate-off", cluster.Component{Flavour: cluster.Patched, FeatureGates: map[string]bool{cluster.LayersGate: false}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster.Config{
				Name:              "skew-" + test.name,
				Nodes:             2,
				CRIO:              cluster.Component{Flavour: cluster.Patched},
				APIServer:         test.apiserver,
				ControllerManager: cluster.Component{Flavour: test.apiserver.Flavour},
				Kubelet:           cluster.Component{Config: map[string]any{"nodeStatusReportFrequency": "2h"}},
				PerNode: func(node string, _, kubelet *cluster.Component) {
					if node == "n2" {
						kubelet.Flavour = cluster.Patched
					}
				},
				AuditPolicy: auditlog.NodeWrites,
			})
			testRefusal(t, c)
		})
	}
}

func testRefusal(t *testing.T, c live) {
	const window, step = 3 * time.Minute, time.Minute
	one, two := c.push(t, "one:v1", "base", "one"), c.push(t, "two:v1", "base", "two")
	waitQuiet(t, c, 25*time.Second)

	// Three changes, far enough apart for one write each.
	begin := time.Now()
	for i, change := range []func(node string){
		func(node string) { c.pull(t, node, one) },
		func(node string) { c.pull(t, node, two) },
		func(node string) {
			_, err := c.Node(node).Exec(t.Context(), "crictl", "rmi", one)
			must(t, err)
		},
	} {
		for _, node := range []string{"n1", "n2"} {
			change(node)
		}
		select {
		case <-time.After(time.Until(begin.Add(time.Duration(i+1) * step))):
		case <-t.Context().Done():
		}
	}

	log, err := auditlog.Read(c.AuditLog())
	must(t, err)
	writes := map[string]int{}
	for _, node := range []string{"n1", "n2"} {
		seen := log.StatusWrites(node).Between(begin, begin.Add(window))
		writes[node] = len(seen)
		for _, at := range seen.Times() {
			t.Logf("%s wrote its status at second %.1f of %.0f", node, at.Sub(begin).Seconds(), window.Seconds())
		}
	}
	t.Logf("status writes in %s: stock kubelet %d, patched kubelet %d", window, writes["n1"], writes["n2"])
	if writes["n1"] < 3 {
		t.Errorf("the audit log has %d status writes of the stock kubelet for three changes of its images", writes["n1"])
	}
	if writes["n2"] > writes["n1"] {
		t.Errorf("the patched kubelet wrote its status %d times, the stock one %d times", writes["n2"], writes["n1"])
	}
	if n := logged(t, c.Node("n2").Kubelet(), refusalMessage); n != 1 {
		t.Errorf("the patched kubelet logged %d times that its layers were not kept, want once", n)
	}
	for _, node := range []string{"n1", "n2"} {
		c.check(t, node, one, absent)
		c.check(t, node, two, withoutLayers)
	}
}

// waitQuiet waits until no kubelet has written its status for the time given.
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
