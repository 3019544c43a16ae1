package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	"k8s.io/klog/v2"
)

// parse returns the options of a command line and an environment, and what is warned of.
func parse(t *testing.T, environment map[string]string, args ...string) (*options, *pflag.FlagSet, string) {
	t.Helper()
	o, f := &options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addTo(f)
	f.String("v", "0", "") // a flag of Kubernetes' logs, which keep their level in the process
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	var warnings []string
	lookup := func(name string) (string, bool) { text, ok := environment[name]; return text, ok }
	o.apply(f, lookup, func(text string) { warnings = append(warnings, text) })
	return o, f, strings.Join(warnings, "\n")
}

// TestLinesNameWhatTheyAreAbout: cli.Run turns contextual logging off.
func TestLinesNameWhatTheyAreAbout(t *testing.T) {
	for _, args := range [][]string{{"--kubeconfig=/missing"}, {"annotate", "--prometheus-address=http://127.0.0.1:9", "--kubeconfig=/missing"}} {
		cmd := newCommand()
		cmd.SetArgs(args)
		if err := cli.RunNoErrOutput(cmd); err == nil || !strings.Contains(err.Error(), "/missing") {
			t.Errorf("%v: %v", args, err)
		}
		named := klog.Background().WithValues("pod", "default/p")
		if klog.FromContext(klog.NewContext(t.Context(), named)) != named {
			t.Errorf("%v: the log has no values of the context", args)
		}
	}
}

func TestAddress(t *testing.T) {
	for line, want := range map[string]string{
		"":                                "127.0.0.1:5401",
		"--bind-address=::1 --port=7":     "[::1]:7",
		"--bind-address=::ffff:127.0.0.1": "[::ffff:127.0.0.1]:5401",
		"--bind-address=127.1.2.3":        "127.1.2.3:5401",
		"--bind-address=0.0.0.0":          "0.0.0.0:5401",
		"--bind-address=::":               "[::]:5401",
		"--bind-address=localhost":        "want an IP address",
		"--port=0":                        "want 1 to 65535",
		"--port=65536":                    "want 1 to 65535",
		"--tls-cert-file=a":               "want both or none",
		"--client-ca-file=a":              "only show certificates with HTTPS",
		"--bind-address=10.0.0.1 --client-ca-file=a --tls-cert-file=b --tls-private-key-file=c": "10.0.0.1:5401",
	} {
		o, _, _ := parse(t, nil, strings.Fields(line)...)
		address, err := o.address()
		got := address.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// TestEnvironment has the variables of the ancestor.
func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		environment map[string]string
		args        []string
		address     string
		v, warns    string
	}{
		{nil, nil, "127.0.0.1:5401", "2", ""},
		{map[string]string{"HTTP_PORT": "80", "LOG_LEVEL": "debug"}, nil, "0.0.0.0:80", "4", ""},
		{map[string]string{"HTTP_PORT": "80"}, []string{"--bind-address=::1"}, "[::1]:80", "2", ""},
		{map[string]string{"HTTP_PORT": "80", "LOG_LEVEL": "TRACE"}, []string{"--port=81", "--v=3"}, "127.0.0.1:81", "3", ""},
		{map[string]string{"HTTP_PORT": "eighty"}, nil, "127.0.0.1:5401", "2", `HTTP_PORT="eighty"`},
		{map[string]string{"HTTP_PORT": "0"}, nil, "127.0.0.1:5401", "2", "want a port"},
		{map[string]string{"HTTP_PORT": ""}, nil, "127.0.0.1:5401", "2", ""},
		{map[string]string{"LOG_LEVEL": "LOUD"}, nil, "127.0.0.1:5401", "2", "want TRACE"},
		{map[string]string{"LOG_LEVEL": "INFO"}, nil, "127.0.0.1:5401", "2", ""},
		{map[string]string{"LOG_LEVEL": "WARNING"}, nil, "127.0.0.1:5401", "1", ""},
		{map[string]string{"LOG_LEVEL": "ERROR"}, nil, "127.0.0.1:5401", "0", ""},
		{map[string]string{"LOG_LEVEL": "ALERT"}, nil, "127.0.0.1:5401", "0", ""},
		{map[string]string{"LOG_LEVEL": "ALERT"}, []string{"--v=2"}, "127.0.0.1:5401", "2", ""},
		{nil, []string{"--v=0"}, "127.0.0.1:5401", "0", ""},
		{map[string]string{"POLICY_OBJECTIVE": "A_BINPACK"}, nil, "127.0.0.1:5401", "2", ""},
	} {
		o, f, warnings := parse(t, c.environment, c.args...)
		if address, err := o.address(); err != nil || address.String() != c.address || f.Lookup("v").Value.String() != c.v {
			t.Errorf("%v %v: %v %v, -v %s", c.environment, c.args, address, err, f.Lookup("v").Value)
		}
		if (c.warns == "") != (warnings == "") || !strings.Contains(warnings, c.warns) {
			t.Errorf("%v: %q, want %q", c.environment, warnings, c.warns)
		}
	}
}

func TestPluginConfigFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plugins.yaml")
	o := &options{pluginConfig: file}
	if _, err := o.plugins(); err == nil || !strings.Contains(err.Error(), "--plugin-config") {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, []byte("pluginConfig:\n- name: LayerLocality\n  args: {loadPenalty: 2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := o.plugins(); err != nil || len(got) != 1 || got[0].Name != "LayerLocality" {
		t.Errorf("%v %v", got, err)
	}
	if err := os.WriteFile(file, []byte("profiles: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := o.plugins(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("another list: %v", err)
	}
	if got, err := (&options{}).plugins(); got != nil || err != nil {
		t.Errorf("no flag: %v %v", got, err)
	}
}

// TestAuthenticated sends requests with and without a certificate that the handshake has
// verified.
func TestAuthenticated(t *testing.T) {
	h := authenticated(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for name, c := range map[string]struct {
		state *tls.ConnectionState
		code  int
	}{
		"HTTP": {nil, 401}, "no certificate": {&tls.ConnectionState{}, 401},
		"a certificate": {&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}, 200},
	} {
		r, w := httptest.NewRequest(http.MethodPost, "/", nil), httptest.NewRecorder()
		r.TLS = c.state
		if h.ServeHTTP(w, r); w.Code != c.code {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	for _, o := range []*options{{certFile: "no-such", keyFile: "no-such"}} {
		if _, err := o.tlsConfig(); err == nil || !strings.Contains(err.Error(), "--tls-cert-file=no-such") {
			t.Errorf("%v", err)
		}
	}
}
