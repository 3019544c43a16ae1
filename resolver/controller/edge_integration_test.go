//go:build integration

package controller

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// A Deployment with two images that do not exist.
func TestTwoBrokenImages(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("two", w.host+"/one:1")
	d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "second", Image: w.host + "/two:1"})
	w.must(direct.Update(w.ctx, d))
	w.start()
	w.refused(w.host+"/one:1", v1alpha1.ReasonNotFound)
	w.refused(w.host+"/two:1", v1alpha1.ReasonNotFound)
	for _, image := range []string{"/one:1", "/two:1"} {
		w.eventually(func() error {
			var list eventsv1.EventList
			w.must(direct.List(w.ctx, &list))
			for _, e := range list.Items {
				if e.Regarding.Name == "two" && strings.Contains(e.Note, image) {
					return nil
				}
			}
			return fmt.Errorf("no event about %s", image)
		})
	}
}

// One of the two objects of an index is deleted by hand.
func TestDeleteOneOfTwo(t *testing.T) {
	w := newWorld(t)
	w.node("arm", "arm64")
	reference := w.push("app:1", "amd64", "arm64")
	w.deployment("one", reference)
	w.start()
	found := w.resolved(reference, 2)
	w.must(direct.Delete(w.ctx, &found[0]))
	w.eventually(func() error {
		if now := w.manifests(reference); len(now) != 2 || now[0].UID == found[0].UID || now[1].UID == found[0].UID {
			return fmt.Errorf("%d objects", len(now))
		}
		return nil
	})
}

// The resolver is restarted while a registry has asked it to wait.
func TestRetryAfterRestart(t *testing.T) {
	const ttl = 3 * time.Second
	w, other := newWorld(t), newRegistry(t)
	w.others = []string{other.host}
	var references []string
	for i := range 20 {
		references = append(references, w.push(fmt.Sprintf("app-%d:1", i)))
		w.deployment(fmt.Sprintf("d-%d", i), references[i])
	}
	start := func() (stop func()) { return w.start(func(o *Options) { o.TagTTL = ttl }) }
	stop := start()
	for _, r := range references {
		w.resolved(r, 1)
	}
	limited := func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			rw.Header().Set("Retry-After", "3600")
			rw.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		return false
	}
	w.before.Store(&limited)
	told := func() (objects int) {
		for _, reference := range references {
			for _, m := range w.manifests(reference) {
				if m.Status.RetryTime != nil {
					objects++
				}
			}
		}
		return objects
	}
	w.eventually(func() error {
		if told() == 0 {
			return errors.New("no object says when the registry is asked again")
		}
		return nil
	})
	stop()
	w.eventually(func() error {
		for _, reference := range references {
			if confirmed := w.manifests(reference)[0].Status.References[0].LastConfirmed; time.Since(confirmed.Time) < ttl {
				return fmt.Errorf("%s need not be confirmed before %v", reference, confirmed.Add(ttl))
			}
		}
		return nil
	})
	before := w.manifestRequests()
	for i := range 3 {
		stop = start()
		w.eventually(func() error {
			if !w.resolver.leading.Load() {
				return errors.New("the resolver does not lead")
			}
			return nil
		})
		// What it asks another registry for comes after all that was due.
		marker := other.push(fmt.Sprintf("marker-%d:1", i))
		w.deployment(fmt.Sprintf("marker-%d", i), marker)
		w.resolved(marker, 1)
		stop()
	}
	if after := w.manifestRequests(); after["HEAD"]+after["GET"] > 0 {
		t.Errorf("Retry-After: 3600 was answered to %v; three restarts within seconds asked %v more", before, after)
	}
	if told() == 0 {
		t.Error("no object says any more when the registry is asked again")
	}
}

// Logs at -v=10 while a pull secret is read.
func TestSecretInLog(t *testing.T) {
	w := newWorld(t)
	w.secret("regcred", "reader", "hunter2secret")
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	var out bytes.Buffer
	w.must(flags.Set("v", "10"))
	klog.SetOutput(&out)
	c, err := client.New(plane.Config, client.Options{Scheme: scheme})
	w.must(err)
	found := pullsecrets.New(nil, c).ByNamespace(context.Background(), []usage.Pull{{Namespace: "default", ServiceAccount: usage.DefaultAccount, Secrets: "regcred"}})
	if len(found) != 1 || len(found[0].Keychains) != 1 {
		t.Errorf("found %+v", found)
	}
	klog.Flush()
	w.must(flags.Set("v", "0"))
	klog.SetOutput(discard{})
	var secret corev1.Secret
	w.must(direct.Get(w.ctx, client.ObjectKey{Namespace: "default", Name: "regcred"}, &secret))
	log := out.String()
	encoded := base64.StdEncoding.EncodeToString(secret.Data[corev1.DockerConfigJsonKey])
	if i := strings.Index(log, encoded); i >= 0 {
		t.Errorf("the log at -v=10 has the secret: %s", log[max(0, i-200):i+len(encoded)])
	}
	// As protobuf, it is dumped in hexadecimal with the text beside.
	if i := strings.Index(log, "|......"); i >= 0 || strings.Contains(log, "00000000  6b 38 73 00") {
		j := strings.Index(log, "00000000  6b 38 73 00")
		t.Errorf("the log at -v=10 has the secret as a dump: %.900s", log[max(0, j):])
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A workload with the right secret comes while the request with the wrong one
// is still running.
func TestSecretDuringAttempt(t *testing.T) {
	w := newWorld(t)
	reference := w.push("private:1")
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	basic := func(rw http.ResponseWriter, r *http.Request) bool {
		user, password, given := r.BasicAuth()
		if user == "me" && password == "open-sesame" {
			return false
		}
		if given {
			asked <- struct{}{}
			<-answer
		}
		rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	w.before.Store(&basic)
	w.secret("wrong", "me", "wrong")
	w.secret("right", "me", "open-sesame")
	w.deployment("one", reference, "wrong")
	w.start(func(o *Options) { o.PullSecrets, o.PublishPrivate = true, true })
	<-asked
	w.deployment("two", reference, "right")
	w.deployment("three", reference, "right")
	w.eventually(func() error { // once the third is noted, the second has been handled
		if users := w.resolver.usage.Workloads(reference, 10); len(users) < 3 {
			return fmt.Errorf("in use by %v", users)
		}
		return nil
	})
	close(answer)
	begin := time.Now()
	w.resolved(reference, 1)
	if waited := time.Since(begin); waited >= minRefusal*4/5 { // backoff varies by a fifth
		t.Errorf("resolved after %v: the old refusal was believed", waited)
	}
}

// One namespace updates a CronJob again and again, each time with 256 images that do not
// exist. Objects stay few, images of another namespace are resolved all the time, and
// afterwards everything is collected although no process lives long enough for it.
func TestFlood(t *testing.T) {
	const keep = 15 * time.Second
	updates := 200
	if os.Getenv("FULL") != "" {
		updates = 1000
	}
	w, began := newWorld(t), time.Now()
	stop := w.start(func(o *Options) { o.KeepUnused = keep })
	job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "flood", Namespace: "flood"}}
	job.Spec.Schedule, job.Spec.Suspend = "0 0 1 1 *", ptr.To(true)
	spec := &job.Spec.JobTemplate.Spec.Template.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	name := func(update int) {
		spec.Containers = spec.Containers[:0]
		for i := range 256 {
			spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: fmt.Sprintf("%s/none-%d:%d", w.host, i, update)})
		}
	}
	w.must(direct.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "flood"}}))
	name(0)
	w.must(direct.Create(w.ctx, job))
	flooded := make(chan error, 1)
	var honest atomic.Int32
	go func() {
		for update := 0; update < updates || honest.Load() < 5; update++ {
			name(update + 1)
			if err := direct.Update(w.ctx, job); err != nil {
				flooded <- err
				return
			}
		}
		flooded <- direct.Delete(w.ctx, job)
	}()
	most := 0
	for ended := false; !ended; {
		select {
		case err := <-flooded:
			w.must(err)
			ended = true
		default:
			reference := w.push(fmt.Sprintf("honest-%d:1", honest.Load()))
			d := w.deployment(fmt.Sprintf("honest-%d", honest.Load()), reference)
			w.resolved(reference, 1)
			w.must(direct.Delete(w.ctx, d))
			honest.Add(1)
			var list v1alpha1.ImageManifestList
			w.must(direct.List(w.ctx, &list))
			most = max(most, len(list.Items)-int(honest.Load()))
		}
	}
	t.Logf("%d honest images resolved during the flood; at most %d objects of it", honest.Load(), most)
	// What a worker is about to write is not counted yet when a sweep counts.
	if limit := usage.MaxUnresolved.Each + 16; most > limit || most == 0 {
		t.Errorf("at most %d objects of the flood, want 1 to %d", most, limit)
	}
	var events eventsv1.EventList
	w.must(direct.List(w.ctx, &events, client.InNamespace("flood")))
	if n, allowed := len(events.Items), eventBurst+1+int(time.Since(began)/eventInterval); n == 0 || n > allowed {
		t.Errorf("%d events, want 1 to %d", n, allowed)
	}
	left := func() int {
		var list v1alpha1.ImageManifestList
		w.must(direct.List(w.ctx, &list))
		return len(list.Items)
	}
	for range 10 {
		stop()
		stop = w.start(func(o *Options) { o.KeepUnused = keep })
		time.Sleep(keep / 6)
	}
	w.eventually(func() error {
		if n := left(); n > 0 {
			return fmt.Errorf("%d objects are left", n)
		}
		return nil
	})
}

// An admission policy refuses the objects of some images. Others of the same registry do not wait, and
// who uses a refused one is told.
func TestObjectsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	refuse := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-evil"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"imagemanifests"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: `!has(object.spec.digest) || !object.status.references.exists(r, r.name.contains("/evil:"))`}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "no-evil"},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "no-evil", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	for _, object := range []client.Object{refuse, binding} {
		w.must(direct.Create(w.ctx, object))
		t.Cleanup(func() { w.must(direct.Delete(context.WithoutCancel(w.ctx), object)) })
	}
	// The API server takes some time to notice.
	w.eventually(func() error {
		probe := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName("sha256:" + strings.Repeat("e", 64))}}
		probe.Spec.Digest = "sha256:" + strings.Repeat("e", 64)
		probe.Status.References = []v1alpha1.ImageReference{{Name: "x/evil:1"}}
		err := direct.Create(w.ctx, probe, client.DryRunAll)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return nil
		}
		return fmt.Errorf("the policy is not in force: %w", err)
	})
	w.start()
	for i := range 8 {
		w.deployment(fmt.Sprint("evil-", i), w.push(fmt.Sprintf("evil:%d", i), "amd64"))
	}
	w.told("evil-7", v1alpha1.ReasonNotAccepted)
	var honest []string
	for i := range 40 {
		honest = append(honest, w.push(fmt.Sprintf("app:%d", i), "amd64"))
		w.deployment(fmt.Sprint("app-", i), honest[i])
	}
	for _, reference := range honest {
		w.resolved(reference, 1)
	}
	w.refused(w.host+"/evil:0", v1alpha1.ReasonNotAccepted)
}
