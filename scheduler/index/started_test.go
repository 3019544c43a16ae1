package index

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// started has all that a pod was placed with be there, until the deadline or until its node reports: what
// Follow does with the images of a pod whose containers were created.
func (x *Index) started(pod types.UID, deadline time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	coming, there := reservationKey{pod, false}, reservationKey{pod, true}
	r := x.reservations[coming]
	if r == nil {
		return
	}
	delete(x.reservations, coming)
	delete(r.node.reservations, coming)
	for _, b := range r.brings {
		i, _ := findArriving(b.layer, r.node.slot, b.image)
		x.change(r.node.slot, &b.arriving[i], func(a *arriving) {
			a.waiting, a.arrived = a.waiting-1, true
			if r.pulled {
				a.pulled--
			}
		})
	}
	r.there, r.pulled, r.deadline = true, false, deadline
	x.reservations[there], r.node.reservations[there] = r, r
	x.nextExpiry = earlier(x.nextExpiry, deadline)
}

// follow is Follow for a pod p on n1 with the images one:1, which is there, and two:1, which comes.
func follow(x *Index, pending time.Time) {
	x.Follow(&Placed{
		Pod: "p", Node: "n1", There: want("one:1"), ThereUntil: t0.Add(time.Minute),
		Coming: want("two:1"), ComingUntil: t0.Add(time.Hour), PendingUntil: pending,
	}, joining, t0)
}

// A pod has one image and gets another. They share the layer a.
func TestFollow(t *testing.T) {
	for name, test := range map[string]struct {
		pending time.Time // until then
		at      time.Duration
		one     NodeBytes
		two     NodeBytes
	}{
		"the kubelet pulls": {
			time.Time{}, time.Second,
			NodeBytes{Total: sum("ab"), Present: sum("ab"), Pending: sum("c")}, NodeBytes{Total: sum("ac"), Present: sum("a"), Arriving: sum("c"), Pending: sum("c")},
		},
		"an init container runs": {
			t0, time.Second,
			NodeBytes{Total: sum("ab"), Present: sum("ab")}, NodeBytes{Total: sum("ac"), Present: sum("a"), Arriving: sum("c")},
		},
		"it should pull, but it waits for a volume": {
			t0.Add(10 * time.Second), 10 * time.Second,
			NodeBytes{Total: sum("ab"), Present: sum("ab")}, NodeBytes{Total: sum("ac"), Present: sum("a"), Arriving: sum("c")},
		},
		"the node should have reported one": {
			time.Time{}, time.Minute,
			// The layer that the other needs as well was seen to be there.
			NodeBytes{Total: sum("ab"), Present: sum("a"), Pending: sum("c")}, NodeBytes{Total: sum("ac"), Present: sum("a"), Arriving: sum("c"), Pending: sum("c")},
		},
		"two did not come": {time.Time{}, time.Hour, NodeBytes{Total: sum("ab")}, NodeBytes{Total: sum("ac")}},
	} {
		x := newIndex("n1", "n2")
		x.SetImages("s", "n2", []Image{image("ab", "docker.io/library/one:1"), image("ac", "docker.io/library/two:1")})
		x.Reserve("p", "n1", want("one:1", "two:1"), joining, t0, t0.Add(time.Hour))
		follow(x, test.pending)
		checkInvariants(t, x)
		m := &Measurement{}
		for image, expected := range map[string]NodeBytes{"one:1": test.one, "two:1": test.two} {
			x.Measure(want(image), joining, t0.Add(test.at), m)
			if got, _ := m.Node("n1"); got != expected {
				t.Errorf("%s: %s %+v, want %+v", name, image, got, expected)
			}
		}
		checkInvariants(t, x)
		// The pod goes. What was there stays until its time is over.
		x.Release("p")
		x.Measure(want("two:1"), joining, t0.Add(test.at), m)
		if got, _ := m.Node("n1"); got.Arriving != 0 || got.Pending != 0 || test.at < time.Minute && got.Present != sum("a") {
			t.Errorf("%s, the pod is gone: %+v", name, got)
		}
		checkInvariants(t, x)
	}
}

// A pull has no limit of its own: it goes on as long as the kubelet says so.
func TestFollowWithoutLimit(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n2", []Image{image("ab", "docker.io/library/one:1")})
	x.Follow(&Placed{Pod: "p", Node: "n1", Coming: want("one:1")}, joining, t0)
	m := &Measurement{}
	x.Measure(want("one:1"), joining, t0.Add(1000*time.Hour), m)
	if got, _ := m.Node("n1"); got.Arriving != sum("ab") || got.Pending != sum("ab") {
		t.Errorf("%+v, want all arriving and pending", got)
	}
	x.Follow(&Placed{Pod: "p", Node: "n1"}, joining, t0.Add(1000*time.Hour)) // the pull failed
	x.Measure(want("one:1"), joining, t0.Add(1000*time.Hour), m)
	if got, _ := m.Node("n1"); got.Arriving != 0 || got.Pending != 0 || x.Stats().Reservations != 0 {
		t.Errorf("%+v, %+v, want nothing", got, x.Stats())
	}
}
