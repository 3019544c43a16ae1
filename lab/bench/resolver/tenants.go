package resolver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench"
)

// TenantsConfig defines a soak of layer-resolver with hostile tenants.
type TenantsConfig struct {
	bench.Progress
	// Images of the honest tenants: four fifths come in the first sixth of the time.
	Images int `json:"images"`
	// Teams are the honest tenants, each with a namespace.
	Teams int `json:"teams"`
	// Duration of all.
	Duration time.Duration `json:"duration"`
	// PublishPrivate has layer-resolver publish what only pull secrets open.
	PublishPrivate bool   `json:"publishPrivate"`
	Root           string `json:"-"`
	LogDir         string `json:"-"`
}

// TenantsResult is what was measured.
type TenantsResult struct {
	Config TenantsConfig `json:"config"`
	// Known are the times from the creation of an honest Deployment until a watch saw that its image is
	// known, without those of the registry that was out at their creation.
	Known []time.Duration `json:"known"`
	// Late are those of more than ten seconds: when they were created, in seconds from the beginning.
	Late []string `json:"late"`
	// RSS of each process of layer-resolver, each ten seconds, in bytes.
	RSS map[string][]Sample `json:"rss"`
	// Leaks are what a namespace could read and had not written.
	Leaks []string `json:"leaks"`
	// Events that honest and hostile tenants got.
	Events map[string]int `json:"events"`
	// Hostile is how many objects each of the hostile tenants wrote.
	Hostile map[string]int `json:"hostile"`
}

// Sample is a process's resident memory at a time.
type Sample struct {
	At    time.Duration `json:"at"`
	Bytes int64         `json:"bytes"`
}

// soak is a running soak. Its shared registry, hub, wants a login, which layer-resolver has for all;
// the other one, quay, is open and out for a while; a third one is a hostile tenant's.
type soak struct {
	TenantsConfig
	*benchmark
	quay, evil *registry
	began      time.Time
	out        atomic.Bool // quay
	outage     [2]time.Time

	mu        sync.Mutex
	result    *TenantsResult
	created   map[image]time.Time
	named     []string                   // the references of created, in the order of their creation
	names     map[string]map[string]bool // that a namespace wrote
	processes map[string]*process
}

// fraction returns a part of the soak, in sixtieths: minutes, if it takes an hour.
func (s *soak) fraction(sixtieths int) time.Duration {
	return s.Duration * time.Duration(sixtieths) / 60
}

// RunTenants runs the soak. It fails if an honest image is not known in the end, or wrongly.
func RunTenants(ctx context.Context, config TenantsConfig) (_ *TenantsResult, err error) {
	if config.Teams < 1 || config.Teams > 1000 || config.Images < config.Teams || config.Images > 20_000 || config.Duration < time.Minute {
		return nil, fmt.Errorf("%d images of %d teams in %s: want 1 to 1000 teams, as many images up to 20000, and a minute at least", config.Images, config.Teams, config.Duration)
	}
	s := &soak{
		TenantsConfig: config, benchmark: &benchmark{Config: Config{Progress: config.Progress, Root: config.Root, LogDir: config.LogDir}},
		created: map[image]time.Time{}, names: map[string]map[string]bool{}, processes: map[string]*process{},
		result: &TenantsResult{Config: config, RSS: map[string][]Sample{}, Events: map[string]int{}, Hostile: map[string]int{}},
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	if err := s.registries(); err != nil {
		return nil, err
	}
	s.Logf("starting etcd and kube-apiserver")
	if s.server, err = startAPIServer(ctx, s.benchmark.Root); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.server.Stop()) }()
	if err := s.tenants(ctx); err != nil {
		return nil, err
	}
	s.began = time.Now()
	err = s.play(ctx)
	for _, p := range s.processes {
		_, stopped := p.stop()
		err = errors.Join(err, stopped)
	}
	return s.result, err
}

// registries makes hub, quay and the hostile one.
func (s *soak) registries() (err error) {
	const latency = 20 * time.Millisecond
	s.Logf("making %d images", s.Images)
	for _, r := range []**registry{&s.registry, &s.quay, &s.evil} {
		if *r, err = newRegistry(0, s.Teams, latency); err != nil {
			return err
		}
	}
	for i := range s.Images {
		at := s.registry
		if i%4 == 0 {
			at = s.quay
		}
		if err := at.addImage(fmt.Sprintf("team-%d/app-%d", i%s.Teams, i), "v1"); err != nil {
			return err
		}
	}
	for i := range s.Teams {
		if err := s.registry.addImage(fmt.Sprintf("private/team-%d", i), "v1"); err != nil {
			return err
		}
	}
	hub, quay := s.registry, s.quay
	hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		repository, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/")
		mine := user == "all" && !strings.HasPrefix(repository, "foreign/") && !strings.HasPrefix(repository, "private/") ||
			repository == "private/"+user
		switch {
		case password != "right-"+user || !mine:
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(repository, "hostile-1/"):
			s.serveEvil(w, r)
		default:
			hub.ServeHTTP(w, r)
		}
	})
	quay.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.out.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		quay.ServeHTTP(w, r)
	})
	s.evil.Config.Handler = http.HandlerFunc(s.serveEvil)
	return nil
}

// tenants creates the namespaces, with what they have from the beginning, and the files of layer-resolver.
func (s *soak) tenants(ctx context.Context) error {
	if err := s.server.createNode(ctx); err != nil {
		return err
	}
	namespaces := slices.Clone(hostileTenants)
	for i := range s.Teams {
		namespaces = append(namespaces, fmt.Sprintf("team-%d", i))
	}
	for _, namespace := range namespaces {
		s.names[namespace] = map[string]bool{}
		objects := []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			pullSecret(namespace, "own", map[string]any{s.registry.host(): map[string]string{"username": namespace, "password": "right-" + namespace}}, 0),
		}
		for _, object := range objects {
			if err := s.server.client.Create(ctx, object); err != nil {
				return err
			}
		}
	}
	login, err := json.Marshal(map[string]any{"auths": map[string]any{s.registry.host(): map[string]string{"username": "all", "password": "right-all"}}})
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"kubeconfig": s.server.Kubeconfig(), "ca.pem": s.registry.certificate(), "login.json": login} {
		if err := os.WriteFile(filepath.Join(s.dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// replica starts a layer-resolver with its defaults, and what a cluster of tenants sets.
func (s *soak) replica(ctx context.Context, name string) error {
	p, err := s.start(ctx, name, "--allow-registry", s.quay.host(), "--allow-registry", s.evil.host(),
		"--pull-secrets", "--publish-private="+strconv.FormatBool(s.PublishPrivate),
		"--docker-config", filepath.Join(s.dir, "login.json"), "--leader-elect", "--leader-election-namespace", metav1.NamespaceSystem)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.processes[name] = p
	s.mu.Unlock()
	_, err = p.ready(ctx)
	return err
}

// play runs tenants, faults and measurements until the end.
func (s *soak) play(ctx context.Context) error {
	for _, name := range []string{"resolver-a", "resolver-b"} {
		if err := s.replica(ctx, name); err != nil {
			return err
		}
	}
	hostile, ended := context.WithCancel(ctx)
	defer ended()
	lasting := ctx // beyond the group
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range hostileTenants {
		group.Go(func() error { return s.attack(hostile, name) })
	}
	group.Go(func() error { return s.attackNodes(hostile) })
	group.Go(func() error {
		defer ended()
		if err := s.honest(ctx); err != nil {
			return err
		}
		sleep(ctx, time.Until(s.began.Add(s.Duration)))
		return s.all(ctx)
	})
	group.Go(func() error { return s.faults(ctx, lasting) })
	group.Go(func() error {
		for hostile.Err() == nil {
			if err := s.sample(lasting); err != nil {
				return err
			}
			sleep(hostile, 10*time.Second)
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return s.leaks(lasting)
}

// honest creates the Deployments of the honest teams, whose images are all different.
func (s *soak) honest(ctx context.Context) error {
	images := append(slices.Clone(s.registry.images), s.quay.images...)
	private := func(i image) bool { return strings.Contains(i.reference, "/private/") }
	for _, i := range images {
		if private(i) {
			if err := s.deploy(ctx, "private", strings.TrimSuffix(i.reference[strings.LastIndex(i.reference, "/")+1:], ":v1"), i, "own"); err != nil {
				return err
			}
		}
	}
	images = slices.DeleteFunc(images, private)
	// By turns of both registries.
	slices.SortFunc(images, func(a, b image) int { return strings.Compare(a.manifest.Encoded(), b.manifest.Encoded()) })
	early := len(images) * 4 / 5
	for n, i := range images {
		at := s.fraction(10) * time.Duration(n) / time.Duration(early)
		if n >= early {
			at = s.fraction(10) + s.fraction(48)*time.Duration(n-early)/time.Duration(len(images)-early)
		}
		sleep(ctx, time.Until(s.began.Add(at)))
		team := strings.Split(i.reference, "/")[1]
		if err := s.deploy(ctx, fmt.Sprintf("app-%d", n), team, i); err != nil {
			return err
		}
		if n%500 == 0 {
			s.Logf("%d of %d honest images, %d objects", n, len(images), s.server.view.count())
		}
	}
	return nil
}

// deploy creates a Deployment, also while the API server is away.
func (s *soak) deploy(ctx context.Context, name, namespace string, i image, secrets ...string) error {
	d := deployment(name, i)
	d.Namespace = namespace
	for _, secret := range secrets {
		d.Spec.Template.Spec.ImagePullSecrets = append(d.Spec.Template.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	var begin time.Time
	err := poll.Until(ctx, 100*time.Millisecond, 5*time.Minute, func(ctx context.Context) error {
		begin = time.Now()
		return client.IgnoreAlreadyExists(s.server.client.Create(ctx, d))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[namespace][i.reference] = true; len(secrets) == 0 || s.PublishPrivate {
		s.created[i] = begin
		s.named = append(s.named, i.reference)
	}
	return err
}

// all waits until all honest images are known, and notes how long each took.
func (s *soak) all(ctx context.Context) error {
	return poll.Until(ctx, time.Second, 10*time.Minute, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.result.Known, s.result.Late = nil, nil
		for i, created := range s.created {
			at, ok, err := s.server.view.appeared(i)
			switch {
			case err != nil:
				return poll.Permanent(err)
			case !ok:
				return fmt.Errorf("%s is not known", i.reference)
			case strings.HasPrefix(i.reference, s.quay.host()) && created.After(s.outage[0].Add(-time.Second)) && created.Before(s.outage[1]):
			default:
				took := at.Sub(created)
				if s.result.Known = append(s.result.Known, took); took > 10*time.Second {
					s.result.Late = append(s.result.Late, fmt.Sprintf("%5.0f s, %s: %.1f s", created.Sub(s.began).Seconds(), i.reference, took.Seconds()))
				}
			}
		}
		slices.Sort(s.result.Known)
		slices.Sort(s.result.Late)
		return nil
	})
}

// faults are a leader that dies, a registry that is out for a twelfth of the time, and an API server
// that is killed and starts again.
func (s *soak) faults(ctx, lasting context.Context) error {
	at := func(sixtieths int) { sleep(ctx, time.Until(s.began.Add(s.fraction(sixtieths)))) }
	at(12)
	leader, other, err := s.leader()
	if err != nil {
		return err
	}
	s.Logf("killing the leader, %s", leader)
	s.mu.Lock()
	dead := s.processes[leader]
	delete(s.processes, leader)
	s.mu.Unlock()
	_ = dead.command.Process.Kill()
	<-dead.ended
	if err := poll.Until(ctx, time.Second, time.Minute, func(context.Context) error {
		_, _, err := s.leader()
		return err
	}); err != nil {
		return err
	}
	s.Logf("%s leads", other)
	if err := s.replica(lasting, leader+"-again"); err != nil {
		return err
	}
	at(18)
	s.Logf("killing the API server")
	if err := s.server.restart(ctx, filepath.Join(s.LogDir, "kube-apiserver.log")); err != nil {
		return err
	}
	s.Logf("it serves again")
	at(40)
	s.Logf("a registry is out")
	s.outage[0] = time.Now()
	s.out.Store(true)
	at(45)
	s.out.Store(false)
	s.outage[1] = time.Now()
	s.Logf("it is back")
	return nil
}

// leader returns which process leads, and the other one if there is one.
func (s *soak) leader() (leader, other string, err error) {
	s.mu.Lock()
	processes := maps.Clone(s.processes)
	s.mu.Unlock()
	for name, p := range processes {
		looked, err := p.metric("layerlocality_resolver_looked_total")
		switch {
		case err != nil:
			return "", "", err
		case looked == 0:
			other = name
		case leader != "":
			return "", "", errors.New("two processes have looked at images")
		default:
			leader = name
		}
	}
	if leader == "" {
		return "", "", errors.New("no process leads")
	}
	return leader, other, nil
}

// sample notes the memory of each process, and starts one again that has ended, as a kubelet does: a leader
// ends if it cannot renew its lease.
func (s *soak) sample(ctx context.Context) error {
	s.mu.Lock()
	processes := maps.Clone(s.processes)
	s.mu.Unlock()
	for name, p := range processes {
		select {
		case <-p.ended:
			s.Logf("%s has ended: %v", name, p.err)
			s.mu.Lock()
			delete(s.processes, name)
			s.mu.Unlock()
			if err := s.replica(ctx, name+"-again"); err != nil {
				return err
			}
			continue
		default:
		}
		proc, err := procfs.NewProc(p.command.Process.Pid)
		if err != nil {
			continue // it is ending
		}
		if stat, err := proc.Stat(); err == nil {
			s.mu.Lock()
			s.result.RSS[name] = append(s.result.RSS[name], Sample{time.Since(s.began), int64(stat.ResidentMemory())})
			s.mu.Unlock()
		}
	}
	return nil
}

// imageName is the name of an image in one of the registries.
var imageName = regexp.MustCompile(`127\.0\.0\.1:\d+/[^\s"',;()]+`)

// tenantName is that of a namespace.
var tenantName = regexp.MustCompile(`\b(team|hostile)-\d+\b`)

// leaks compares what each namespace may read, its events, with what it wrote, and notes layers of images that
// only pull secrets open.
func (s *soak) leaks(ctx context.Context) error {
	for namespace, own := range s.names {
		var list eventsv1.EventList
		if err := s.server.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		s.result.Events[tenantName.FindStringSubmatch(namespace)[1]] += len(list.Items)
		for i := range list.Items {
			text := list.Items[i].Note
			for _, name := range imageName.FindAllString(text, -1) {
				name = strings.TrimSuffix(name, ":")
				if !own[name] && !strings.Contains(name, "/"+namespace+"/") {
					s.result.Leaks = append(s.result.Leaks, namespace+" reads: "+text)
				}
				text = strings.ReplaceAll(text, name, "")
			}
			for _, name := range tenantName.FindAllString(text, -1) {
				if name != namespace {
					s.result.Leaks = append(s.result.Leaks, namespace+" reads: "+text)
				}
			}
			if strings.Contains(text, "sha256:") {
				s.result.Leaks = append(s.result.Leaks, namespace+" reads: "+text)
			}
		}
	}
	s.server.view.mu.Lock()
	defer s.server.view.mu.Unlock()
	for name, o := range s.server.view.objects {
		if strings.Contains(o.reference, "/private/") && o.layers > 0 && !s.PublishPrivate {
			s.result.Leaks = append(s.result.Leaks, name+" has layers of "+o.reference)
		}
	}
	return nil
}

// restart kills kube-apiserver and starts it again, with the same arguments, until it serves.
func (s *apiServer) restart(ctx context.Context, log string) error {
	children, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	for _, child := range children {
		stat, err := child.Stat()
		if err != nil || stat.PPID != os.Getpid() || stat.Comm != "kube-apiserver" {
			continue
		}
		args, err := child.CmdLine()
		if err != nil {
			return err
		}
		process, err := os.FindProcess(child.PID)
		if err != nil {
			return err
		}
		if err := process.Kill(); err != nil {
			return err
		}
		// The program that started it waits for it.
		if err := poll.Until(ctx, 10*time.Millisecond, time.Minute, func(context.Context) error {
			if stat, err := child.Stat(); err == nil && stat.State != "Z" {
				return errors.New("it has not ended")
			}
			return nil
		}); err != nil {
			return err
		}
		output, err := os.Create(log)
		if err != nil {
			return err
		}
		var command *exec.Cmd
		ended := make(chan struct{}, 1)
		start := func() error {
			command = exec.Command(args[0], args[1:]...)
			command.Stdout, command.Stderr = output, output
			if err := command.Start(); err != nil {
				return err
			}
			go func() {
				_ = command.Wait()
				ended <- struct{}{}
			}()
			return nil
		}
		if err := start(); err != nil {
			return errors.Join(err, output.Close())
		}
		stop := s.stop
		s.stop = func() error {
			err := stop()
			_ = command.Process.Kill()
			<-ended
			return errors.Join(err, output.Close())
		}
		return poll.Until(ctx, 100*time.Millisecond, 5*time.Minute, func(ctx context.Context) error {
			select {
			case <-ended: // a connection may have got its port meanwhile
				if err := start(); err != nil {
					return poll.Permanent(err)
				}
			default:
			}
			_, err := s.metrics.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			return err
		})
	}
	return errors.New("kube-apiserver is no process of this one")
}

// growth returns how much larger the largest memory of a process is in the last ten sixtieths of the time than it was in
// the eight after the first ten: all early images are known then, and the API server was not killed yet. Of the processes
// that run from the beginning, that with the least memory then counts. NaN if a time has no samples.
func (r *TenantsResult) growth() float64 {
	base, last := math.Inf(1), math.Inf(-1)
	for _, samples := range r.RSS {
		var before float64
		for _, sample := range samples {
			switch sixtieth := 60 * sample.At / r.Config.Duration; {
			case sixtieth >= 50:
				last = max(last, float64(sample.Bytes))
			case sixtieth >= 10 && sixtieth < 18 && samples[0].At < r.Config.Duration/6:
				before = max(before, float64(sample.Bytes))
			}
		}
		if before > 0 {
			base = min(base, before)
		}
	}
	if math.IsInf(base, 1) || math.IsInf(last, -1) {
		return math.NaN()
	}
	return last/base - 1
}

// Write implements bench.Result.
func (r *TenantsResult) Write(w io.Writer) error {
	for _, leak := range r.Leaks[:min(len(r.Leaks), 20)] {
		fmt.Fprintln(w, leak)
	}
	fmt.Fprintf(w, "events of namespaces: %v; objects written by hostile tenants: %v\n", r.Events, r.Hostile)
	quantile := func(q float64) float64 {
		if len(r.Known) == 0 {
			return 0
		}
		return r.Known[min(len(r.Known)-1, int(q*float64(len(r.Known))))].Seconds()
	}
	var peak int64
	for _, samples := range r.RSS {
		for _, sample := range samples {
			peak = max(peak, sample.Bytes)
		}
	}
	for _, late := range r.Late[:min(len(r.Late), 20)] {
		fmt.Fprintln(w, "late:", late)
	}
	_, err := fmt.Fprintf(w, "tenants honest=%d honest_p50_s=%.2f honest_p99_s=%.2f honest_max_s=%.1f late=%d rss_mib=%.0f rss_growth=%.3f leaks=%d\n",
		len(r.Known), quantile(0.5), quantile(0.99), quantile(1), len(r.Late), mib(peak), r.growth(), len(r.Leaks))
	return err
}
