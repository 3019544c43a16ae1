package usage

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// While others fill all room, a workload keeps its names whatever changes of it, and namespaces have room
// up to what each could have at most, however many small ones there are.
func TestNamesStay(t *testing.T) {
	u, _ := newTestUsage()
	u.names = newNames(Limits{All: 500, Each: 200})
	list := func(of string, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("reg/%s-%d:1", of, i))
		}
		return names
	}
	for i := range 100 {
		u.Set(imagesFor("w", fmt.Sprint("small-", i), "reg/x:1"))
	}
	honest := imagesFor("w", "honest", list("honest", 50)...)
	u.Set(honest)
	for i := range 5 {
		u.Set(imagesFor("w", fmt.Sprint("many-", i), list(fmt.Sprint("many-", i), 1000)...))
	}
	if u.names.all < u.names.limit.All || u.names.all > 2*u.names.limit.All {
		t.Errorf("%d names, the limit is %d", u.names.all, u.names.limit.All)
	}
	honest.Settled = true
	if changed := u.Set(honest); changed.Over || len(u.byWorkload[honest.Workload].keys) != 50 {
		t.Errorf("%d of 50 names are left after a change of status", len(u.byWorkload[honest.Workload].keys))
	}
	if changed := u.Set(imagesFor("other", "honest", list("new", 50)...)); changed.Over || len(changed.Added) != 50 {
		t.Errorf("%d of 50 new names of a namespace with few have room", len(changed.Added))
	}
}

// After random workloads, what is counted is what is used, and nobody waits while there is room.
func TestNamesRandomly(t *testing.T) {
	u, _ := newTestUsage()
	u.names = newNames(Limits{All: 8, Each: 3})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	used := map[corev1.ObjectReference]bool{}
	for range 5000 {
		c := imagesFor(fmt.Sprintf("w%d", random.IntN(20)), fmt.Sprintf("ns%d", random.IntN(5)))
		for range random.IntN(5) {
			c.Images = append(c.Images, fmt.Sprintf("i%d", random.IntN(12)))
		}
		c.Settled = random.IntN(3) == 0
		used[c.Workload] = true
		if random.IntN(3) == 0 {
			u.Unset(c.Workload)
		} else {
			u.Set(c)
		}
		u.Admit()
		distinct := map[nameUse]int{}
		for _, entry := range u.byWorkload {
			for _, key := range entry.keys {
				distinct[nameUse{entry.Pull.Namespace, key}]++
			}
			waits := len(entry.keys) < len(keysOf(entry.Images))
			if _, over := u.over[entry.Pull.Namespace][entry]; over && u.names.hasRoom(entry.Pull.Namespace) || waits != over {
				t.Fatalf("%v: waits %t, noted %t, room %t", entry.Workload, waits, over, u.names.hasRoom(entry.Pull.Namespace))
			}
		}
		each := map[string]int{}
		for use, n := range distinct {
			if each[use.namespace]++; u.names.uses[use] != n {
				t.Fatalf("%v: %d uses, %d are counted", use, n, u.names.uses[use])
			}
		}
		for namespace, n := range each {
			if n > namesPerImage*3 || u.names.each[namespace] != n {
				t.Fatalf("%s: %d names, %d are counted", namespace, n, u.names.each[namespace])
			}
		}
	}
	for w := range used {
		u.Unset(w)
	}
	if len(u.over)+len(u.names.uses)+len(u.names.each)+u.names.all != 0 {
		t.Errorf("left over: %v, %+v", u.over, u.names)
	}
}

func keysOf(names []string) map[string]bool {
	distinct := map[string]bool{}
	for _, name := range names {
		distinct[name] = true
	}
	return distinct
}
