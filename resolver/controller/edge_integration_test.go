//go:build integration

package controller

import (
	"bytes"
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
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
	w := newWorld(t)
	var references []string
	for i := range 20 {
		references = append(references, w.push(fmt.Sprintf("app-%d:1", i)))
		w.deployment(fmt.Sprintf("d-%d", i), references[i])
	}
	stop := w.start(func(o *Options) { o.TagTTL = 3 * time.Second })
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
	time.Sleep(5 * time.Second)
	stop()
	before := w.manifestRequests()
	for range 3 {
		stop = w.start(func(o *Options) { o.TagTTL = 3 * time.Second })
		time.Sleep(3 * time.Second)
		stop()
	}
	if after := w.manifestRequests(); after["HEAD"]+after["GET"] > 0 {
		t.Errorf("Retry-After: 3600 was answered to %v; three restarts within seconds asked %v more", before, after)
	}
	told := 0
	for _, reference := range references {
		for _, m := range w.manifests(reference) {
			if m.Status.RetryTime != nil {
				told++
			}
		}
	}
	if told == 0 {
		t.Error("no object says when the registry is asked again")
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
	keychains, _ := newCredentials(nil, c).keychains(context.Background(), []pull{{namespace: "default", serviceAccount: defaultAccount, secrets: "regcred"}})
	if len(keychains) != 1 {
		t.Errorf("%d keychains", len(keychains))
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
	w.start(func(o *Options) { o.PullSecrets = true })
	<-asked
	w.deployment("two", reference, "right")
	time.Sleep(time.Second) // for the informer
	close(answer)
	begin := time.Now()
	w.resolved(reference, 1)
	if waited := time.Since(begin); waited > minRefusal/2 {
		t.Errorf("resolved after %v: the old refusal was believed", waited)
	}
}
