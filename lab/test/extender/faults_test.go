//go:build e2e

package extender

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	// httpTimeout is the one that is shipped (deploy/extender).
	httpTimeout = 200 * time.Millisecond
	// withoutTimeout is how long kube-scheduler would wait for each pod if httpTimeout were not set.
	withoutTimeout = 5 * time.Second
)

// TestFaults takes layer-extender away in several ways while pods are placed: all of them
// get a node, and afterwards the scores are back.
func TestFaults(t *testing.T) {
	const pods = 10
	// The one shows where scores lead: no pod brings it to another node. Pods without scores
	// have the other.
	const small = "faults-small:v1"
	kept := scenario.Pod{Image: held, PullPolicy: corev1.PullNever, Scheduler: scenario.Layers}
	free := scenario.Pod{Image: small, Scheduler: scenario.Layers}
	livetest.HubImage(t, c, small, 2_000_000, 1)
	provide(t, bringImages(t).ofHolder)
	extender := c.Addon(addons.LayerExtender)
	// burst creates pods like one, has something happen after half of them, waits until all
	// have a node, and returns how long that took.
	burst := func(name string, pod scenario.Pod, between func()) (time.Duration, map[string]int) {
		begin := time.Now()
		names := scenario.Names(name, pods)
		removeAtEnd(t, names...)
		for i, each := range names {
			if i == pods/2 && between != nil {
				// Placed, and not only created: they were scored before.
				_, err := lab.Placed(t.Context(), names[:i]...)
				must(t, err)
				between()
			}
			pod.Name = each
			must(t, lab.Submit(t.Context(), pod))
		}
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		took := time.Since(begin)
		must(t, lab.Drop(t.Context(), names...))
		return took, scenario.PerNode(nodes)
	}
	rows := [][]string{{"layer-extender", "until all pods have a node", "pods by node"}}
	report := func(what string, took time.Duration, per map[string]int) {
		rows = append(rows, []string{what, fmt.Sprintf("%.2f s", took.Seconds()), fmt.Sprint(per)})
	}
	back := func(name string) {
		t.Helper()
		attempt := 0
		livetest.Eventually(t, time.Minute, name+": scores are back", func(context.Context) error {
			attempt++
			took, per := burst(fmt.Sprintf("%s-%d", name, attempt), kept, nil)
			if per[holder] != pods {
				return fmt.Errorf("the image is on %s, the pods went to %v", holder, per)
			}
			report(fmt.Sprintf("works (attempt %d)", attempt), took, per)
			return nil
		})
	}
	back("at-first")
	took, per := burst("killed", free, func() { must(t, extender.Kill(t.Context())) })
	report("killed after half of the pods", took, per)
	must(t, extender.Start(t.Context()))
	back("after-kill")

	restore := withScheduler(t, extended(map[string]any{"httpTimeout": httpTimeout.String()}))
	normal, _ := burst("normal", free, nil)
	process, err := os.FindProcess(extender.PID())
	must(t, err)
	goOn := func() { must(t, process.Signal(syscall.SIGCONT)) }
	took, per = burst("stopped", free, func() {
		must(t, process.Signal(syscall.SIGSTOP))
		// A stopped process would outlive the cluster. Afterwards it may be another one.
		t.Cleanup(func() {
			if extender.PID() == process.Pid {
				goOn()
			}
		})
	})
	goOn()
	if most := normal + pods/2*withoutTimeout; took > most {
		t.Errorf("stopped: %d pods had a node after %s, want less than %s: half of them wait for httpTimeout once", pods, took, most)
	}
	report("stopped after half of the pods: the others wait for httpTimeout, 0.2 s", took, per)
	restore()
	back("after-stop")

	took, per = burst("restarted", free, func() { must(t, extender.Restart(t.Context())) })
	report("restarted after half of the pods", took, per)
	back("after-restart")

	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "on purpose", http.StatusInternalServerError)
	})
	restore = withScheduler(t, extended(map[string]any{"urlPrefix": failing + "/scheduler", "enableHTTPS": false, "tlsConfig": map[string]any{}}))
	took, per = burst("failing", free, nil)
	report("answers 500", took, per)
	restore()
	back("after-failing")
	livetest.Table(t, rows...)
}

// serve has a function answer requests of the cluster until the end of the test, and returns
// its URL.
func serve(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress().String(), "0"))
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: answer}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return "http://" + listener.Addr().String()
}

// TestNodes has the scheduler send whole Nodes by mistake: the answers are right, the log
// has it once, and the metric counts.
func TestNodes(t *testing.T) {
	const pods = 3
	provide(t, bringImages(t).ofHolder)
	withScheduler(t, extended(map[string]any{"nodeCacheCapable": false}))
	names := submit(t, "whole", pods, scenario.Pod{Image: held, Scheduler: scenario.Layers})
	nodes, err := lab.Placed(t.Context(), names...)
	must(t, err)
	if per := scenario.PerNode(nodes); per[holder] != pods {
		t.Errorf("the image is on %s, the pods went to %v", holder, per)
	}
	verbs, err := lab.MetricOf(t.Context(), addons.ExtenderURL(c), "layer_extender_requests_with_nodes_total", "verb")
	must(t, err)
	if verbs["priorities"] < pods {
		t.Errorf("%d requests with Nodes are counted", verbs["priorities"])
	}
	log, err := os.ReadFile(c.Addon(addons.LayerExtender).Log())
	must(t, err)
	if n := strings.Count(string(log), "nodeCacheCapable: true"); n != 1 {
		t.Errorf("%d log lines about it", n)
	}
}

// TestRights: layer-extender asks for what deploy/extender allows, all of it, and nothing else.
func TestRights(t *testing.T) {
	livetest.Rights(t, c, lab.Client, extenderUser, map[string]string{
		"list": "this apiserver sends what there is as the beginning of a watch (WatchList); others are asked for lists",
	})
}
