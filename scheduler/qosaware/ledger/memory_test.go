package ledger_test

import (
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// TestMemory checks that 50,000 pods of 5,000 workloads need at most 64 MiB beside the pods
// themselves, which the informer has, and that pods that are gone need none.
func TestMemory(t *testing.T) {
	const workloads, each = 5_000, 10
	l := newLab()
	pods := make([]*v1.Pod, 0, workloads*each)
	for i := range workloads {
		uid := types.UID(fmt.Sprint("rs-", i))
		l.owners[uid] = ledger.Owner{Replicas: each}
		for j := range each {
			p := promised(fmt.Sprintf("pod-%d-%d", i, j), i, ".5", account.Measurings[i%4])
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: fmt.Sprint("rs-", i), UID: uid, Controller: &yes}}
			pods = append(pods, bound(p, i))
		}
	}
	l.to(workloads)
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	for _, p := range pods {
		if err := l.Observe(p); err != nil {
			t.Fatal(err)
		}
	}
	l.Rows(false)
	full := heap() - before
	for _, p := range pods {
		if l.Remove(p) {
			l.Finish(p.UID, true)
		}
	}
	empty := heap() - before
	t.Logf("%.1f MiB for %d pods of %d workloads, %.1f MiB when all pods are gone", full, len(pods), workloads, empty)
	if full > 64 || empty > full/2 {
		t.Error("that is too much")
	}
	runtime.KeepAlive(l)
	runtime.KeepAlive(pods)
}

var yes = true
