package addons

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// PrometheusName is the name of the add-on that Prometheus returns.
const PrometheusName = "prometheus"

const prometheusPort = "9090"

// Prometheus returns the distribution's Prometheus as an add-on. It scrapes nothing before
// ConfigurePrometheus. Its configuration and its data are in a folder, which is the caller's.
func Prometheus(folder string) (cluster.Addon, error) {
	binary, err := exec.LookPath(PrometheusName)
	if err != nil {
		return cluster.Addon{}, fmt.Errorf("%w: scripts/install-deps.sh prometheus installs it", err)
	}
	if err := os.WriteFile(prometheusConfig(folder), []byte("{}\n"), 0o600); err != nil {
		return cluster.Addon{}, err
	}
	return cluster.Addon{
		Name: PrometheusName, Settings: cluster.Component{Binary: binary},
		Args: []string{
			"--config.file=" + prometheusConfig(folder), "--storage.tsdb.path=" + filepath.Join(folder, "tsdb"),
			"--web.listen-address=$(ADDRESS):" + prometheusPort, "--web.enable-lifecycle",
		},
		Health: "http://$(ADDRESS):" + prometheusPort + "/-/ready",
	}, nil
}

func prometheusConfig(folder string) string { return filepath.Join(folder, "prometheus.yml") }

// PrometheusURL returns the URL, without a path, at which Prometheus serves.
func PrometheusURL(c *cluster.Cluster) string {
	return "http://" + net.JoinHostPort(c.Address().String(), prometheusPort)
}

// ConfigurePrometheus gives Prometheus another configuration, as its file has it. Paths in it are
// those of this machine.
func ConfigurePrometheus(ctx context.Context, c *cluster.Cluster, folder string, config map[string]any) error {
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(prometheusConfig(folder), text, 0o600); err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, PrometheusURL(c)+"/-/reload", nil)
	if err != nil {
		return err
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request) // without the proxies of the environment
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(response.Body)
		return fmt.Errorf("prometheus: reload: %s: %s", response.Status, why)
	}
	return nil
}
