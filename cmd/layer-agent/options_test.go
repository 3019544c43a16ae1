package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/layer-locality/layer-locality/agent/crio"
)

// The runtime that is there is found, and a choice that is not clear is refused.
func TestRuntime(t *testing.T) {
	folder := t.TempDir()
	socket, root := filepath.Join(folder, "containerd.sock"), filepath.Join(folder, "storage")
	reader := func(runtime string) (string, error) {
		found, err := (&readOptions{runtime: runtime, socket: socket, namespace: "k8s.io", storage: []string{root}}).reader()
		if err != nil {
			return "", err
		}
		return found.Name(), nil
	}
	expect := func(runtime, want, why string) {
		t.Helper()
		got, err := reader(runtime)
		if got != want || (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %q, %v, want %q, %s", runtime, got, err, want, why)
		}
	}
	expect(auto, "", "neither "+socket+" nor "+root)
	expect(withCRIO, "cri-o", "")
	expect(withContainerd, "containerd", "")
	expect("docker", "", "want auto, containerd or cri-o")
	must(t, os.MkdirAll(filepath.Join(root, crio.Folder), 0o700))
	expect(auto, "cri-o", "")
	must(t, os.WriteFile(socket, nil, 0o600))
	expect(auto, "", "choose one with --runtime")
	must(t, os.RemoveAll(root))
	expect(auto, "containerd", "")
	if _, err := (&readOptions{runtime: withCRIO}).reader(); err == nil {
		t.Error("no store was taken")
	}
	err := (&readOptions{runtime: withCRIO, storage: []string{root}, handover: filepath.Join(folder, "missing")}).run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "missing is no folder") {
		t.Error(err)
	}
}

func TestMinLayerBytes(t *testing.T) {
	for _, bytes := range []int64{-1, 1<<40 + 1} {
		o := readOptions{minLayerBytes: bytes}
		if err := o.run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("--min-layer-bytes=%d: want", bytes)) {
			t.Errorf("%d: %v", bytes, err)
		}
	}
}

func TestPublishOptions(t *testing.T) {
	valid := publishOptions{renew: 10 * time.Minute, spread: 30 * time.Second}
	must(t, valid.validate())
	for why, change := range map[string]func(*publishOptions){
		"--renew=0s":   func(o *publishOptions) { o.renew = 0 },
		"--renew=25h":  func(o *publishOptions) { o.renew = 25 * time.Hour },
		"--renew=1.5s": func(o *publishOptions) { o.renew = 1500 * time.Millisecond },
		"--spread=-1s": func(o *publishOptions) { o.spread = -time.Second },
		"--spread=11m": func(o *publishOptions) { o.spread = 11 * time.Minute },
	} {
		o := valid
		change(&o)
		if err := o.validate(); err == nil || !strings.HasPrefix(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	folder := t.TempDir()
	valid.kubeconfig, valid.token = filepath.Join(folder, "kubeconfig"), filepath.Join(folder, "token")
	if err := valid.run(t.Context()); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Error(err)
	}
	must(t, os.WriteFile(valid.kubeconfig, []byte(`{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`), 0o600))
	must(t, os.WriteFile(valid.token, []byte("a token"), 0o600))
	if err := valid.run(t.Context()); err == nil || !strings.Contains(err.Error(), "--token-file="+valid.token) {
		t.Error(err)
	}
}

func TestHandler(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "a_gauge"}, func() float64 { return 7 }))
	ready := errors.New("nothing yet")
	h := handler(registry, func() error { return ready })
	expect := func(method, path string, code int, text string) {
		t.Helper()
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
		if recorder.Code != code || !strings.Contains(recorder.Body.String(), text) {
			t.Errorf("%s %s: %d %q, want %d %q", method, path, recorder.Code, recorder.Body, code, text)
		}
	}
	expect(http.MethodGet, "/livez", http.StatusOK, "ok")
	expect(http.MethodGet, "/readyz", http.StatusServiceUnavailable, "nothing yet")
	ready = nil
	expect(http.MethodGet, "/readyz", http.StatusOK, "ok")
	expect(http.MethodGet, "/metrics", http.StatusOK, "a_gauge 7")
	expect(http.MethodPost, "/metrics", http.StatusMethodNotAllowed, "")
	expect(http.MethodGet, "/debug/pprof/", http.StatusNotFound, "")
}

func TestPeersOptions(t *testing.T) {
	valid := peersOptions{ip: "fd00::1", port: 9451, bytes: 16 << 20}
	must(t, valid.validate())
	for want, change := range map[string]func(*peersOptions){
		"--bytes-per-second=16777215: want 16777216": func(o *peersOptions) { o.bytes-- },
		"--ip=: want":           func(o *peersOptions) { o.ip = "" },
		"--ip=n1: want":         func(o *peersOptions) { o.ip = "n1" },
		"--ip=fe80::1%e0: want": func(o *peersOptions) { o.ip = "fe80::1%e0" },
		"--port=0: want":        func(o *peersOptions) { o.port = 0 },
		"--port=65536: want":    func(o *peersOptions) { o.port = 65536 },
	} {
		o := valid
		change(&o)
		if err := o.run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
