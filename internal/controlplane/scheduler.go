package controlplane

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Scheduler is a kube-scheduler of a control plane, a process on this machine.
type Scheduler struct {
	// URL of its secure port, whose certificate nobody signed.
	URL string

	folder string
	cmd    *exec.Cmd
	output bytes.Buffer
}

// StartScheduler starts the kube-scheduler of a build (patched or stock) of the repository at
// root, and waits until it is ready. configuration is YAML of a KubeSchedulerConfiguration, without
// its kind and the connection; empty for the defaults.
func (c *ControlPlane) StartScheduler(root, build, configuration string, args ...string) (_ *Scheduler, err error) {
	binary, err := filepath.Abs(filepath.Join(root, "_build/bin", build, "kube-scheduler"))
	if err != nil {
		return nil, err
	}
	s := &Scheduler{}
	if s.folder, err = os.MkdirTemp("", "kube-scheduler-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	kubeconfig, file := filepath.Join(s.folder, "kubeconfig"), filepath.Join(s.folder, "config.yaml")
	if err := os.WriteFile(kubeconfig, c.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	config := fmt.Sprintf("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nclientConnection: {kubeconfig: %s}\n%s", kubeconfig, configuration)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s.URL = "https://127.0.0.1:" + port
	s.cmd = exec.Command(binary, append([]string{
		"--config=" + file, "--secure-port=" + port, "--bind-address=127.0.0.1", "--cert-dir=" + s.folder,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: 'scripts/build.sh %s kube-scheduler' makes it", err, build)
	}
	return s, s.ready(2 * time.Minute)
}

// ready waits until the scheduler is ready.
func (s *Scheduler) ready(within time.Duration) error {
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 30 * time.Second} //nolint:gosec // a scheduler's own certificate
	defer insecure.CloseIdleConnections()
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		response, err := insecure.Get(s.URL + "/readyz")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(deadline) {
			s.Stop()
			return fmt.Errorf("the scheduler is not ready in %s: %s", within, &s.output)
		}
	}
}

// Stop ends the scheduler and removes what it was started with.
func (s *Scheduler) Stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
	_ = os.RemoveAll(s.folder)
}

// freePort returns a port of loopback that nobody listens on.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, err
}
