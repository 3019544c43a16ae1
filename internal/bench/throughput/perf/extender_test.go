//go:build imagelayers && bench

package perf

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// process is a layer-extender beside the scheduler.
type process struct{ *exec.Cmd }

// extenderURL is where the deployed configurations of kube-scheduler ask, and extenderArgs
// are those of deploy/extender/base.
const extenderURL = "http://127.0.0.1:5401"

var extenderArgs = []string{"--bind-address=127.0.0.1", "--port=5401", "--max-score=40"}

// startExtender starts layer-extender for an apiserver, and waits until it answers. It ends
// with the benchmark.
func startExtender(b *testing.B, config *rest.Config) (*process, error) {
	kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(kubeconfigOf(config), kubeconfig); err != nil {
		return nil, err
	}
	if _, _, err := get("/livez"); err == nil {
		return nil, fmt.Errorf("something else serves at %s: end it", extenderURL)
	}
	p := &process{exec.Command(*extender, append([]string{"--kubeconfig=" + kubeconfig}, extenderArgs...)...)}
	p.Stdout, p.Stderr = os.Stderr, os.Stderr
	if err := p.Start(); err != nil {
		return nil, err
	}
	// Waited for, so that its processor time counts.
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	b.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGTERM) // it has ended
		if err := <-ended; err != nil {
			b.Errorf("layer-extender: %v", err)
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if status, _, err := get("/readyz"); err == nil && status == http.StatusOK {
			return p, nil
		} else if time.Now().After(end) {
			return nil, fmt.Errorf("layer-extender is not ready after a minute: status %d, %w", status, err)
		}
		select {
		case err := <-ended:
			ended <- err
			return nil, fmt.Errorf("layer-extender has ended: %w", err)
		default:
		}
	}
}

// kubeconfigOf returns a kubeconfig for the same apiserver and the same rights.
func kubeconfigOf(config *rest.Config) clientcmdapi.Config {
	const name = "throughput"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server: config.Host, TLSServerName: config.ServerName, CertificateAuthorityData: config.CAData,
		InsecureSkipTLSVerify: config.Insecure,
	}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
	}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.CurrentContext = name
	return *kubeconfig
}

var answered = regexp.MustCompile(`(?m)^layer_extender_requests_total\{agent="layers",code="200",verb="priorities"\} (\d+)$`)

// check fails the benchmark unless nearly all pods were scored: kube-scheduler goes on
// without an extender that does not answer in time.
func (p *process) check(b *testing.B, pods int) {
	b.Helper()
	_, body, err := get("/metrics")
	if err != nil {
		b.Fatal(err)
	}
	count := 0
	if found := answered.FindSubmatch(body); found != nil {
		if count, err = strconv.Atoi(string(found[1])); err != nil {
			b.Fatal(err)
		}
	}
	if count < pods*95/100 {
		b.Fatalf("layer-extender answered for %d of %d pods", count, pods)
	}
	b.Logf("layer-extender answered for %d of %d pods", count, pods)
}

func get(path string) (status int, body []byte, err error) {
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(extenderURL + path)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
