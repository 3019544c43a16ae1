package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/handler"
)

// options are the flags.
type options struct {
	agents       []string
	bindAddress  string
	port         int
	maxScore     int64
	pluginConfig string
	kubeconfig   string
	certFile     string
	keyFile      string
	clientCA     string
}

const (
	defaultAddress = "127.0.0.1"
	allAddresses   = "0.0.0.0" // to Go those of IPv6, too
	defaultPort    = 5401
	// defaultLevel of the log has what agents refuse.
	defaultLevel = "2"
)

func (o *options) addTo(f *pflag.FlagSet) {
	f.StringSliceVar(&o.agents, "agents", names(), "agents to run")
	f.StringVar(&o.bindAddress, "bind-address", defaultAddress, "IP address to listen on; without --client-ca-file, whoever does not ask over loopback is only answered on /livez, /readyz and /version")
	f.IntVar(&o.port, "port", defaultPort, "port to listen on")
	f.Int64Var(&o.maxScore, "max-score", handler.DefaultMaxScore, fmt.Sprintf("the answer for the best score, 1 to %d; kube-scheduler adds the answer times 10 times the extender's weight", handler.LimitMaxScore))
	f.StringVar(&o.pluginConfig, "plugin-config", "", "file with the list pluginConfig of a KubeSchedulerConfiguration: arguments of the agents' plugins")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without, $KUBECONFIG or the pod's service account")
	f.StringVar(&o.certFile, "tls-cert-file", "", "certificate for HTTPS instead of HTTP; it is read again when a client connects")
	f.StringVar(&o.keyFile, "tls-private-key-file", "", "key of that certificate")
	f.StringVar(&o.clientCA, "client-ca-file", "", "certificate authorities: only clients with a certificate of them are answered, except on /livez, /readyz and /version")
}

// apply sets flags that are not given from the environment variables of the ancestor of
// this program. What cannot be read is reported and left out.
func (o *options) apply(f *pflag.FlagSet, lookup func(string) (string, bool), warn func(string)) {
	set := func(variable, flag string, value func(string) (string, error)) {
		text, ok := lookup(variable)
		if !ok || text == "" || f.Changed(flag) {
			return
		}
		converted, err := value(text)
		if err == nil {
			err = f.Set(flag, converted)
		}
		if err != nil {
			warn(fmt.Sprintf("%s=%q is left out: %v; better use --%s", variable, text, err, flag))
		}
	}
	set("HTTP_PORT", "port", func(text string) (string, error) {
		port, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || port < 1 || port > 65535 {
			return "", errors.New("want a port, 1 to 65535")
		}
		if !f.Changed("bind-address") {
			_ = f.Set("bind-address", allAddresses) // the probes beside that variable ask the pod's address
		}
		return strconv.Itoa(port), nil
	})
	set("LOG_LEVEL", "v", func(text string) (string, error) {
		level, ok := map[string]string{"TRACE": "6", "DEBUG": "4", "INFO": "2", "WARNING": "1", "ERROR": "0", "ALERT": "0"}[strings.ToUpper(strings.TrimSpace(text))]
		if !ok {
			return "", errors.New("want TRACE, DEBUG, INFO, WARNING, ERROR or ALERT")
		}
		return level, nil
	})
	if !f.Changed("v") {
		_ = f.Set("v", defaultLevel) // a number
	}
}

// address returns where to listen. An error names the flag that is wrong, and the way out.
func (o *options) address() (netip.AddrPort, error) {
	ip, err := netip.ParseAddr(o.bindAddress)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("--bind-address=%q: want an IP address, such as %s", o.bindAddress, defaultAddress)
	}
	if o.port < 1 || o.port > 65535 {
		return netip.AddrPort{}, fmt.Errorf("--port=%d: want 1 to 65535", o.port)
	}
	if (o.certFile == "") != (o.keyFile == "") {
		return netip.AddrPort{}, errors.New("--tls-cert-file and --tls-private-key-file: want both or none")
	}
	if o.clientCA != "" && o.certFile == "" {
		return netip.AddrPort{}, errors.New("--client-ca-file: clients only show certificates with HTTPS: set --tls-cert-file and --tls-private-key-file, too")
	}
	return netip.AddrPortFrom(ip, uint16(o.port)), nil
}

// plugins reads the arguments of plugins.
func (o *options) plugins() ([]agent.PluginConfig, error) {
	if o.pluginConfig == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.pluginConfig)
	if err != nil {
		return nil, fmt.Errorf("--plugin-config: %w", err)
	}
	configs, err := agent.PluginConfigs(text)
	if err != nil {
		return nil, fmt.Errorf("--plugin-config=%s: %w", o.pluginConfig, err)
	}
	return configs, nil
}
