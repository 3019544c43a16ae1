package ledger

import (
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Key names a workload: the root of the chain of owners of its pods. An object that is
// deleted and made again under its name has another UID and is another workload.
type Key struct {
	Namespace string    `json:"namespace"`
	Kind      string    `json:"kind,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
}

// String returns the name of the workload for people.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Owner is what is known of an object that has pods or owners of pods.
type Owner struct {
	// Owner is the object's own owner, nil if it has none.
	Owner *metav1.OwnerReference
	// Replicas is how many of its pods shall run at once; 0 if it states no number.
	Replicas int
}

// Owners looks up the owners of pods. It returns false for an object that is not there (yet):
// then that is taken for the root.
type Owners func(namespace string, reference metav1.OwnerReference) (Owner, bool)

// maxChain is how many owners are followed: Pod, Job, CronJob and some kind of a tenant.
const maxChain = 5

// root is the workload of a pod.
type root struct {
	key      Key
	replicas int
	// unknown is the owner at which the chain ended because it was not found; empty if it
	// ended at its root.
	unknown types.UID
}

// maxName is the length of the longest names of objects, in bytes.
const maxName = 253

// usable reports whether a text may be part of a Key. References to owners are written by tenants,
// and the API server only checks that they are not empty: an endless one would not be saved, and
// one with line breaks would forge rows of the table.
func usable(name string) bool {
	return name != "" && len(name) <= maxName && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' })
}

// rootOf follows the owners of a pod, up to one whose reference cannot be part of a Key.
func rootOf(pod *v1.Pod, controller string, owners Owners) root {
	r := root{key: Key{Namespace: pod.Namespace, Kind: "Pod", Name: pod.Name, UID: pod.UID}}
	owner := metav1.GetControllerOfNoCopy(pod)
	for range maxChain {
		if owner == nil || !usable(owner.Kind) || !usable(owner.Name) || !usable(string(owner.UID)) {
			break
		}
		r.key.Kind, r.key.Name, r.key.UID = owner.Kind, owner.Name, owner.UID
		known, ok := owners(pod.Namespace, *owner)
		if !ok {
			r.unknown = owner.UID
			break
		}
		if known.Replicas > 0 {
			r.replicas = known.Replicas
		}
		owner = known.Owner
	}
	if controller != "" {
		r.key = Key{Namespace: pod.Namespace, Name: controller}
	}
	return r
}
