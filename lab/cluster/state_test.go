package cluster

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// A state that was written can be read again: other processes depend on it.
func TestStateRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := Config{
		Name: "x", Dir: dir, LogDir: dir + "/log", BinDir: "/bin", Nodes: 2, Bandwidth: 1e8, Flavour: Patched,
		Kubelet:     Component{FeatureGates: map[string]bool{"A": true}, Config: map[string]any{"nodeStatusMaxImages": -1.0}},
		Runtime:     Component{Args: []string{"--log-level=debug"}, Env: []string{"A=b"}},
		AuditPolicy: "apiVersion: audit.k8s.io/v1\n",
		Addons:      []Addon{watcher()},
	}
	c, err := prepare(&config)
	if err != nil {
		t.Fatal(err)
	}
	subnet := netip.MustParsePrefix("198.51.100.0/24")
	if err := c.update(func(s *state) { s.Subnet, s.Ready = subnet, true }); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	opened.config.Logf = nil
	if !reflect.DeepEqual(opened.config, config) {
		t.Errorf("read %+v\nwrote %+v", opened.config, config)
	}
	if got := opened.Registry().Address; got != "198.51.100.1:5000" {
		t.Errorf("registry %s", got)
	}
	if n := opened.Node("n2"); n == nil || n.Address.String() != "198.51.100.12" || n.PodCIDR.String() != "10.244.2.0/24" {
		t.Errorf("node %+v", n)
	}
	if opened.Node("n3") != nil {
		t.Error("a third node of two")
	}
	// This process owns it, so nobody else may remove it.
	if s, err := readState(dir); err != nil || !s.Owner.Alive() {
		t.Errorf("state %+v, %v: want this process as the owner", s, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v without a cluster", err)
	}
	if _, err := prepare(&Config{Name: "x", Dir: dir, LogDir: dir + "/log"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not up") {
		t.Errorf("error %v for a cluster that never came up", err)
	}
}

// A wrong --dir must never delete anybody's files.
func TestForeignFoldersAreLeftAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, files := range map[string]map[string]string{
		"other files":             {"thesis.tex": "..."},
		"another's cluster.json":  {"cluster.json": `{"nodes": 3}`, "data": "..."},
		"a moved cluster's":       {"cluster.json": `{"config": {"dir": "/elsewhere"}}`, "data": "..."},
		"not JSON":                {"cluster.json": "cluster", "data": "..."},
		"a folder of a cluster's": {"cluster.json": `{"config": {"dir": 7}}`, "data": "..."},
	} {
		dir := t.TempDir()
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if unlock, err := claim(ctx, dir); err == nil {
			unlock()
			t.Errorf("%s: a cluster would be started there", name)
		}
		if err := Clean(ctx, dir); err == nil && files["cluster.json"] != "" {
			t.Errorf("%s: cleaned without an error", name)
		}
		for file, content := range files {
			if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != content {
				t.Errorf("%s: %s is %q, %v", name, file, got, err)
			}
		}
	}
}

func TestCleanWithoutCluster(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	if err := Clean(context.Background(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
}
