package locality

import (
	"fmt"
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
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

// TestStates has every state of a pod that a kubelet writes go through a Tracker, as the next version of a pod that was placed: which of
// its images are present on the node, which are arriving, and what its link does. The pod has the init containers init and
// sidecar, the containers a and b, the ephemeral container debug (in some) and the image volume data.
func TestStates(t *testing.T) {
	ready, notReady := v1.ConditionTrue, v1.ConditionFalse
	creating := func(names ...string) (all []v1.ContainerStatus) {
		for _, name := range names {
			all = append(all, waiting(name, "ContainerCreating", ""))
		}
		return all
	}
	initializes := []v1.ContainerStatus{waiting("a", "PodInitializing", ""), waiting("b", "PodInitializing", "")}
	with := func(statuses ...v1.ContainerStatus) []v1.ContainerStatus { return statuses }
	type state struct {
		phase           v1.PodPhase
		ready           *v1.ConditionStatus // PodReadyToStartContainers
		init, main, eph []v1.ContainerStatus
		changed         string // a container whose image was changed in place
		// there and coming are names of containers and the volume.
		there, coming string
		stage         stage
	}
	states := map[string]state{
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
		"the image of a sidecar was changed in place":                       {phase: v1.PodRunning, ready: &ready, changed: "sidecar", init: with(ended("init", 0), running("sidecar", time.Time{})), main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init a b data", coming: "sidecar", stage: pulling},
		"the node is not heard of":                                          {phase: v1.PodUnknown, main: with(running("a", time.Time{}), running("b", time.Time{})), there: "init sidecar a b data"},
		// To informers, which have unfinished pods only, these are deleted.
		"finished":            {phase: v1.PodSucceeded, there: "init sidecar a b data"},
		"failed, or evicted":  {phase: v1.PodFailed, there: "init sidecar a b data"},
		"evicted as it pulls": {phase: v1.PodFailed, main: creating("a", "b")},
	}
	// Each reason, of a container after the init containers.
	for is, reasons := range map[presence][]string{failed: notPulled, present: afterPull, absent: {"ContainerCreating", "PodInitializing", "a reason of a later version"}} {
		for _, reason := range reasons {
			s := state{phase: v1.PodPending, ready: &ready, init: with(ended("init", 0), running("sidecar", time.Time{})), main: with(waiting("a", reason, ""), waiting("b", "PodInitializing", "")), stage: pulling}
			s.there, s.coming = "init sidecar data", "b"
			switch is {
			case present:
				s.there = "init sidecar a data"
			case absent:
				s.coming = "a b"
			}
			states["waits with "+reason] = s
		}
	}
	for name, test := range states {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"},
			Spec: v1.PodSpec{
				NodeName:       "n1",
				InitContainers: []v1.Container{{Name: "init", Image: "init"}, {Name: "sidecar", Image: "sidecar", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}},
				Containers:     []v1.Container{{Name: "a", Image: "a"}, {Name: "b", Image: "b"}},
				Volumes:        []v1.Volume{{Name: "none"}, {Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data"}}}},
			},
		}
		n := newStateNode(t)
		n.is(pod)
		if test.changed != "" { // from an image with which it ran
			runs := pod.DeepCopy()
			runs.Status = v1.PodStatus{Phase: v1.PodRunning, InitContainerStatuses: with(ended("init", 0), running("sidecar", time.Time{})), ContainerStatuses: with(running("a", time.Time{}), running("b", time.Time{}))}
			before := runs.DeepCopy()
			for _, all := range [][]v1.Container{before.Spec.InitContainers, before.Spec.Containers} {
				for i := range all {
					if all[i].Name == test.changed {
						all[i].Image = "before"
					}
				}
			}
			n.is(before)
			n.is(runs)
		}
		pod = pod.DeepCopy()
		if test.eph != nil || strings.Contains(name, "ephemeral") {
			pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "debug"}}}
		}
		pod.Status = v1.PodStatus{Phase: test.phase, InitContainerStatuses: test.init, ContainerStatuses: test.main, EphemeralContainerStatuses: test.eph}
		if test.ready != nil {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: *test.ready}}
		}
		if ends := test.phase == v1.PodSucceeded || test.phase == v1.PodFailed; ends {
			if pod.Status.Phase = v1.PodRunning; test.main != nil {
				pod.Status.Phase = v1.PodPending
			}
			n.is(pod)
			n.pods.OnDelete(pod)
		} else {
			n.is(pod)
		}

		idle, busy := "", test.coming
		want := map[stage][3]string{taking: {busy, busy, idle}, preparing: {busy, idle, idle}, initializing: {idle, idle, idle}, pulling: {busy, busy, busy}}[test.stage]
		there, coming, link := n.has()
		if there != test.there || coming != test.coming || link != want[0] {
			t.Errorf("%s: present %q, arriving %q, the link is busy with %q, want %q, %q, %q", name, there, coming, link, test.there, test.coming, want[0])
		}
		n.clock.SetTime(n.clock.Now().Add(prepares + time.Second))
		if _, _, link := n.has(); link != want[1] {
			t.Errorf("%s: after %s, the link is busy with %q, want %q", name, prepares, link, want[1])
		}
		n.clock.SetTime(n.clock.Now().Add(time.Hour))
		if _, coming, link := n.has(); link != want[2] || coming != want[2] {
			t.Errorf("%s: after an hour, %q is arriving and the link is busy with %q, want %q", name, coming, link, want[2])
		}
	}
}

// stateNode is a node that has no image, as a Tracker sees it.
type stateNode struct {
	*Tracker
	clock *clocktesting.FakePassiveClock
	pods  cache.ResourceEventHandler
	last  *v1.Pod
}

// stateImages have sizes of which each sum shows what it is of.
var stateImages = []string{"init", "sidecar", "a", "b", "debug", "data"}

// sizes is a source of their layers.
type sizes struct{}

func (sizes) Manifests(name imageref.Canonical) []index.Manifest {
	for i, image := range stateImages {
		if strings.HasSuffix(string(name), "/"+image+":latest") {
			return []index.Manifest{{Layers: []index.Layer{{Digest: fmt.Sprintf("sha256:%064x", i), Size: 1 << i}}}}
		}
	}
	return nil
}

// known is the registration of a handler that has seen all nodes.
type known struct {
	cache.ResourceEventHandlerRegistration
}

func (known) HasSynced() bool { return true }

func newStateNode(t *testing.T) *stateNode {
	t.Helper()
	var external configv1.LayerLocalityArgs
	configv1.SetDefaults_LayerLocalityArgs(&external)
	var args config.LayerLocalityArgs
	if err := configv1.Convert_v1_LayerLocalityArgs_To_config_LayerLocalityArgs(&external, &args, nil); err != nil {
		t.Fatal(err)
	}
	n := &stateNode{clock: clocktesting.NewFakePassiveClock(time.Now())}
	n.Tracker = newTracker(Config{Clock: n.clock, Images: []ManifestSource{sizes{}}})
	n.nodeStore = cache.NewStore(cache.MetaNamespaceKeyFunc)
	n.podIndex = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byNode: nodeOf})
	n.NewProfile("p", &args)
	n.nodeHandler(klog.Background()).OnAdd(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}}}, false)
	n.pods = n.podHandler(t.Context(), known{})
	return n
}

// is delivers the next version of a pod.
func (n *stateNode) is(pod *v1.Pod) {
	if n.last == nil {
		n.pods.OnAdd(pod, false)
	} else {
		n.pods.OnUpdate(n.last, pod)
	}
	n.last = pod
}

// has returns which images are present and arriving, and which of them the link is busy with.
func (n *stateNode) has() (there, coming, link string) {
	var is [3][]string
	for i, image := range stateImages {
		var m index.Measurement
		n.first.Measure(n.first.Wanted(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Image: image}}}}), &m)
		bytes, _ := m.Node("n1")
		for k, has := range []bool{bytes.Present > 0, bytes.Arriving > 0, bytes.Pending&(1<<i) != 0} {
			if has {
				is[k] = append(is[k], image)
			}
		}
	}
	return strings.Join(is[0], " "), strings.Join(is[1], " "), strings.Join(is[2], " ")
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
