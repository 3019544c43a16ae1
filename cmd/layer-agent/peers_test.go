package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/peers"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/poll"
)

// nodeLayers is an apiserver that lists NodeLayers, and sends those that come later to who watches.
type nodeLayers struct {
	mu      sync.Mutex
	objects []v1alpha1.NodeLayers
	added   chan struct{} // closed when there is another one
	tokens  map[string]bool
}

func (n *nodeLayers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	n.mu.Lock()
	n.tokens[r.Header.Get("Authorization")] = true
	n.mu.Unlock()
	switch {
	case r.URL.Path != "/apis/layerlocality.io/v1alpha1/nodelayers" || r.Method != http.MethodGet:
		http.NotFound(w, r)
	case r.FormValue("sendInitialEvents") != "": // an apiserver without WatchList
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case r.FormValue("watch") == "":
		n.mu.Lock()
		defer n.mu.Unlock()
		_ = json.NewEncoder(w).Encode(v1alpha1.NodeLayersList{
			TypeMeta: metav1.TypeMeta{APIVersion: "layerlocality.io/v1alpha1", Kind: "NodeLayersList"},
			ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(len(n.objects) + 1)}, Items: n.objects,
		})
	default:
		n.watch(w, r)
	}
}

func (n *nodeLayers) watch(w http.ResponseWriter, r *http.Request) {
	var from int
	_, _ = fmt.Sscan(r.FormValue("resourceVersion"), &from)
	for sent := max(from-1, 0); ; {
		n.mu.Lock()
		objects, added := n.objects, n.added
		n.mu.Unlock()
		for ; sent < len(objects); sent++ {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": objects[sent]})
		}
		w.(http.Flusher).Flush()
		select {
		case <-added:
		case <-r.Context().Done():
			return
		}
	}
}

func (n *nodeLayers) add(object *v1alpha1.NodeLayers) {
	n.mu.Lock()
	defer n.mu.Unlock()
	object.ResourceVersion = fmt.Sprint(len(n.objects) + 2)
	n.objects = append(n.objects, *object)
	close(n.added)
	n.added = make(chan struct{})
}

// Two agents with what the command makes of its flags: a layer that CRI-O of one node keeps comes to CRI-O of
// the other one.
func TestPeers(t *testing.T) {
	apiserver := &nodeLayers{added: make(chan struct{}), tokens: map[string]bool{}}
	server := httptest.NewServer(apiserver)
	t.Cleanup(server.Close)
	content := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	sum := sha256.Sum256(content)
	layer := "sha256:" + hex.EncodeToString(sum[:])
	folder, err := os.MkdirTemp("", "") // sockets have short names
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	kubeconfig := filepath.Join(folder, "kubeconfig")
	must(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",`+
		`"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, server.URL), 0o600))
	sockets := map[string]string{}
	for _, node := range []string{"n1", "n2"} {
		o := &peersOptions{
			kubeconfig: kubeconfig, token: filepath.Join(folder, node+"-token"), handover: t.TempDir(), folder: t.TempDir(),
			socket: filepath.Join(folder, node), ip: "::FFFF:127.0.0.1", port: free(t), bytes: 1 << 30, address: "127.0.0.1:0",
		}
		sockets[node] = o.socket
		claims := fmt.Sprintf(`{"kubernetes.io":{"node":{"name":%q,"uid":"u"}}}`, node)
		must(t, os.WriteFile(o.token, []byte("x."+base64.RawURLEncoding.EncodeToString([]byte(claims))+".x"), 0o600))
		must(t, os.WriteFile(o.socket, nil, 0o600)) // left by the one before
		object := &v1alpha1.NodeLayers{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: v1alpha1.NodeLayersSpec{
			Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.Now(),
		}}
		object.APIVersion, object.Kind = "layerlocality.io/v1alpha1", "NodeLayers"
		if node == "n2" {
			must(t, os.WriteFile(filepath.Join(o.folder, layer[len("sha256:"):]), content, 0o600))
			object.Spec.Layers = []string{v1alpha1.ImageLayer{Digest: layer, Size: int64(len(content))}.String()}
		}
		running.Go(func() {
			if err := o.run(ctx); err != nil {
				t.Error(err)
			}
		})
		must(t, poll.Until(ctx, 10*time.Millisecond, time.Minute, func(context.Context) error {
			peer, err := handover.NewReader(o.handover).Peer()
			if object.Spec.Peer = peer; err == nil && peer == nil {
				err = fmt.Errorf("%s has published no key", node)
			}
			return err
		}))
		apiserver.add(object)
	}
	must(t, poll.Until(ctx, 10*time.Millisecond, time.Minute, func(ctx context.Context) error {
		held, err := ask(ctx, sockets["n1"], "/held", []byte(layer+"\n"))
		if err == nil && string(held) != layer+"\n" {
			err = fmt.Errorf("held: %q", held)
		}
		return err
	}))
	must(t, poll.Until(ctx, 10*time.Millisecond, time.Minute, func(ctx context.Context) error {
		got, err := ask(ctx, sockets["n1"], fmt.Sprintf("/layers/%s?size=%d", layer, len(content)), content[:peers.HeadBytes])
		if err == nil && !bytes.Equal(got, content) {
			err = fmt.Errorf("%d bytes of %d", len(got), len(content)) // n2 may not know n1 yet
		}
		return err
	}))
	apiserver.mu.Lock()
	defer apiserver.mu.Unlock()
	if len(apiserver.tokens) != 2 || apiserver.tokens[""] {
		t.Errorf("%d tokens", len(apiserver.tokens))
	}
}

// free returns a port that nobody has.
func free(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// ask asks an agent as CRI-O does.
func ask(ctx context.Context, socket, path string, body []byte) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}
