package usage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"
)

// expandForTest expands a name: with a slash it is a full name, without one it
// may be in two registries. Names in capitals are invalid.
func expandForTest(name string) ([]string, error) {
	if strings.ToUpper(name) == name {
		return nil, errors.New("capitals")
	}
	if strings.Contains(name, "/") {
		return []string{name}, nil
	}
	return []string{"a.example/" + name + ":latest", "b.example/" + name + ":latest"}, nil
}

func newTestUsage() (*Usage, *testingclock.FakePassiveClock) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	return New(expandForTest, clock, 0, Limits{All: 100, Each: 50}), clock
}

func imagesFor(name, namespace string, images ...string) WorkloadImages {
	return WorkloadImages{
		Workload: corev1.ObjectReference{Kind: "Deployment", Namespace: namespace, Name: name},
		Pull:     Pull{Namespace: namespace}, Images: images,
	}
}

func keys(images []Image) []string {
	var found []string
	for _, i := range images {
		found = append(found, i.Key)
	}
	slices.Sort(found)
	return found
}

func TestUsage(t *testing.T) {
	const x, y = "reg/x:1", "reg/y:1"
	tests := []struct {
		name    string
		before  []WorkloadImages
		images  WorkloadImages
		added   []string
		shared  []string
		invalid []string
	}{
		{"the first", nil, imagesFor("one", "ns", x), []string{x}, nil, nil},
		{"twice in a pod", nil, imagesFor("one", "ns", x, x), []string{x}, nil, nil},
		{"the same again", []WorkloadImages{imagesFor("one", "ns", x)}, imagesFor("one", "ns", x), nil, nil, nil},
		{"another workload", []WorkloadImages{imagesFor("one", "ns", x)}, imagesFor("two", "ns", x), nil, []string{x}, nil},
		{"other pull secrets", []WorkloadImages{imagesFor("one", "ns", x)}, imagesFor("two", "elsewhere", x), []string{x}, nil, nil},
		{"one more image", []WorkloadImages{imagesFor("one", "ns", x)}, imagesFor("one", "ns", x, y), []string{y}, nil, nil},
		{"a short name", nil, imagesFor("one", "ns", "busybox"), []string{"a.example/busybox:latest b.example/busybox:latest"}, nil, nil},
		{"no name", nil, imagesFor("one", "ns", "BAD", x), []string{x}, nil, []string{"BAD"}},
		{"no name still", []WorkloadImages{imagesFor("one", "ns", "BAD")}, imagesFor("one", "ns", "BAD", x), []string{x}, nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			u, _ := newTestUsage()
			for _, c := range test.before {
				u.Set(c)
			}
			changed := u.Set(test.images)
			if !slices.Equal(keys(changed.Added), test.added) {
				t.Errorf("to be asked %q, want %q", keys(changed.Added), test.added)
			}
			if !slices.Equal(keys(changed.Shared), test.shared) {
				t.Errorf("shared %q, want %q", keys(changed.Shared), test.shared)
			}
			var names []string
			for _, invalid := range changed.Invalid {
				names = append(names, invalid.Name)
			}
			if !slices.Equal(names, test.invalid) {
				t.Errorf("invalid %q, want %q", names, test.invalid)
			}
		})
	}
}

// pulls are those whose turn it is first.
func pulls(u *Usage, key string, limit int) []Pull {
	found, _ := u.PullsFrom(key, Pull{}, limit)
	return found
}

func TestUsagePulls(t *testing.T) {
	u, _ := newTestUsage()
	u.Set(imagesFor("one", "b", "reg/x:1"))
	u.Set(imagesFor("two", "a", "reg/x:1"))
	u.Set(imagesFor("three", "a", "reg/x:1"))
	if got := pulls(u, "reg/x:1", 8); !slices.Equal(got, []Pull{{Namespace: "a"}, {Namespace: "b"}}) {
		t.Errorf("pulls %v", got)
	}
	if got := pulls(u, "reg/x:1", 1); !slices.Equal(got, []Pull{{Namespace: "a"}}) {
		t.Errorf("one of them: %v", got)
	}
	u.Unset(imagesFor("two", "a").Workload)
	if got := pulls(u, "reg/x:1", 8); len(got) != 2 {
		t.Errorf("pulls %v, although a third workload has the same", got)
	}
	u.Unset(imagesFor("three", "a").Workload)
	if got := pulls(u, "reg/x:1", 8); !slices.Equal(got, []Pull{{Namespace: "b"}}) {
		t.Errorf("pulls %v of what is gone", got)
	}
	if got := pulls(u, "reg/unknown:1", 8); got != nil {
		t.Errorf("pulls %v of an image nobody uses", got)
	}
}

func TestUsageWorkloads(t *testing.T) {
	u, _ := newTestUsage()
	for i := range 10 {
		c := imagesFor(fmt.Sprintf("pod-%d", i), "ns", "reg/x:1")
		c.Controlled = true
		u.Set(c)
	}
	if got := u.Workloads("reg/x:1", 5); len(got) != 5 {
		t.Errorf("%d pods, want 5 where there is nothing else", len(got))
	}
	u.Set(imagesFor("owner", "ns", "reg/x:1"))
	if got := u.Workloads("reg/x:1", 5); len(got) != 1 || got[0].Name != "owner" {
		t.Errorf("%v, want the workload, not its pods", got)
	}
}

func TestUsageIdle(t *testing.T) {
	u, clock := newTestUsage()
	const x = "reg/x:1"
	one := imagesFor("one", "ns", x)
	u.Set(one)
	if u.UnusedFor(x, 0) {
		t.Error("in use and idle")
	}
	u.Unset(one.Workload)
	u.Unset(one.Workload) // twice does no harm
	clock.SetTime(clock.Now().Add(time.Minute))
	if !u.UnusedFor(x, time.Minute) || u.UnusedFor(x, time.Hour) {
		t.Error("not idle for a minute")
	}
	u.Set(one)
	if u.UnusedFor(x, 0) || len(u.idle) != 0 {
		t.Errorf("in use again and idle: %v", u.idle)
	}
	// The idle time of a reference that was never in use counts from the start.
	if !u.UnusedFor("reg/old:1", time.Minute) || u.UnusedFor("reg/old:1", 2*time.Minute) || !u.TenantOf("reg/old:1").Since.Equal(u.begun) {
		t.Error("not idle for a minute since the start")
	}
	// Nor does a clock that was ahead keep one for longer.
	u.Remember("reg/ahead:1", clock.Now().Add(time.Hour), []string{"ns"})
	u.Remember("reg/ahead:1", clock.Now().Add(-time.Hour), nil) // it is known already
	u.Remember(x, clock.Now().Add(-time.Hour), nil)             // and in use
	if got := u.idle["reg/ahead:1"]; !got.since.Equal(clock.Now()) || got.namespace != "ns" || len(u.idle) != 1 {
		t.Errorf("remembered: %v", u.idle)
	}
	u.Unset(one.Workload)
	clock.SetTime(clock.Now().Add(time.Minute))
	u.pruneLocked(time.Minute)
	if len(u.idle) != 0 {
		t.Errorf("remembered for ever: %v", u.idle)
	}
	if !u.UnusedFor(x, time.Minute) {
		t.Error("in use because it is forgotten")
	}
}

// TestUsageSettled: of a rolled-out object's images, those count that pods have.
func TestUsageSettled(t *testing.T) {
	const written, rewritten, also = "reg/x:1", "mirror/x:1", "reg/y:1"
	u, clock := newTestUsage()
	template := imagesFor("one", "ns", written, also)
	pod := imagesFor("one-1", "ns", rewritten, also)
	pod.Controlled = true
	if got := keys(u.Set(template).Added); !slices.Equal(got, []string{written, also}) {
		t.Errorf("asked for %v before there are pods", got)
	}
	u.Set(pod)
	clock.SetTime(clock.Now().Add(time.Minute))
	template.Settled = true
	changed := u.Set(template)
	if !slices.Equal(changed.Unused, []string{written}) || len(changed.Added)+len(changed.Shared) > 0 {
		t.Errorf("rolled out: %+v", changed)
	}
	if got := keys(u.All()); !slices.Equal(got, []string{rewritten, also}) || u.InUse(written) {
		t.Errorf("rolled out: %v in use", got)
	}
	if len(u.Meaning([]string{written})) > 0 || u.TenantOf(written).InUse || !u.UnusedFor(written, 0) || u.UnusedFor(also, 0) {
		t.Error("what no pod has counts")
	}
	// The object is told, not its pod.
	if got := u.Workloads(also, 2); len(got) != 1 || got[0].Name != "one" {
		t.Errorf("%v is told", got)
	}
	if changed := u.Set(template); len(changed.Unused) > 0 {
		t.Errorf("the same again: %+v", changed)
	}
	// No pods any longer: the template counts.
	u.Unset(pod.Workload)
	template.Settled = false
	if got := keys(u.Set(template).Added); !slices.Equal(got, []string{written, also}) {
		t.Errorf("scaled to zero: %v", got)
	}
	// As a process begins that finds it rolled out.
	u, _ = newTestUsage()
	template.Settled = true
	if changed := u.Set(template); len(changed.Added)+len(changed.Shared) > 0 || len(u.All()) > 0 {
		t.Errorf("before its pods are seen: %+v", changed)
	}
	if got := keys(u.Set(pod).Added); !slices.Equal(got, []string{rewritten, also}) {
		t.Errorf("its pods ask for %v", got)
	}
}

// TestUsageEmptyAgain: after random workloads, removing all of them leaves
// nothing.
func TestUsageEmptyAgain(t *testing.T) {
	u, clock := newTestUsage()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	workloads := map[corev1.ObjectReference]bool{}
	for range 5000 {
		c := imagesFor(fmt.Sprintf("w%d", random.IntN(20)), fmt.Sprintf("ns%d", random.IntN(3)))
		for range random.IntN(4) {
			c.Images = append(c.Images, fmt.Sprintf("i%d", random.IntN(10)))
		}
		c.Controlled, c.Settled = random.IntN(2) == 0, random.IntN(2) == 0
		u.Set(c)
		workloads[c.Workload] = true
		if random.IntN(3) == 0 {
			u.Unset(c.Workload)
		}
		for key, entry := range u.images {
			total, settled := 0, 0
			for _, n := range entry.pulls {
				total += n
			}
			for by := range entry.by {
				if by.Settled {
					settled++
				}
			}
			if total+settled != len(entry.by) || len(entry.by) == 0 {
				t.Fatalf("%s: %d workloads, %d settled, %d workloads", key, total, settled, len(entry.by))
			}
			for _, reference := range entry.References {
				if slices.Contains(u.references[reference], key) != (total > 0) {
					t.Fatalf("%s: %d workloads, and %s means %v", key, total, reference, u.references[reference])
				}
			}
		}
	}
	for w := range workloads {
		u.Unset(w)
	}
	clock.SetTime(clock.Now().Add(time.Hour))
	u.pruneLocked(time.Minute)
	if len(u.byWorkload)+len(u.images)+len(u.references)+len(u.idle) != 0 {
		t.Errorf("left over: %v %v %v %v", u.byWorkload, u.images, u.references, u.idle)
	}
}

// Every namespace has its turn, however many there are.
func TestUsagePullsTakeTurns(t *testing.T) {
	u, _ := newTestUsage()
	for i := range 20 {
		u.Set(imagesFor("w", fmt.Sprintf("ns%02d", i), "reg/x:1"))
	}
	seen := map[string]int{}
	var next Pull
	for range 5 { // 5 x 8 = 2 x 20
		var turn []Pull
		turn, next = u.PullsFrom("reg/x:1", next, 8)
		for _, p := range turn {
			seen[p.Namespace]++
		}
		u.Unset(imagesFor("w", "gone").Workload) // others come and go meanwhile
	}
	for i := range 20 {
		if n := seen[fmt.Sprintf("ns%02d", i)]; n != 2 {
			t.Errorf("ns%02d had %d turns of 2", i, n)
		}
	}
}

// A namespace with many pull secrets does not delay another's, wherever the turn is.
func TestUsagePullsOfOneNamespace(t *testing.T) {
	u, _ := newTestUsage()
	for i := range 100 {
		c := imagesFor(fmt.Sprint("w", i), "many", "reg/x:1")
		c.Pull.Secrets = fmt.Sprintf("s%02d", i)
		u.Set(c)
	}
	u.Set(imagesFor("w", "one", "reg/x:1"))
	u.Set(imagesFor("w", "other", "reg/x:1"))
	if turn := pulls(u, "reg/x:1", 3); turn[0].Namespace != "many" || turn[1].Namespace != "one" || turn[2].Namespace != "other" {
		t.Errorf("first are %v", turn)
	}
	_, next := u.PullsFrom("reg/x:1", Pull{}, 8) // three first ones, and s01 to s05
	// It goes on after one that is gone.
	u.Unset(imagesFor("w6", "many").Workload)
	if turn, _ := u.PullsFrom("reg/x:1", next, 1); next.Secrets != "s06" || turn[0].Secrets != "s07" {
		t.Errorf("%v is next, then comes %v", next, turn)
	}
	seen := map[Pull]bool{}
	from := Pull{}
	for range 13 { // 13 x 8 = 104, of 101
		var turn []Pull
		turn, from = u.PullsFrom("reg/x:1", from, 8)
		for _, p := range turn {
			seen[p] = true
		}
	}
	if len(seen) != 101 {
		t.Errorf("%d of 101 had a turn", len(seen))
	}
}

// As many pull secrets as may be used are all used: none is next.
func TestUsagePullsWithinLimit(t *testing.T) {
	u, _ := newTestUsage()
	u.Set(imagesFor("one", "a", "reg/x:1"))
	u.Set(imagesFor("two", "b", "reg/x:1"))
	if turn, next := u.PullsFrom("reg/x:1", Pull{Namespace: "b"}, 2); len(turn) != 2 || next != (Pull{}) {
		t.Errorf("%v, next %v", turn, next)
	}
}

// A reference counts for some of the namespaces that use it, and not for the nodes if there are
// any.
func TestUsageNamespaces(t *testing.T) {
	u, _ := newTestUsage()
	const x = "reg/x@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	u.Set(ImageOnNodes(x))
	if got := u.Namespaces(x); !slices.Equal(got, []string{""}) {
		t.Errorf("only on nodes: %q", got)
	}
	for i := range 2 * maxNamespaces {
		u.Set(imagesFor("w", fmt.Sprintf("ns%02d", i), x))
		got := u.Namespaces(x)
		slices.Sort(got)
		if n := len(slices.Compact(got)); n != min(i+1, maxNamespaces) || slices.Contains(got, "") {
			t.Errorf("used by %d namespaces: %q", i+1, got)
		}
	}
}

// A reference is in use since the first of the images that may mean it is.
func TestUsageSince(t *testing.T) {
	for _, names := range [][]string{{"x", "a.example/x:latest"}, {"a.example/x:latest", "x"}} {
		u, clock := newTestUsage()
		begin := clock.Now()
		for i, name := range names {
			u.Set(imagesFor(fmt.Sprint("w", i), "ns", name))
			clock.SetTime(clock.Now().Add(time.Minute))
		}
		u.Set(imagesFor("another", "ns", names[0]))
		if got := u.TenantOf("a.example/x:latest"); !got.InUse || !got.Since.Equal(begin) {
			t.Errorf("%q: %+v, want since %v", names, got, begin)
		}
		u.Unset(imagesFor("w0", "ns").Workload)
		u.Unset(imagesFor("another", "ns").Workload)
		if got := u.TenantOf("a.example/x:latest"); !got.InUse || !got.Since.Equal(begin.Add(time.Minute)) {
			t.Errorf("%q, without the first: %+v", names, got)
		}
	}
}

// Since when references are unused is forgotten when it no longer matters, at the latest a tenth
// of the time later.
func TestUsageForgets(t *testing.T) {
	for _, keep := range []time.Duration{10 * time.Hour, 0} {
		clock := testingclock.NewFakePassiveClock(time.Now())
		u := New(expandForTest, clock, keep, Limits{All: 100, Each: 50})
		ends := func() {
			u.Set(imagesFor("w", "ns", "reg/x:1"))
			u.Unset(imagesFor("w", "ns").Workload)
		}
		ends()
		u.Remember("reg/old:1", clock.Now().Add(time.Minute-10*time.Hour), nil)
		ends()
		if len(u.idle) != 2 {
			t.Errorf("kept for %v: remembered %v, want both", keep, u.idle)
		}
		clock.SetTime(clock.Now().Add(time.Hour))
		ends()
		want := 1
		if keep == 0 {
			want = 2 // nothing is kept for a time
		}
		if _, ok := u.idle["reg/x:1"]; !ok || len(u.idle) != want {
			t.Errorf("kept for %v: remembered %v, want %d", keep, u.idle, want)
		}
	}
}

// What was due for removal, and could not be removed, is due after it is forgotten since when.
func TestUsagePruned(t *testing.T) {
	u, clock := newTestUsage()
	clock.SetTime(clock.Now().Add(25 * time.Hour))
	for _, pruned := range []bool{false, true} {
		if pruned {
			u.pruneLocked(24 * time.Hour)
		}
		if !u.UnusedFor("reg/x:1", 24*time.Hour) {
			t.Errorf("pruned %t: tried again only a day later", pruned)
		}
	}
}
