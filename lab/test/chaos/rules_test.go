package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

func add(o *outages, what string, from, to int) {
	end, _ := o.begin(what, at(from))
	end(at(to))
}

func TestOutages(t *testing.T) {
	var o outages
	add(&o, "etcd", 10, 20)
	add(&o, "n1 kubelet", 0, 100)
	add(&o, "n1 images", 15, 15)
	if _, works := o.begin("etcd", at(30)); !works {
		t.Error("etcd was broken before")
	}
	if _, works := o.begin("etcd", at(35)); works {
		t.Error("etcd is broken twice")
	}
	for _, test := range []struct {
		from, to int
		what     string
		want     time.Duration
	}{
		{0, 5, "etcd", 0},
		{12, 16, "etcd", 4 * time.Second},
		{0, 25, "etcd", 10 * time.Second},
		{15, 40, "etcd", 15 * time.Second},
		{10, 20, "n1 images", 1},
		{16, 20, "n1 images", 0},
	} {
		if got := o.during(at(test.from), at(test.to), test.what); got != test.want {
			t.Errorf("%s from %d to %d: %s, want %s", test.what, test.from, test.to, got, test.want)
		}
	}
}

func TestSeen(t *testing.T) {
	s := seen{}
	check := func(now int, stored, reported string, down int, removing bool, want ...string) {
		t.Helper()
		got := s.check(at(now), strings.Fields(stored), strings.Fields(reported), func(from, to time.Time) time.Duration {
			if !to.Equal(at(now)) || from.Add(time.Duration(down)*time.Second).After(to) {
				t.Errorf("down from %s to %s", from, to)
			}
			return time.Duration(down) * time.Second
		}, removing)
		if !slices.Equal(got, want) {
			t.Errorf("%d: %q, want %q", now, got, want)
		}
	}
	check(10, "a", "a", 0, false)
	check(20, "a", "a b", 0, false, "b is reported and was never there")
	check(30, "a", "a c", 0, true) // c was pulled and removed in between
	check(90, "", "a", 0, false)
	check(95, "", "a", 10, false) // the kubelet was killed
	check(101, "", "a", 10, false, "a is reported 71 s after its removal")
	check(110, "a", "a", 0, false) // pulled again
	check(120, "", "c", 0, false, "c is reported 90 s after its removal")
}

func TestLate(t *testing.T) {
	var o outages
	add(&o, "etcd", 100, 120)
	for _, test := range []struct {
		created, ours, stock int
		want                 time.Duration
	}{
		{0, 3, 1, -9 * time.Second},
		{0, 20, 1, 8 * time.Second},
		{0, 50, 50, -11 * time.Second},
		{95, 130, 96, 3 * time.Second}, // 20 of 34 seconds are etcd's
	} {
		ours, stock := waits{created: at(test.created), scheduled: at(test.ours)}, waits{created: at(test.created), scheduled: at(test.stock)}
		if got := ours.late(stock, 10*time.Second, &o, "etcd"); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
	if got := (waits{created: at(0)}).late(waits{created: at(0), scheduled: at(1)}, 0, &o); got != 0 {
		t.Errorf("a pod that was not placed: %s", got)
	}
}

func TestQuarters(t *testing.T) {
	var all []sample
	for i := range 100 {
		all = append(all, sample{time.Duration(i) * time.Second, int64(i)})
	}
	second, last, enough := quarters(all, 100*time.Second)
	if got, want := fmt.Sprint(second, last, enough), "37 87 true"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if _, _, enough := quarters(all[:90], 100*time.Second); enough {
		t.Error("15 samples are enough")
	}
	if _, _, enough := quarters(nil, time.Second); enough {
		t.Error("no samples are enough")
	}
}

func TestViolations(t *testing.T) {
	v := violations{logf: t.Logf}
	v.add("a", "first")
	v.add("a", "second")
	v.add("b", "of %d", 2)
	if want := []string{"first", "of 2"}; !slices.Equal(v.list, want) {
		t.Errorf("%q, want %q", v.list, want)
	}
}
