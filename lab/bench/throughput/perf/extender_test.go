//go:build imagelayers && bench

package perf

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/test/utils/ktesting"
)

// extenderURL is where the deployed configurations of kube-scheduler ask, and extenderArgs
// are those of deploy/extender/base.
const extenderURL = "http://127.0.0.1:5401"

var extenderArgs = []string{"--bind-address=127.0.0.1", "--port=5401", "--max-score=40"}

// startExtender starts layer-extender for the benchmark's apiserver, and waits until it
// answers. It ends with the benchmark, which fails unless it answered for nearly that many
// pods: kube-scheduler goes on without an extender that does not answer in time.
func startExtender(tCtx ktesting.TContext, pods int) error {
	if _, _, err := get("/livez"); err == nil {
		return fmt.Errorf("something else serves at %s: end it", extenderURL)
	}
	kubeconfig := filepath.Join(tCtx.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(kubeconfigOf(tCtx.RESTConfig()), kubeconfig); err != nil {
		return err
	}
	program := exec.Command(*extender, append([]string{"--kubeconfig=" + kubeconfig}, extenderArgs...)...)
	program.Stdout, program.Stderr = os.Stderr, os.Stderr
	if err := program.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }() // waited for, so that its processor time counts
	// Before the apiserver ends, which waits for those who watch.
	tCtx.Cleanup(func() {
		if count, err := answers(); err != nil || count < pods*95/100 {
			tCtx.Errorf("layer-extender answered for %d of %d pods: %v", count, pods, err)
		}
		_ = program.Process.Signal(syscall.SIGTERM) // an error if it has ended
		if err := <-ended; err != nil {
			tCtx.Errorf("layer-extender: %v", err)
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		status, _, err := get("/readyz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("layer-extender is not ready after a minute: status %d", status), err)
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("layer-extender has ended: %w", err)
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

// answers returns for how many pods it answered.
func answers() (int, error) {
	_, body, err := get("/metrics")
	if err != nil {
		return 0, err
	}
	found := answered.FindSubmatch(body)
	if found == nil {
		return 0, errors.New("its metrics have no answer")
	}
	return strconv.Atoi(string(found[1]))
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
