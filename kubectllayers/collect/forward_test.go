package collect

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // k8s.io/streaming is none of our direct modules
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // the same
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
)

// forwarder is an apiserver. It has a scheduler's lease, its pod and a service account, and forwards ports to the
// scheduler.
type forwarder struct {
	t         *testing.T
	scheduler string
	// refuses are the ends of paths that it refuses; arrived is called when a forwarding is asked
	// for, before it begins.
	refuses string
	arrived func()
	// began and ended get a value for each forwarding.
	began, ended chan struct{}
}

// ServeHTTP implements http.Handler.
func (s *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, o runtime.Object) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(o); err != nil {
			s.t.Error(err)
		}
	}
	last := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	switch {
	case last == s.refuses:
		answer(http.StatusForbidden, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no"})
	case last == DefaultLeases[0]:
		o := lease(last, "pod-a_1", time.Second)
		o.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
		answer(http.StatusOK, o)
	case last == "pod-a":
		o := running(last, v1.PodRunning)
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		answer(http.StatusOK, o)
	case last == "token":
		answer(http.StatusCreated, &authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}, Status: authenticationv1.TokenRequestStatus{Token: "short-lived"}})
	case last == "portforward" && r.Method == http.MethodPost: // over SPDY; an older one has no other way
		s.forward(w, r)
	default:
		answer(http.StatusNotFound, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	}
}

// forward does what a kubelet does.
func (s *forwarder) forward(w http.ResponseWriter, r *http.Request) {
	if s.arrived != nil {
		s.arrived()
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		s.t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream, 100)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if connection == nil {
		return
	}
	s.began <- struct{}{}
	defer func() {
		_ = connection.Close()
		s.ended <- struct{}{}
	}()
	for {
		select {
		case <-connection.CloseChan():
			return
		case stream := <-streams:
			go func() {
				defer stream.Close()
				if stream.Headers().Get(v1.StreamType) == v1.StreamTypeError {
					return
				}
				to, err := net.Dial("tcp", s.scheduler)
				if err != nil {
					return
				}
				defer to.Close()
				go func() {
					_, _ = io.Copy(to, stream)
				}()
				_, _ = io.Copy(stream, to)
			}()
		}
	}
}

// However asking the scheduler ends, no forwarded port is left: neither on this machine nor in the
// apiserver.
func TestNothingIsLeft(t *testing.T) {
	for _, test := range []struct {
		name    string
		refuses string
		// scheduler answers, or nothing listens there; interrupts are in its answer or in the
		// forwarding.
		scheduler http.HandlerFunc
		gone      bool
		interrupt string
		want      string
	}{
		{name: "an answer", scheduler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer short-lived" || r.URL.Path != layerLocality {
				t.Errorf("%s %v", r.URL, r.Header)
			}
			_, _ = io.WriteString(w, `{"profiles": []}`)
		}},
		{name: "another program", scheduler: http.NotFound, want: "has no /debug/layerlocality: it is not ours"},
		{name: "nothing listens", gone: true, want: "does not answer"},
		{name: "interrupted", interrupt: "scheduler", want: context.Canceled.Error()},
		{name: "interrupted while forwarding", interrupt: "forwarding", want: context.Canceled.Error()},
		{name: "no token", refuses: "token", want: "cannot get a token of service account kube-system/layer-locality-debug: you may not"},
		{name: "no forwarding", refuses: "portforward", want: "cannot forward a port to pod kube-system/pod-a: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			released := make(chan struct{})
			release := func() { close(released) }
			scheduler := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.interrupt == "scheduler" {
					cancel()
					<-released
					return
				}
				test.scheduler(w, r)
			}))
			defer scheduler.Close()
			api := &forwarder{t: t, scheduler: scheduler.Listener.Addr().String(), refuses: test.refuses, began: make(chan struct{}, 10), ended: make(chan struct{}, 10)}
			if test.gone {
				scheduler.Close()
			}
			if test.interrupt == "forwarding" {
				api.arrived = func() {
					cancel()
					<-released
				}
			}
			server := httptest.NewServer(api)
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			s, err := OpenScheduler(ctx, config, client, SchedulerOptions{})
			if err == nil {
				_, err = s.Savings(ctx)
			}
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
			release()
			s.Close()
			s.Close() // again, as a deferred one
			wait := func(what string, c <-chan struct{}) {
				select {
				case <-c:
				case <-time.After(time.Minute):
					t.Fatalf("the forwarding has not %s", what)
				}
			}
			switch {
			case s != nil: // it was forwarded
				wait("begun", api.began)
				wait("ended", api.ended)
				wait("ended on this machine", s.done)
				if conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "https://")); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("the port on this machine: %v, %v", conn, err)
				}
			case test.interrupt == "forwarding": // what was asked for may begin, and then ends
				wait("begun", api.began)
				wait("ended", api.ended)
			case len(api.began) > 0:
				t.Error("a port was forwarded")
			}
		})
	}
}
