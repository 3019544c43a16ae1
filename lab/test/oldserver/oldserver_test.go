//go:build integration

package oldserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

const root = "../../.."

var must = testkit.Must

// log collects the log of a program.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// scheduler is a kube-scheduler of ours that runs.
type scheduler struct {
	log   log
	ended chan error
}

// run runs kube-scheduler with our plugin until the test ends.
func run(t *testing.T, kubeconfig string, args ...string) *scheduler {
	t.Helper()
	folder := t.TempDir()
	config := filepath.Join(folder, "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q}
profiles:
- plugins:
    multiPoint: {enabled: [{name: LayerLocality}]}
`, kubeconfig), 0o600))
	program, err := filepath.Abs(filepath.Join(root, "_build/bin/patched/kube-scheduler"))
	must(t, err)
	s := &scheduler{ended: make(chan error, 1)}
	command := exec.Command(program, append([]string{
		"--config=" + config, "--secure-port=0", "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}, args...)...)
	command.Dir, command.Stdout, command.Stderr = folder, &s.log, &s.log
	if err := command.Start(); err != nil {
		t.Fatalf("%v: scripts/build.sh patched kube-scheduler makes it", err)
	}
	done := make(chan struct{})
	go func() {
		s.ended <- command.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-done
	})
	return s
}

// places waits until a new pod has a node.
func (s *scheduler) places(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/a:1"}}}}
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	err = poll.Until(t.Context(), 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
		select {
		case err := <-s.ended:
			return poll.Permanent(fmt.Errorf("the scheduler has ended: %w", err))
		default:
		}
		found, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err == nil && found.Spec.NodeName == "" {
			err = fmt.Errorf("pod %s has no node: %+v", name, found.Status.Conditions)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &s.log)
	}
}

// logs waits until the log has a text.
func (s *scheduler) logs(t *testing.T, text string) {
	t.Helper()
	must(t, poll.Until(t.Context(), 100*time.Millisecond, time.Minute, func(context.Context) error {
		if all := s.log.String(); !strings.Contains(all, text) {
			return fmt.Errorf("no %q in its log:\n%s", text, all)
		}
		return nil
	}))
}

// With --emulated-version of the server, pods are placed. Without it, they are as well, and the
// log names the flag; or, where kube-scheduler would wait for ever, it ends with the reason.
func TestOldServers(t *testing.T) {
	versions := []string{"1.33", "1.34"}
	if os.Getenv("FULL") != "" {
		versions = append(versions, "1.35")
	} else {
		t.Log("1.35, which differs from 1.34 in nothing that is tested here, has its turn with FULL=1")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) { testOldServer(t, version) })
	}
}

func testOldServer(t *testing.T, version string) {
	plane, err := controlplane.StartWith(root, controlplane.Settings{Stock: true, EmulatedVersion: version, NoFsync: true})
	must(t, err)
	t.Cleanup(func() { must(t, plane.Stop()) })
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, plane.Kubeconfig(), 0o600))
	client, err := kubernetes.NewForConfig(plane.Config)
	must(t, err)
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	must(t, err)
	_, err = client.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(`{"status":{"allocatable":{"cpu":"4","memory":"8Gi","pods":"110"}}}`), metav1.PatchOptions{}, "status")
	must(t, err)

	t.Run("with the flag", func(t *testing.T) {
		run(t, kubeconfig, "--emulated-version="+version).places(t, client, "with")
	})
	t.Run("without", func(t *testing.T) {
		s := run(t, kubeconfig)
		if version != "1.33" {
			s.places(t, client, "without")
			s.logs(t, "some of it may not work. Set --emulated-version="+version)
			return
		}
		select {
		case err := <-s.ended:
			exit := &exec.ExitError{}
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("it ended with %v, want code 1", err)
			}
		case <-time.After(time.Minute):
			t.Errorf("it waits:\n%s", &s.log)
		}
		s.logs(t, "would wait for it for ever and place no pod. Set --emulated-version=1.33")
	})
}
