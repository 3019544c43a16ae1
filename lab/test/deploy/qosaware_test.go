//go:build e2e

package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// debugPort is where the scheduler of this test serves the table on loopback, as the published
// plugins did.
const debugPort = 10000

// state is the ConfigMap in which the scheduler keeps what pods got.
const state = "layerlocality-qosaware"

// testQosAware installs the scheduler with QosAware: who may state an SLO, who reads the table,
// on the secure port and by port-forward, and that no right is missing.
func testQosAware(t *testing.T, image string) {
	begin := time.Now()
	objects := variant(t, "qosaware", image)
	listens(t, objects)
	t.Cleanup(func() { // it is not in the manifests, and a scheduler that ends writes it
		if err := client.CoreV1().ConfigMaps(namespace).Delete(context.Background(), state, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	apply(t, objects, name)
	running, holder := elected(t, name, name)

	states := func(slo string, more ...string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{scenario.AnnotationSLO: slo}
			for i := 0; i < len(more); i += 2 {
				pod.Annotations[more[i]] = more[i+1]
			}
		}
	}
	try := func(ctx context.Context, slo string) error {
		pod := pause("try")
		states(slo)(pod)
		_, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	livetest.Eventually(t, time.Minute, "a namespace without the label may not state an SLO", func(ctx context.Context) error {
		if err := try(ctx, "0.5"); err == nil || !strings.Contains(err.Error(), "may not state an SLO") {
			return errors.Join(errors.New("the answer is another one"), err)
		}
		return nil
	})
	label := func(value string) {
		t.Helper()
		_, err := client.CoreV1().Namespaces().Patch(context.Background(), metav1.NamespaceDefault, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"qos.layerlocality.io/max-slo":`+value+`}}}`), metav1.PatchOptions{})
		must(t, err)
	}
	label(`"0.9"`)
	t.Cleanup(func() { label("null") })
	livetest.Eventually(t, time.Minute, "with the label it may", func(ctx context.Context) error { return try(ctx, "0.9") })
	if err := try(t.Context(), "0.95"); err == nil || !strings.Contains(err.Error(), "an SLO of at most 0.9") {
		t.Errorf("an SLO above the label's: %v", err)
	}

	create(t, "promised", states("0.9"))
	placed(t, "promised", scheduler)
	has := func(table []byte) error {
		lines := strings.Split(string(table), "\n")
		if got, want := strings.Join(strings.Fields(lines[0]), " "), "CONTROLLER QOS/SLO TTV RUNNING WAITING BINDING ADMITTED"; got != want {
			return fmt.Errorf("the columns are %q, want %q", got, want)
		}
		for _, line := range lines {
			if columns := strings.Fields(line); len(columns) == 7 && columns[0] == "promised" && strings.HasSuffix(columns[1], "/0.90") {
				return nil
			}
		}
		return fmt.Errorf("no row of the pod in\n%s", table)
	}
	token := account(t, "reads-promises")
	status, _, err := get(t.Context(), running[0], token, "/debug/qosaware")
	must(t, err)
	if status != "403" {
		t.Errorf("status %s for an account without rights", status)
	}
	bind(t, "reads-promises", name+"-qosaware-reader")
	for _, pod := range running { // one of them only stands by
		livetest.Eventually(t, time.Minute, pod.Name+" shows the table on the secure port", func(ctx context.Context) error {
			status, body, err := get(ctx, pod, token, "/debug/qosaware")
			if err == nil && status != "200" {
				err = fmt.Errorf("status %s: %.300s", status, body)
			}
			if err == nil {
				err = has(body)
			}
			return err
		})
	}
	table := forwarded(t, holder)
	if err := has(table); err != nil {
		t.Errorf("by port-forward: %v", err)
	}
	t.Logf("by port-forward:\n%s", table)

	// A pod of which the scheduler asks how it ended, and what it saves then.
	create(t, "works", states("0.5", "qos.layerlocality.io/measuring", "aggregate"))
	placed(t, "works", scheduler)
	must(t, client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "works", metav1.DeleteOptions{}))
	livetest.Eventually(t, 2*time.Minute, "all rights are used, and the state is saved", func(ctx context.Context) error {
		asked, refused := requests(t, begin)
		if len(refused) > 0 {
			t.Fatalf("refused: %q", refused)
		}
		for _, want := range []string{"apps/deployments:watch", "batch/jobs:watch", "/pods:get", "/configmaps:get", "/configmaps:create"} {
			if !asked[want] {
				return fmt.Errorf("never asked for: %s", want)
			}
		}
		_, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, state, metav1.GetOptions{})
		return err
	})
}

// listens has the scheduler of the manifests serve the table on loopback, too.
func listens(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() != "ConfigMap" {
			continue
		}
		config, found, err := unstructured.NestedString(object.Object, "data", "config.yaml")
		if err != nil || !found {
			t.Fatalf("%s has no config.yaml: %v", object.GetName(), err)
		}
		config += fmt.Sprintf("  pluginConfig:\n  - name: QosAware\n    args:\n      debugBindAddress: 127.0.0.1:%d\n", debugPort)
		must(t, unstructured.SetNestedField(object.Object, config, "data", "config.yaml"))
		return
	}
	t.Fatal("the manifests have no ConfigMap")
}

// forwarded reads the table of a scheduler's pod as "kubectl port-forward" and a browser do.
func forwarded(t *testing.T, pod string) []byte {
	t.Helper()
	config, err := c.RESTConfig()
	must(t, err)
	transport, upgrader, err := spdy.RoundTripperFor(config)
	must(t, err)
	url := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var complaints bytes.Buffer
	forwarder, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", debugPort)}, stop, ready, io.Discard, &complaints)
	must(t, err)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("port-forward to %s: %v", pod, err)
	case <-time.After(time.Minute):
		t.Fatalf("port-forward to %s is not ready", pod)
	}
	defer func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Errorf("port-forward to %s: %v", pod, err)
		}
	}()
	ports, err := forwarder.GetPorts()
	must(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), nil)
	must(t, err)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("by port-forward: %s, %v: %s; %s", response.Status, err, body, &complaints)
	}
	return body
}
