// Package debugpage serves how a plugin rates all nodes for a pod.
package debugpage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Rater is the plugin of a profile.
type Rater interface {
	// RateNodes returns how it rates the nodes for a pod: what encoding/json can write. It
	// changes nothing, and may be called at any time.
	RateNodes(pod *v1.Pod, nodes []fwk.NodeInfo) any
}

// Page answers requests for the ratings of a plugin.
type Page struct {
	plugin string

	mu       sync.Mutex
	profiles map[string]profile
}

type profile struct {
	Rater
	nodes corelisters.NodeLister
	pods  corelisters.PodLister
}

// New returns the Page of a plugin without profiles.
func New(plugin string) *Page { return &Page{plugin: plugin, profiles: map[string]profile{}} }

// Add adds the plugin of the profile that has the handle.
func (p *Page) Add(handle fwk.Handle, rater Rater) {
	core := handle.SharedInformerFactory().Core().V1()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.profiles[handle.ProfileName()] = profile{rater, core.Nodes().Lister(), core.Pods().Lister()}
}

// get returns a profile and its name; of none, the first one by name.
func (p *Page) get(name string) (string, profile, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name == "" && len(p.profiles) > 0 {
		name = slices.Min(slices.Collect(maps.Keys(p.profiles)))
	}
	found, ok := p.profiles[name]
	return name, found, ok
}

// answer is what is served.
type answer struct {
	Note    string `json:"note"`
	Profile string `json:"profile"`
	Pod     string `json:"pod,omitempty"`
	Rating  any    `json:"rating"`
}

// Gets answers a request that is not a GET, and reports whether it is one.
func Gets(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet {
		return true
	}
	w.Header().Set("Allow", http.MethodGet)
	http.Error(w, "only GET", http.StatusMethodNotAllowed)
	return false
}

const note = "All nodes are rated: the filters of other plugins are not applied."

// ServeHTTP answers GET with ?pod=NAMESPACE/NAME, or with requests such as
// ?cpu=500m&memory=1Gi, and optionally &profile=SCHEDULER.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !Gets(w, r) {
		return
	}
	query := r.URL.Query()
	if _, _, ok := p.get(""); !ok {
		http.Error(w, "no profile of this scheduler enables "+p.plugin, http.StatusNotFound)
		return
	}
	name, profile, ok := p.get(query.Get("profile"))
	if !ok {
		http.Error(w, fmt.Sprintf("no profile %q that enables %s", name, p.plugin), http.StatusNotFound)
		return
	}
	pod, code, err := profile.podOf(query)
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	nodes, err := NodeInfos(profile.nodes, profile.pods, pod.UID)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(answer{note, name, query.Get("pod"), profile.RateNodes(pod, nodes)}) // the client went away
}

// podOf returns the pod that is asked for. The error has the status of the answer.
func (p *profile) podOf(query url.Values) (pod *v1.Pod, code int, err error) {
	if name := query.Get("pod"); name != "" {
		namespace, name, ok := strings.Cut(name, "/")
		if !ok {
			return nil, http.StatusBadRequest, fmt.Errorf("pod %q: want NAMESPACE/NAME", namespace)
		}
		pod, err := p.pods.Pods(namespace).Get(name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, http.StatusNotFound, fmt.Errorf("no pod %s/%s that is not finished", namespace, name)
		case err != nil:
			return nil, http.StatusInternalServerError, err
		}
		return pod, 0, nil
	}
	requests := v1.ResourceList{}
	for name, values := range query {
		if name == "profile" || name == "pod" {
			continue
		}
		quantity, err := resource.ParseQuantity(values[0])
		if err != nil || quantity.Sign() < 0 {
			return nil, http.StatusBadRequest, fmt.Errorf("%q=%q: ask with ?pod=NAMESPACE/NAME, or with requests such as ?cpu=500m&memory=1Gi", name, values[0])
		}
		requests[v1.ResourceName(name)] = quantity
	}
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: requests}}}}}, 0, nil
}

// NodeInfos returns all nodes by name, with the pods on them but for one. It asks informers,
// because a scheduler's own snapshot belongs to its scheduling cycle.
func NodeInfos(nodes corelisters.NodeLister, pods corelisters.PodLister, except types.UID) ([]fwk.NodeInfo, error) {
	all, err := pods.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	list, err := nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	placed := map[string][]*v1.Pod{}
	for _, pod := range all {
		if pod.Spec.NodeName != "" && (except == "" || pod.UID != except) {
			placed[pod.Spec.NodeName] = append(placed[pod.Spec.NodeName], pod)
		}
	}
	infos := make([]fwk.NodeInfo, len(list))
	for i, node := range list {
		info := framework.NewNodeInfo(placed[node.Name]...)
		info.SetNode(node)
		infos[i] = info
	}
	slices.SortFunc(infos, func(a, b fwk.NodeInfo) int { return cmp.Compare(a.Node().Name, b.Node().Name) })
	return infos, nil
}
