package resolver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/resolver/workloads"
)

// hostileTenants do what follows, each in its namespace.
var hostileTenants = []string{
	"hostile-0", // names images that do not exist, and others that may not be asked for, by the thousand
	"hostile-1", // has a registry of its own, and images in the shared one, with which everything is wrong
	"hostile-2", // has pull secrets as many and as large as possible, with wrong and impossible passwords
	"hostile-3", // names what the login for all does not open
	"hostile-4", // names what others have, and comes and goes
}

// attack lets a hostile tenant do its worst, once a second, until the end.
func (s *soak) attack(ctx context.Context, name string) error {
	step := map[string]func(int) []client.Object{
		"hostile-0": s.manyNames, "hostile-1": s.badImages, "hostile-2": s.badSecrets, "hostile-3": s.foreign, "hostile-4": s.neighbours,
	}[name]
	for turn := 0; ctx.Err() == nil; turn++ {
		for _, object := range step(turn) {
			object.SetNamespace(name)
			err := s.server.client.Create(ctx, object)
			if apierrors.IsAlreadyExists(err) {
				// Another one under its name: what the old one named is no longer in use.
				if err = s.server.client.Delete(ctx, object, client.GracePeriodSeconds(0)); err == nil {
					object.SetResourceVersion("")
					object.SetUID("")
					err = s.server.client.Create(ctx, object)
				}
			}
			s.mu.Lock()
			s.result.Hostile[name]++
			s.mu.Unlock()
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
				return fmt.Errorf("%s: %w", name, err)
			}
			// Others are the API server's, which is away for a while.
		}
		sleep(ctx, time.Second)
	}
	return nil
}

// attackNodes has nodes that somebody took over name as many images as count of a node, other ones each ten
// seconds, until the end.
func (s *soak) attackNodes(ctx context.Context) error {
	const nodes = 10
	for turn := 0; ctx.Err() == nil; turn++ {
		for n := range nodes {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("hostile-node-", n)}}
			// Errors are the API server's, which is away for a while.
			if err := client.IgnoreAlreadyExists(s.server.client.Create(ctx, node)); err != nil || s.server.client.Get(ctx, client.ObjectKeyFromObject(node), node) != nil {
				continue
			}
			node.Status.Images = nil
			for i := range workloads.MaxImagesPerNode {
				name := fmt.Sprintf("%s/held/node-%d/x-%d@%s", s.registry.host(), n, i, digest.FromString(fmt.Sprint(turn, n, i)))
				node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: 1})
			}
			err := s.server.client.Status().Update(ctx, node)
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
				return fmt.Errorf("%s: %w", node.Name, err)
			}
			if err == nil {
				s.mu.Lock()
				s.result.Hostile["nodes"]++
				s.mu.Unlock()
			}
		}
		sleep(ctx, 10*time.Second)
	}
	return nil
}

// images are the containers of a pod, one for each name.
func (s *soak) cronJob(namespace, name string, images []string, secrets ...string) *batchv1.CronJob {
	job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	job.Spec.Schedule, job.Spec.Suspend = "0 0 1 1 *", ptr.To(true)
	spec := &job.Spec.JobTemplate.Spec.Template.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	for i, image := range images {
		spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: image})
	}
	for _, secret := range secrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, image := range images {
		if !strings.Contains(image, "/"+namespace+"/") {
			s.names[namespace][image] = true
		}
	}
	return job
}

func (s *soak) manyNames(turn int) []client.Object {
	var unknown, denied []string
	for i := range FloodNames {
		unknown = append(unknown, fmt.Sprintf("%s/hostile-0/of-%d/%d:v1", s.registry.host(), turn, i))
		denied = append(denied, fmt.Sprintf("denied.example/hostile-0/of-%d/%d", turn%200, i))
	}
	return []client.Object{
		s.cronJob("hostile-0", fmt.Sprint("unknown-", turn%4), unknown),
		s.cronJob("hostile-0", fmt.Sprint("denied-", turn%200), denied),
	}
}

// faults of images, which serveEvil serves. The first ones are of the content, which a shared registry
// has as well.
var evilImages = []string{"variant", "many", "nested", "big", "slow", "status", "redirect", "away", "escape", "retry", "unavailable", "token", "trickle"}

const evilContents = 3

func (s *soak) badImages(turn int) []client.Object {
	var images []string
	for i, fault := range evilImages {
		images = append(images, fmt.Sprintf("%s/hostile-1/%s-%d:v1", s.evil.host(), fault, turn%20))
		if i < evilContents {
			images = append(images, fmt.Sprintf("%s/hostile-1/%s-%d:v1", s.registry.host(), fault, turn))
		}
	}
	images = append(images, strings.Repeat("x", 100_000), "BAD\x1b[2J", fmt.Sprintf("host-%d.example/hostile-1/x", turn))
	return []client.Object{s.cronJob("hostile-1", fmt.Sprint("bad-", turn%40), images)}
}

// serveEvil answers for an image with the fault that its repository is called after.
func (s *soak) serveEvil(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	repository, identifier, ok := strings.Cut(path, "/manifests/")
	if !ok {
		if path == "token" {
			time.Sleep(20 * time.Second)
		}
		return
	}
	fault, _, _ := strings.Cut(repository[strings.LastIndex(repository, "/")+1:], "-")
	send := func(mediaType types.MediaType, body []byte) {
		w.Header().Set("Content-Type", string(mediaType))
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
		_, _ = w.Write(body)
	}
	manifest := func(layers int) []byte {
		var list []map[string]any
		for i := range layers {
			list = append(list, map[string]any{"mediaType": types.OCILayer, "digest": digest.FromString(fmt.Sprint(repository, i)), "size": 1000})
		}
		body, _ := json.Marshal(map[string]any{
			"schemaVersion": 2, "mediaType": types.OCIManifestSchema1, "layers": list,
			"config": map[string]any{"mediaType": types.OCIConfigJSON, "digest": digest.FromString(repository), "size": 1},
		})
		return body
	}
	index := func(mediaType types.MediaType, entries ...map[string]any) {
		for _, entry := range entries {
			entry["mediaType"], entry["digest"], entry["size"] = mediaType, digest.FromBytes(manifest(1)), len(manifest(1))
		}
		body, _ := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": types.OCIImageIndex, "manifests": entries})
		send(types.OCIImageIndex, body)
	}
	platform := func(variant string) map[string]any {
		return map[string]any{"platform": map[string]any{"os": "linux", "architecture": "amd64", "variant": variant}}
	}
	byDigest := strings.Contains(identifier, ":")
	switch fault {
	case "variant":
		if byDigest {
			send(types.OCIManifestSchema1, manifest(1))
		} else {
			index(types.OCIManifestSchema1, platform("\x1b]0;v"+strings.Repeat("v", 100)), platform(""))
		}
	case "big":
		send(types.OCIManifestSchema1, []byte(`{"schemaVersion":2,"x":"`+strings.Repeat("x", 5<<20)+`"}`))
	case "many":
		send(types.OCIManifestSchema1, manifest(512))
	case "slow":
		time.Sleep(30 * time.Second)
	case "status":
		w.WriteHeader(200 + int(time.Now().UnixNano()%799)) //nolint:gosec // any will do
	case "redirect":
		http.Redirect(w, r, "https://169.254.169.254/latest/", http.StatusTemporaryRedirect)
	case "away":
		http.Redirect(w, r, s.registry.URL+"/v2/private/team-0/manifests/v1", http.StatusTemporaryRedirect)
	case "escape":
		send("application/\x7f", []byte("\x1b[2J"))
	case "retry":
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	case "unavailable":
		w.Header().Set("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")
		w.WriteHeader(http.StatusServiceUnavailable)
	case "token":
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/v2/token"`, s.evil.URL))
		w.WriteHeader(http.StatusUnauthorized)
	case "nested":
		index(types.OCIImageIndex, platform(""))
	default: // trickle
		for range 100 {
			_, _ = w.Write([]byte(" "))
			w.(http.Flusher).Flush()
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// pullSecret has those credentials, and others for as many registries as are read if it is to have so
// many bytes.
func pullSecret(namespace, name string, auths map[string]any, bytes int) *corev1.Secret {
	for i := 0; bytes > 0 && i < 200; i++ {
		auths[fmt.Sprintf("r%d.example", i)] = map[string]string{"username": "u", "password": strings.Repeat("x", bytes/200-60)}
	}
	text, _ := json.Marshal(map[string]any{"auths": auths})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: text},
	}
}

func (s *soak) badSecrets(turn int) []client.Object {
	auth := map[string]string{"username": fmt.Sprint("u", turn), "password": "wrong"}
	if turn%3 == 1 {
		auth["password"] = strings.Repeat("x", 40<<10)
	}
	full := pullSecret("hostile-2", fmt.Sprint("s", turn%32), map[string]any{s.registry.host(): auth}, 60<<10*min(1, turn%3))
	var secrets []string
	for i := range 32 {
		secrets = append(secrets, fmt.Sprint("s", (turn+i)%32))
	}
	team := turn % s.Teams
	images := []string{
		fmt.Sprintf("%s/private/team-%d:v1", s.registry.host(), team),
		fmt.Sprintf("%s/hostile-2/x-%d:v1", s.registry.host(), turn%100),
		fmt.Sprintf("%s/hostile-2/x-%d:v1", s.quay.host(), turn%100),
	}
	job := s.cronJob("hostile-2", fmt.Sprint("secrets-", turn%100), images, secrets...)
	job.Spec.JobTemplate.Spec.Template.Spec.ServiceAccountName = fmt.Sprint("sa-", turn)
	return []client.Object{full, job}
}

func (s *soak) foreign(turn int) []client.Object {
	var images []string
	for i := range 20 {
		images = append(images, fmt.Sprintf("%s/foreign/hostile-3/x-%d-%d:v1", s.registry.host(), turn%500, i))
	}
	return []client.Object{s.cronJob("hostile-3", fmt.Sprint("foreign-", turn%20), images)}
}

func (s *soak) neighbours(turn int) []client.Object {
	// Not before their teams do, who would find them known.
	s.mu.Lock()
	named := s.named[max(0, len(s.named)-2000):]
	s.mu.Unlock()
	var images []string
	for i := range min(50, len(named)) {
		images = append(images, named[(turn*50+i)%len(named)])
	}
	images = append(images, fmt.Sprintf("%s/private/team-%d:v1", s.registry.host(), turn%s.Teams))
	job := s.cronJob("hostile-4", fmt.Sprint("neighbours-", turn%10), images, "own")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "hostile-4", Name: fmt.Sprint("pod-", turn%5)}, Spec: *job.Spec.JobTemplate.Spec.Template.Spec.DeepCopy()}
	return []client.Object{job, pod}
}
