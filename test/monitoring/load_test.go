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
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/cluster/images"
	"github.com/layer-locality/layer-locality/internal/scenario"
)

// load makes a pod every second, and removes the oldest when there are many; all at the end of the test.
func load(t *testing.T) {
	t.Helper()
	const most = 10
	image := fresh()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var pods []string
	one := func(i int) error {
		reference, err := image(ctx, i)
		if err != nil {
			return err
		}
		pod := scenario.Pod{Name: fmt.Sprint("load-", i), Image: reference, Scheduler: scenario.Layers}
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
	t.Cleanup(func() {
		cancel()
		err := <-ended
		if err := errors.Join(err, lab.Drop(context.Background(), pods...)); err != nil {
			t.Error(err)
		}
	})
}

// fresh returns images for load: every fifth pod has a new one, on one of four bases.
func fresh() func(ctx context.Context, i int) (string, error) {
	var last string
	return func(ctx context.Context, i int) (string, error) {
		if i%5 > 0 {
			return last, nil
		}
		image, err := images.Build(images.Image{Layers: []images.Layer{
			{Name: fmt.Sprint("base-", i/5%4), Size: 3_000_000}, {Name: fmt.Sprint("own-", i), Size: 1_200_000},
		}})
		if err != nil {
			return "", err
		}
		pushed, err := images.Push(ctx, c.Registry().Address+"/"+fmt.Sprintf("load-%d:v1", i), image)
		if err != nil {
			return "", err
		}
		last = pushed.Reference
		return last, nil
	}
}

// startRegistry serves on this machine what the cluster's registry has, with a quota.
func startRegistry(t *testing.T) (address string) {
	t.Helper()
	listener, err := listen()
	must(t, err)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(limited)}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.Close() })
	return listener.Addr().String()
}

func limited(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("RateLimit-Limit", "1000;w=21600")
		w.Header().Set("RateLimit-Remaining", "900;w=21600")
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.Registry().Address})
	proxy.Transport = &http.Transport{DisableKeepAlives: true} // without the proxies of the environment
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	proxy.ServeHTTP(w, r)
}
