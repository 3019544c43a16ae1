package collect

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/placements"
	"github.com/layer-locality/layer-locality/terminal"
)

// Paths of the scheduler's debug endpoints.
const (
	layerLocality = "/debug/layerlocality"
	qosAware      = "/debug/qosaware"
)

// Defaults: where the manifests in deploy put what is needed.
const (
	DefaultSchedulerNamespace = "kube-system"
	DefaultServiceAccount     = "layer-locality-debug"
	schedulerPort             = 10259
	tokenSeconds              = 600
	// maxAnswer is more than 10,000 placements have, or a series for each of thousands of profiles.
	maxAnswer = 16 << 20
	timeout   = 20 * time.Second
)

// DefaultLeases are looked for in this order: the second scheduler's, then that of a scheduler in
// place of the default one, which every cluster has.
var DefaultLeases = []string{"layer-locality-scheduler", "kube-scheduler"}

// SchedulerOptions are where the scheduler is.
type SchedulerOptions struct {
	// Namespace of leases and of the service account; PodNamespace that of the scheduler's pod, by
	// default the same.
	Namespace, PodNamespace string
	// Leases to look for; the first that there is counts.
	Leases         []string
	ServiceAccount string
	// URL of the secure port, where no pod can be forwarded to.
	URL string
	// Now is the time on the clock of the apiserver; by default that of this machine.
	Now func() time.Time
}

// Scheduler is the debug endpoint of the scheduler that works: the holder of its lease. Nobody signed
// the certificate of that port, so whoever poses as the scheduler gets to see what is sent: it is
// never the user's own token, but one of a service account that may read the debug path, besides what
// every account may, for ten minutes. Close ends the forwarding.
type Scheduler struct {
	client *http.Client
	base   string
	token  string
	stop   chan struct{}
	done   chan struct{}
	// Name is what answers, for messages.
	Name string
}

// OpenScheduler finds the scheduler and connects to it. The error is one sentence.
func OpenScheduler(ctx context.Context, config *rest.Config, client kubernetes.Interface, o SchedulerOptions) (*Scheduler, error) {
	o.Namespace, o.ServiceAccount = cmp.Or(o.Namespace, DefaultSchedulerNamespace), cmp.Or(o.ServiceAccount, DefaultServiceAccount)
	o.PodNamespace = cmp.Or(o.PodNamespace, o.Namespace)
	if o.Now == nil {
		o.Now = time.Now
	}
	if len(o.Leases) == 0 {
		o.Leases = DefaultLeases
	}
	s := &Scheduler{base: strings.TrimSuffix(o.URL, "/"), Name: o.URL}
	var pod *v1.Pod
	if o.URL != "" {
		u, err := url.Parse(o.URL)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, fmt.Errorf("%q is no address of a scheduler: want one such as https://10.0.0.1:10259", terminal.Line(o.URL, 200))
		}
	} else {
		var err error
		if pod, err = leaseHolder(ctx, client, o); err != nil {
			return nil, err
		}
		s.Name = "pod/" + pod.Name
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](tokenSeconds)}}
	token, err := client.CoreV1().ServiceAccounts(o.Namespace).CreateToken(ctx, o.ServiceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot get a token of service account %s/%s: %s: apply deploy/kubectl-layers, and ask for the Role layer-locality-scheduler-reader there", o.Namespace, o.ServiceAccount, reasonOf(err))
	}
	s.token = token.Status.Token
	s.client = &http.Client{Timeout: timeout, Transport: &http.Transport{
		// The scheduler signs its certificate itself. What it gets is of no use elsewhere.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see Scheduler
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if pod != nil {
		if err := s.forward(ctx, config, client, pod); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// leaseHolder returns the pod that holds the lease of a scheduler. If nobody holds the first lease that
// there is, that scheduler does not run: those after it are of others.
func leaseHolder(ctx context.Context, client kubernetes.Interface, o SchedulerOptions) (*v1.Pod, error) {
	lease, err := firstLease(ctx, client, o)
	if err != nil {
		return nil, err
	}
	of, identity := lease.Name, ptr.Deref(lease.Spec.HolderIdentity, "")
	if !leaseActive(lease, o.Now()) {
		return nil, fmt.Errorf("nobody renews the lease %s/%s: the scheduler does not run; see kubectl -n %s get pods, or name the lease of another one with --scheduler-lease", o.Namespace, of, o.PodNamespace)
	}
	host := identity
	if at := strings.LastIndexByte(identity, '_'); at > 0 { // <host name>_<random>
		host = identity[:at]
	}
	// The host name is that of the pod, or of the node: then it is a static pod.
	for _, name := range []string{host, "kube-scheduler-" + host} {
		pod, err := client.CoreV1().Pods(o.PodNamespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil && pod.Status.Phase == v1.PodRunning:
			return pod, nil
		case err == nil:
			return nil, fmt.Errorf("the scheduler %s/%s holds the lease %s, but its pod is %s: wait a moment", o.PodNamespace, terminal.Line(name, 253), of, pod.Status.Phase)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("cannot get the pod %s/%s: %s: ask for the Role layer-locality-scheduler-reader (deploy/kubectl-layers), or give --scheduler-url", o.PodNamespace, terminal.Line(name, 253), reasonOf(err))
		}
	}
	return nil, fmt.Errorf("the holder of the lease %s/%s, %q, is no pod in namespace %s: name that of the pod with --scheduler-pod-namespace (layer-locality with deploy/scheduler/okd), or give the address of its secure port with --scheduler-url", o.Namespace, of, terminal.Line(identity, 200), o.PodNamespace)
}

// firstLease returns the first lease that there is.
func firstLease(ctx context.Context, client kubernetes.Interface, o SchedulerOptions) (*coordinationv1.Lease, error) {
	for _, name := range o.Leases {
		lease, err := client.CoordinationV1().Leases(o.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			return lease, nil
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("cannot read the lease %s/%s: %s: ask for the Role layer-locality-scheduler-reader (deploy/kubectl-layers), or give --scheduler-url", o.Namespace, name, reasonOf(err))
		}
	}
	return nil, fmt.Errorf("there is no lease %s in namespace %s: no scheduler with our plugin elects a leader there; name its lease with --scheduler-lease, or give --scheduler-url", strings.Join(o.Leases, " or "), o.Namespace)
}

// leaseActive reports whether somebody renews a lease. Clocks of two machines may differ a little.
func leaseActive(lease *coordinationv1.Lease, now time.Time) bool {
	spec := &lease.Spec
	if ptr.Deref(spec.HolderIdentity, "") == "" || spec.RenewTime == nil {
		return false
	}
	lasts := time.Duration(max(15, ptr.Deref(spec.LeaseDurationSeconds, 15))) * time.Second
	return now.Sub(spec.RenewTime.Time) < 4*lasts
}

// forward forwards a port of this machine to the pod, until Close.
func (s *Scheduler) forward(ctx context.Context, config *rest.Config, client kubernetes.Interface, pod *v1.Pod) error {
	failed := func(err error) error {
		return fmt.Errorf("cannot forward a port to pod %s/%s: %s: ask for the Role layer-locality-scheduler-reader (deploy/kubectl-layers), or give --scheduler-url", pod.Namespace, pod.Name, reasonOf(err))
	}
	address := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return failed(err)
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	overWebSockets, err := portforward.NewSPDYOverWebsocketDialer(address, config)
	if err != nil {
		return failed(err)
	}
	dialer := portforward.NewFallbackDialer(overWebSockets, overSPDY, func(error) bool { return true })
	s.stop, s.done = make(chan struct{}), make(chan struct{})
	ready, ended := make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", schedulerPort)}, s.stop, ready, io.Discard, io.Discard)
	if err != nil {
		return failed(err)
	}
	go func() {
		defer close(s.done)
		ended <- forwarder.ForwardPorts()
	}()
	select {
	case <-ready:
	case err := <-ended:
		s.stop = nil
		return failed(cmp.Or(err, errors.New("it ended")))
	case <-time.After(timeout):
		close(s.stop) // and Close need not wait: nothing is forwarded yet
		s.stop = nil
		return failed(fmt.Errorf("no answer in %s", timeout))
	case <-ctx.Done():
		close(s.stop)
		s.stop = nil
		return failed(ctx.Err())
	}
	ports, err := forwarder.GetPorts()
	if err != nil || len(ports) != 1 {
		s.Close()
		return failed(cmp.Or(err, errors.New("no port")))
	}
	s.base = fmt.Sprintf("https://127.0.0.1:%d", ports[0].Local)
	return nil
}

// Close ends the forwarding.
func (s *Scheduler) Close() {
	if s == nil {
		return
	}
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	if s.stop != nil {
		close(s.stop)
		s.stop = nil
		select {
		case <-s.done:
		case <-time.After(5 * time.Second): // the process ends, and the connection with it
		}
	}
}

// Placements returns what the scheduler remembers of placing a pod.
func (s *Scheduler) Placements(ctx context.Context, namespace, name string) (*placements.Answer, error) {
	answer := &placements.Answer{}
	return answer, s.ask(ctx, url.Values{"placements": {namespace + "/" + name}}, answer)
}

// Savings returns what all placements saved since the scheduler started.
func (s *Scheduler) Savings(ctx context.Context) (*placements.Savings, error) {
	answer := &placements.Savings{}
	return answer, s.ask(ctx, url.Values{"savings": {"true"}}, answer)
}

// Rate has the scheduler rate all nodes for the pod of a target, and decodes its answer.
func (s *Scheduler) Rate(ctx context.Context, of *Target, into any) error {
	query := url.Values{"pod": {of.Namespace + "/" + of.Name}}
	if of.Kind != "pod" || of.Pod.UID == "" || of.Pod.Status.Phase == v1.PodSucceeded || of.Pod.Status.Phase == v1.PodFailed {
		spec, err := json.Marshal(asked(&of.Pod.Spec))
		if err != nil {
			return err
		}
		query = url.Values{"spec": {string(spec)}}
	}
	return s.ask(ctx, query, into)
}

// asked returns the parts of a pod that decide which nodes it fits on, and what they lack.
func asked(spec *v1.PodSpec) *v1.PodSpec {
	kept := slim(&v1.Pod{Spec: *spec}).Spec
	kept.NodeName, kept.NodeSelector, kept.Tolerations = "", spec.NodeSelector, spec.Tolerations
	if spec.Affinity != nil {
		kept.Affinity = &v1.Affinity{NodeAffinity: spec.Affinity.NodeAffinity}
	}
	return &kept
}

// Promises returns the table of QosAware as the scheduler writes it; wide has a line for each pod.
func (s *Scheduler) Promises(ctx context.Context, wide bool) (string, error) {
	query := url.Values{}
	if wide {
		query.Set("wide", "")
	}
	text, err := s.get(ctx, qosAware, query)
	return string(text), err
}

func (s *Scheduler) ask(ctx context.Context, query url.Values, into any) error {
	body, err := s.get(ctx, layerLocality, query)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the scheduler (%s) answers with something else than JSON: it is not one of ours", s.Name)
	}
	return nil
}

// plugins are what serves a path.
var plugins = map[string]string{layerLocality: "LayerLocality (docs/scheduler-install.md)", qosAware: "QosAware (docs/qosaware.md)"}

func (s *Scheduler) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("the scheduler (%s) does not answer: %s: see its log", s.Name, reasonOf(err))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the scheduler (%s) does not answer: %s: see its log", s.Name, reasonOf(err))
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("the scheduler (%s) answers with more than %d MiB: it is not one of ours", s.Name, maxAnswer>>20)
	case response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("the scheduler (%s) does not let the service account read %s: apply deploy/kubectl-layers", s.Name, path)
	case response.StatusCode == http.StatusNotFound && bytes.HasPrefix(body, []byte("no pod ")):
		return nil, fmt.Errorf("the scheduler (%s) does not have this pod yet: try again in a moment", s.Name)
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("the scheduler (%s) has no %s: it is not ours, or no profile of it enables %s", s.Name, path, plugins[path])
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the scheduler (%s) answers %d, %q: it may be older than this kubectl layers; see docs/upgrade.md", s.Name, response.StatusCode, terminal.Line(string(body), 200))
	}
	return body, nil
}

// reasonOf shortens an error to what fits a sentence.
func reasonOf(err error) string {
	if apierrors.IsForbidden(err) {
		return "you may not"
	}
	if apierrors.IsNotFound(err) {
		return "there is none"
	}
	return terminal.Line(err.Error(), 300)
}
