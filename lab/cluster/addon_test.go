package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// watcher returns a valid add-on.
func watcher() Addon {
	return Addon{
		Name:      "layer-watcher",
		Settings:  Component{Args: []string{"-v=1"}},
		Args:      []string{"--kubeconfig=$(KUBECONFIG)", "--listen=$(ADDRESS):9000", "--of=$(SUBNET),$(ADDRESS)", "--conf=$(REGISTRIES_CONF)", "--cost=$5"},
		Health:    "http://$(ADDRESS):9000/readyz",
		User:      "watcher",
		Groups:    []string{"watchers"},
		Manifests: "kind: Role\n",
		Namespace: "kube-system",
	}
}

func TestAddonsRefused(t *testing.T) {
	t.Parallel()
	with := func(change func(*Addon)) []Addon {
		addon := watcher()
		change(&addon)
		return []Addon{addon}
	}
	named := func(name string) []Addon { return with(func(a *Addon) { a.Name = name }) }
	other := with(func(a *Addon) { a.Name = "other" })[0]
	for name, test := range map[string]struct {
		config Config
		want   []string
	}{
		"no name":                  {Config{Addons: append([]Addon{other}, named("")...)}, []string{"add-on 2 of 2", "no name"}},
		"a name that is a path":    {Config{Addons: named("../etcd")}, []string{"add-on ../etcd", "lower-case letters"}},
		"a name twice":             {Config{Addons: []Addon{watcher(), other, watcher()}}, []string{"add-on layer-watcher", "two have that name"}},
		"that of the scheduler":    {Config{Addons: named("kube-scheduler")}, []string{"add-on kube-scheduler", "every cluster has"}},
		"that of a node's":         {Config{Addons: named("kubelet")}, []string{"add-on kubelet", "every cluster has"}},
		"that of a runtime":        {Config{Addons: named("crio")}, []string{"add-on crio", "every cluster has"}},
		"no control plane":         {Config{RuntimeOnly: true, Addons: []Addon{watcher()}}, []string{"add-on layer-watcher", "control plane", "RuntimeOnly"}},
		"no health":                {Config{Addons: with(func(a *Addon) { a.Health = "" })}, []string{"add-on layer-watcher", "Health"}},
		"unknown flavour":          {Config{Addons: with(func(a *Addon) { a.Settings.Flavour = "x" })}, []string{`layer-watcher: flavour "x"`}},
		"kubeconfig of no user":    {Config{Addons: with(func(a *Addon) { a.User = "" })}, []string{"add-on layer-watcher", "--kubeconfig=$(KUBECONFIG)", "User"}},
		"unknown in an argument":   {Config{Addons: with(func(a *Addon) { a.Args = []string{"--to=$(HOST):1"} })}, []string{"add-on layer-watcher", "$(HOST)", "--to=", "ADDRESS, KUBECONFIG"}},
		"unknown in the health":    {Config{Addons: with(func(a *Addon) { a.Health = "http://$(NODE)/" })}, []string{"add-on layer-watcher", "$(NODE)", "ADDRESS, KUBECONFIG"}},
		"a placeholder of no name": {Config{Addons: with(func(a *Addon) { a.Args = []string{"$()"} })}, []string{"add-on layer-watcher", "$()"}},
	} {
		err := test.config.complete()
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one with %q", name, err, want)
			}
		}
	}
	good := Config{Addons: []Addon{watcher(), other}}
	if err := good.complete(); err != nil {
		t.Errorf("two good add-ons: %v", err)
	}
}

// A handle opened from the folder has the same add-on as the handle that started
// the cluster.
func TestAddonOfAnOpenedCluster(t *testing.T) {
	t.Parallel()
	started := rendered(t, Config{Addons: []Addon{watcher()}})
	err := started.update(func(s *state) { s.Subnet, s.Ready = netip.MustParsePrefix("203.0.113.0/24"), true })
	if err != nil {
		t.Fatal(err)
	}
	opened, err := Open(started.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Cluster{"started": started, "opened": opened} {
		addon := c.Addon("layer-watcher")
		if addon == nil || c.Addon("kube-scheduler") != nil || c.Addon("other") != nil {
			t.Fatalf("%s: not the add-ons of its configuration", name)
		}
		if addon.Name() != "control layer-watcher" || !strings.HasSuffix(addon.binary(addon.settings), "/patched/layer-watcher") {
			t.Errorf("%s: %s runs %s", name, addon.Name(), addon.binary(addon.settings))
		}
		args, err := addon.arguments(addon.settings)
		want := []string{
			"--kubeconfig=" + c.Dir() + "/pki/layer-watcher.kubeconfig", "--listen=203.0.113.1:9000",
			"--of=203.0.113.0/24,203.0.113.1", "--conf=" + c.Dir() + "/config/registries.conf", "--cost=$5",
		}
		if err != nil || !slices.Equal(args, want) {
			t.Errorf("%s: arguments %q, %v; want %q", name, args, err, want)
		}
		status, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if down := status.Down(); !slices.Equal(down[:6], []string{
			"control registry", "control etcd", "control kube-apiserver",
			"control kube-controller-manager", "control kube-scheduler", "control layer-watcher",
		}) || !slices.Equal(down[6:], []string{"n1 crio", "n1 kubelet", "n2 crio", "n2 kubelet"}) {
			t.Errorf("%s: components %v", name, down)
		}
	}
}

func TestAddonHealth(t *testing.T) {
	t.Parallel()
	ready := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ready || r.URL.Path != "/readyz" {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	addon := watcher()
	addon.Health = server.URL + "/readyz"
	c := rendered(t, Config{Addons: []Addon{addon}})
	if err := c.Addon(addon.Name).healthy(context.Background()); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("error %v of one that does not serve", err)
	}
	ready = true
	if err := c.Addon(addon.Name).healthy(context.Background()); err != nil {
		t.Error(err)
	}
}

// Components with a user have a kubeconfig, others have none.
func TestKubeconfigs(t *testing.T) {
	t.Parallel()
	nobody := watcher()
	nobody.Name, nobody.User, nobody.Args = "nobody", "", nil
	c := rendered(t, Config{Addons: []Addon{watcher(), nobody}})
	if err := c.issueCertificates(); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, p := range c.processes() {
		config, err := clientcmd.LoadFromFile(p.kubeconfig())
		if err != nil {
			continue
		}
		have = append(have, p.Name())
		if server := config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server; server != "https://203.0.113.1" {
			t.Errorf("%s: server %s", p.Name(), server)
		}
	}
	want := []string{"control kube-controller-manager", "control kube-scheduler", "control layer-watcher", "n1 kubelet", "n2 kubelet"}
	if !slices.Equal(have, want) {
		t.Errorf("%v have a kubeconfig, want %v", have, want)
	}
}
