package locality

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
)

// waiting is the status of a container that waits. Its image ID is empty, as long as it was not created.
func waiting(name, reason, message string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func running(name string, at time.Time) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, ImageID: "id", Started: ptr.To(true), State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}}
}

func ended(name string, code int32) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, ImageID: "id", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}}
}

// created has a container that was created, and waits all the same.
func created(s v1.ContainerStatus) v1.ContainerStatus {
	s.ImageID = "id"
	return s
}

// The states of a pod that a kubelet writes, and what they mean for its images. The pod has the init containers init and
// sidecar, the containers a and b, the ephemeral container debug (in some) and the image volume data.
func TestStanding(t *testing.T) {
	ready, notReady := v1.ConditionTrue, v1.ConditionFalse
	creating := func(names ...string) (all []v1.ContainerStatus) {
		for _, name := range names {
			all = append(all, waiting(name, "ContainerCreating", ""))
		}
		return all
	}
	initializes := []v1.ContainerStatus{waiting("a", "PodInitializing", ""), waiting("b", "PodInitializing", "")}
	with := func(statuses ...v1.ContainerStatus) []v1.ContainerStatus { return statuses }
	for name, test := range map[string]struct {
		phase           v1.PodPhase
		ready           *v1.ConditionStatus // PodReadyToStartContainers
		init, main, eph []v1.ContainerStatus
		changed         string // a container whose image was changed in place
		// there and coming are names of containers and the volume.
		there, coming string
		stage         stage
	}{
		"placed, without a status":           {phase: "", coming: "init sidecar a b data"},
		"pending, without a status":          {phase: v1.PodPending, coming: "init sidecar a b data"},
		"it waits for a volume or a network": {phase: v1.PodPending, ready: &notReady, init: creating("init", "sidecar"), main: initializes, coming: "init sidecar a b data", stage: preparing},
		"it pulls":                           {phase: v1.PodPending, ready: &ready, init: creating("init", "sidecar"), main: initializes, coming: "init sidecar a b data", stage: pulling},
		"a kubelet without the condition":    {phase: v1.PodPending, init: creating("init", "sidecar"), main: initializes, coming: "init sidecar a b data", stage: pulling},

		"an init container runs":             {phase: v1.PodPending, ready: &ready, init: with(running("init", time.Time{}), waiting("sidecar", "PodInitializing", "")), main: initializes, there: "init data", coming: "sidecar a b", stage: initializing},
		"it is created":                      {phase: v1.PodPending, ready: &ready, init: with(created(waiting("init", "", ""))), main: initializes, there: "init data", coming: "sidecar a b", stage: initializing},
		"it lacks a secret":                  {phase: v1.PodPending, ready: &ready, init: with(waiting("init", "CreateContainerConfigError", `secret "s" not found`)), main: initializes, there: "init data", coming: "sidecar a b", stage: initializing},
		"it crashed":                         {phase: v1.PodPending, ready: &ready, init: with(created(waiting("init", "CrashLoopBackOff", ""))), main: initializes, there: "init data", coming: "sidecar a b", stage: initializing},
		"it failed, and is about to restart": {phase: v1.PodPending, ready: &ready, init: with(ended("init", 1)), main: initializes, there: "init data", coming: "sidecar a b", stage: initializing},
		"it is done":                         {phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), waiting("sidecar", "PodInitializing", "")), main: initializes, there: "init data", coming: "sidecar a b", stage: pulling},
		"a sidecar runs":                     {phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), running("sidecar", time.Time{})), main: initializes, there: "init sidecar data", coming: "a b", stage: pulling},
		"the image of an init container is not to be had":         {phase: v1.PodPending, ready: &ready, init: with(waiting("init", "ErrImagePull", "no such host")), main: initializes},
		"that of the second one":                                  {phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), waiting("sidecar", "ImagePullBackOff", "")), main: initializes, there: "init data"},
		"of an init container that the kubelet only puts off":     {phase: v1.PodPending, ready: &ready, init: with(waiting("init", "ErrImagePull", "pull QPS exceeded")), main: initializes, coming: "init sidecar a b data", stage: pulling},
		"of one container, while the other one is still pulled":   {phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), running("sidecar", time.Time{})), main: with(waiting("a", "ErrImagePull", ""), waiting("b", "PodInitializing", "")), there: "init sidecar data", coming: "b", stage: pulling},
		"one container runs, the other one is still pulled":       {phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), running("sidecar", time.Time{})), main: with(running("a", time.Time{}), waiting("b", "PodInitializing", "")), there: "init sidecar a data", coming: "b", stage: pulling},
		"one container runs, the other one lacks a configuration": {phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), running("sidecar", time.Time{})), main: with(running("a", time.Time{}), waiting("b", "CreateContainerConfigError", "")), there: "init sidecar a b data"},

		"running": {phase: v1.PodRunning, ready: &ready, init: with(ended("init", 0), running("sidecar", time.Time{})), main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a b data"},
		"running, of which no container is known":                           {phase: v1.PodRunning, there: "init sidecar a b data"},
		"a container restarts":                                              {phase: v1.PodRunning, ready: &ready, main: with(running("a", time.Time{}), created(waiting("b", "CrashLoopBackOff", ""))), there: "init sidecar a b data"},
		"one whose image is pulled each time, and was not to be had":        {phase: v1.PodRunning, ready: &ready, main: with(running("a", time.Time{}), created(waiting("b", "ErrImagePull", ""))), there: "init sidecar a b data"},
		"an ephemeral container was added":                                  {phase: v1.PodRunning, ready: &ready, eph: with(), main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a b data", coming: "debug", stage: pulling},
		"it runs":                                                           {phase: v1.PodRunning, ready: &ready, eph: with(running("debug", time.Time{})), main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a b debug data"},
		"its image is not to be had":                                        {phase: v1.PodRunning, ready: &ready, eph: with(waiting("debug", "ErrImagePull", "")), main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a b data"},
		"an image was changed in place":                                     {phase: v1.PodRunning, ready: &ready, changed: "b", main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a data", coming: "b", stage: pulling},
		"the container was ended for it":                                    {phase: v1.PodRunning, ready: &ready, changed: "b", main: with(running("a", time.Time{}), ended("b", 137)), there: "init sidecar a data", coming: "b", stage: pulling},
		"the new image is not to be had":                                    {phase: v1.PodRunning, ready: &ready, changed: "b", main: with(running("a", time.Time{}), created(waiting("b", "ErrImagePull", ""))), there: "init sidecar a data"},
		"all containers restart":                                            {phase: v1.PodRunning, ready: &ready, main: with(waiting("a", "RestartingAllContainers", ""), waiting("b", "RestartingAllContainers", "")), there: "init sidecar a b data"},
		"the sandbox was made again, and the second image is pulled for it": {phase: v1.PodRunning, ready: &ready, main: with(running("a", time.Time{}), waiting("b", "ContainerCreating", "")), there: "init sidecar a data", coming: "b", stage: pulling},
		"finished":                 {phase: v1.PodSucceeded, main: with(ended("a", 0), ended("b", 0)), there: "init sidecar a b data"},
		"the node is not heard of": {phase: v1.PodUnknown, main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a b data"},
	} {
		pod := &v1.Pod{
			Spec: v1.PodSpec{
				InitContainers: []v1.Container{{Name: "init", Image: "init"}, {Name: "sidecar", Image: "sidecar", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}},
				Containers:     []v1.Container{{Name: "a", Image: "a"}, {Name: "b", Image: "b"}},
				Volumes:        []v1.Volume{{Name: "none"}, {Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data"}}}},
			},
			Status: v1.PodStatus{Phase: test.phase, InitContainerStatuses: test.init, ContainerStatuses: test.main, EphemeralContainerStatuses: test.eph},
		}
		if test.eph != nil || strings.Contains(name, "ephemeral") {
			pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "debug"}}}
		}
		if test.ready != nil {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: *test.ready}}
		}
		changed := map[string]*v1.ContainerStatus{}
		if test.changed != "" {
			changed[test.changed] = &v1.ContainerStatus{}
		}
		got := standingOf(pod, changed)
		if there, coming := names(got.there), names(got.coming); there != test.there || coming != test.coming || got.stage != test.stage {
			t.Errorf("%s: there %q, coming %q, stage %d, want %q, %q, %d", name, there, coming, got.stage, test.there, test.coming, test.stage)
		}
	}
}

func names(images []imageref.PodImage) string {
	var all []string
	for _, image := range images {
		all = append(all, image.Name)
	}
	return strings.Join(all, " ")
}

// A sidecar holds up what comes after it until it has started; the kubelet leaves out IDs of containers that are not
// found any more; a failure that was there before an image was changed is of the image before.
func TestStandingOfRareStates(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	pod := func(init, main v1.ContainerStatus) *v1.Pod {
		return &v1.Pod{
			Spec: v1.PodSpec{
				InitContainers: []v1.Container{{Name: "sidecar", Image: "sidecar", RestartPolicy: &always}},
				Containers:     []v1.Container{{Name: "a", Image: "a"}},
			},
			Status: v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{init}, ContainerStatuses: []v1.ContainerStatus{main}},
		}
	}
	starting, gone := running("sidecar", time.Time{}), ended("sidecar", 0)
	starting.Started, gone.ImageID = ptr.To(false), ""
	main := waiting("a", "PodInitializing", "")
	for name, test := range map[string]struct {
		pod   *v1.Pod
		stage stage
	}{
		"it starts":         {pod(starting, main), initializing},
		"it lacks a secret": {pod(waiting("sidecar", "CreateContainerConfigError", ""), main), initializing},
		"it crashed":        {pod(created(waiting("sidecar", "CrashLoopBackOff", "")), main), initializing},
		"it is pulled":      {pod(waiting("sidecar", "PodInitializing", ""), main), pulling},
		"it has started":    {pod(running("sidecar", time.Time{}), main), pulling},
	} {
		if got := standingOf(test.pod, nil); got.stage != test.stage {
			t.Errorf("%s: %+v, want stage %d", name, got, test.stage)
		}
	}
	if got := standingOf(pod(gone, running("a", time.Time{})), nil); names(got.there) != "sidecar a" {
		t.Errorf("a container without ID that ended: %+v", got)
	}
	back := waiting("a", "ImagePullBackOff", `Back-off pulling image "b"`)
	before := map[string]*v1.ContainerStatus{"a": &back}
	if got := standingOf(pod(running("sidecar", time.Time{}), *back.DeepCopy()), before); names(got.coming) != "a" || got.stage != pulling {
		t.Errorf("a failure of the image before: %+v", got)
	}
	if got := standingOf(pod(running("sidecar", time.Time{}), waiting("a", "ErrImagePull", "no such tag")), before); len(got.coming) != 0 {
		t.Errorf("a failure of the new image: %+v", got)
	}
}

// An image that one container has and another one waits for is there.
func TestStandingOfOneImage(t *testing.T) {
	pod := &v1.Pod{
		Spec:   v1.PodSpec{Containers: []v1.Container{{Name: "a", Image: "one"}, {Name: "b", Image: "one", ImagePullPolicy: v1.PullAlways}}},
		Status: v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{running("a", time.Time{}), waiting("b", "ContainerCreating", "")}},
	}
	if got := standingOf(pod, nil); names(got.there) != "one" || len(got.coming) != 0 {
		t.Errorf("%+v", got)
	}
}

// Each error with which the kubelet has a container wait stands in one of the lists, or is not one of a container
// that has no image ID.
func TestReasonsOfTheKubelet(t *testing.T) {
	others := []string{
		"CrashLoopBackOff", "KillContainerError", "RemoveContainerError", // the container was created
		"ResizePodInPlaceError",                                                 // it runs
		"CreatePodSandboxError", "ConfigPodSandboxError", "KillPodSandboxError", // of pods: no container waits with it
		"RROUnsupported", "ImageVolumeMountFailed", // how messages of runtimes begin, not reasons
	}
	all := slices.Concat(notPulled, afterPull, others)
	found := map[string]bool{"RestartingAllContainers": true} // a constant, not an error
	reason := regexp.MustCompile(`errors\.New\("([A-Z][A-Za-z]+)"\)`)
	for _, pkg := range []string{"k8s.io/kubernetes/pkg/kubelet/images", "k8s.io/kubernetes/pkg/kubelet/kuberuntime", "k8s.io/kubernetes/pkg/kubelet/container", "k8s.io/cri-api/pkg/errors"} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-find", "-f", "{{.Dir}}", pkg).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pkg, err)
		}
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pkg, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range reason.FindAllSubmatch(text, -1) {
				found[string(match[1])] = true
			}
		}
	}
	for name := range found {
		if !slices.Contains(all, name) {
			t.Errorf("the kubelet has the error %s: what does it mean for the image of a container that waits with it?", name)
		}
	}
	for _, name := range all {
		if !found[name] {
			t.Errorf("no package has the error %s; there are %v", name, slices.Sorted(maps.Keys(found)))
		}
	}
}

// Times of a status are those of another machine's clock: none is later than now.
func TestTimesOfAPod(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	earlier, future := now.Add(-time.Minute), now.Add(time.Hour)
	for name, test := range map[string]struct {
		conditions []v1.PodCondition
		want       time.Time
	}{
		"no condition": {nil, now},
		"another one":  {[]v1.PodCondition{{Type: v1.PodReady, LastTransitionTime: metav1.NewTime(earlier)}}, now},
		"placed":       {[]v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(earlier)}}, earlier},
		"without time": {[]v1.PodCondition{{Type: v1.PodScheduled}}, now},
		"in an hour":   {[]v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(future)}}, now},
	} {
		if got := since(&v1.Pod{Status: v1.PodStatus{Conditions: test.conditions}}, v1.PodScheduled, now); !got.Equal(test.want) {
			t.Errorf("%s: placed at %v, want %v", name, got, test.want)
		}
	}
	for name, test := range map[string]struct {
		statuses []v1.ContainerStatus
		want     time.Time
	}{
		"nothing runs": {[]v1.ContainerStatus{waiting("a", "", "")}, time.Time{}},
		"the last one": {[]v1.ContainerStatus{running("a", earlier), running("b", earlier.Add(-time.Minute))}, earlier},
		"in any order": {[]v1.ContainerStatus{running("b", earlier.Add(-time.Minute)), running("a", earlier)}, earlier},
		"in an hour":   {[]v1.ContainerStatus{running("a", future)}, now},
	} {
		if got := startedAt(&v1.Pod{Status: v1.PodStatus{ContainerStatuses: test.statuses}}, now); !got.Equal(test.want) {
			t.Errorf("%s: started at %v, want %v", name, got, test.want)
		}
	}
}
