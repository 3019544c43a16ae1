//go:build e2e

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// load makes a pod every second, whose image a function returns, and removes the oldest when there
// are many. stop, which is also called at the end of the test, ends it and removes all.
func load(t *testing.T, name string, image func(ctx context.Context, i int) (string, error)) (stop func()) {
	t.Helper()
	const most = 10
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var pods []string
	one := func(i int) error {
		reference, err := image(ctx, i)
		if err != nil {
			return err
		}
		pod := scenario.Pod{Name: fmt.Sprint(name, "-", i), Image: reference, Scheduler: scenario.Layers}
		pods = append(pods, pod.Name)
		if err := lab.Submit(ctx, pod); err != nil || len(pods) <= most {
			return err
		}
		oldest := pods[0]
		pods = pods[1:]
		return lab.Drop(ctx, oldest)
	}
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for i := 0; ; i++ {
			if err := one(i); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-ticker.C:
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		err := <-ended
		if err := errors.Join(err, lab.Drop(context.Background(), pods...)); err != nil {
			t.Errorf("pods %s: %v", name, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// fresh returns images for load: every fifth pod has a new one, on one of four bases.
func fresh(name string) func(ctx context.Context, i int) (string, error) {
	var last string
	return func(ctx context.Context, i int) (string, error) {
		if i%5 > 0 {
			return last, nil
		}
		image, err := images.Build(images.Image{Layers: []images.Layer{
			{Name: fmt.Sprint("base-", i/5%4), Size: 3_000_000}, {Name: fmt.Sprint(name, i), Size: 1_200_000},
		}})
		if err != nil {
			return "", err
		}
		pushed, err := images.Push(ctx, c.Registry().Address+"/"+fmt.Sprint(name, "-", i, ":v1"), image)
		if err != nil {
			return "", err
		}
		last = pushed.Reference
		return last, nil
	}
}

// registry is one on this machine that has the images of the cluster's, and sends that it has a quota.
type registry struct {
	address string
	answer  atomic.Pointer[http.HandlerFunc]
}

func startRegistry(t *testing.T) *registry {
	t.Helper()
	listener, err := listen()
	must(t, err)
	r := &registry{address: listener.Addr().String()}
	r.answers(well)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		(*r.answer.Load())(w, request)
	})}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.Close() })
	return r
}

// answers changes how it answers: well, or as one that is ill.
func (r *registry) answers(how http.HandlerFunc) { r.answer.Store(&how) }

func well(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("RateLimit-Limit", "1000;w=21600")
		w.Header().Set("RateLimit-Remaining", "900;w=21600")
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.Registry().Address})
	proxy.Transport = &http.Transport{DisableKeepAlives: true} // without the proxies of the environment
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	proxy.ServeHTTP(w, r)
}

func ill(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// silent does not answer before its client gives up.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
