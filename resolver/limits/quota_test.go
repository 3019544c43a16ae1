package limits

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestParseQuota: what a registry may state.
func TestParseQuota(t *testing.T) {
	for field, want := range map[string]struct {
		requests int
		window   time.Duration
	}{
		"100;w=21600":              {100, 6 * time.Hour},
		" 76 ; w=60":               {76, time.Minute},
		"10, 10;w=1, 1000;w=3600":  {10, QuotaWait},
		"5":                        {5, QuotaWait},
		"0;w=0":                    {0, 0},
		"5;w=99999999999999999999": {5, QuotaWait},
		"5;comment=\"a\";w=3":      {5, 3 * time.Second},
		"2147483647;w=1":           {maxQuota, time.Second},
		"":                         {-1, 0},
		"-1":                       {-1, 0},
		"many":                     {-1, 0},
		"99999999999999999999;w=1": {-1, 0},
		strings.Repeat("9", 60000): {-1, 0},
		"1e3":                      {-1, 0},
		"limit=100, remaining=3":   {-1, 0},
		"\x00":                     {-1, 0},
	} {
		requests, window, ok := parseQuota(field)
		if ok != (want.requests >= 0) || ok && (requests != want.requests || window != want.window) {
			t.Errorf("%.40q: %d in %s, %v", field, requests, window, ok)
		}
	}
}

// TestQuotaOvertaking: of answers that overtake each other, the lowest rest counts, and a
// request without an answer may have counted.
func TestQuotaOvertaking(t *testing.T) {
	q := &Quota{}
	begun := time.Now()
	answer := func(left int, began, at time.Time) {
		q.Hear(http.StatusOK, http.Header{"Ratelimit-Limit": {"100;w=60"}, "Ratelimit-Remaining": {strconv.Itoa(left)}}, began, at)
	}
	answer(52, begun, begun.Add(2))
	answer(90, begun.Add(1), begun.Add(3))
	if short := q.Take(0.5); short != nil {
		t.Fatal(short)
	}
	if short := q.Take(0.5); short != nil {
		t.Fatal(short)
	}
	if short := q.Take(0.5); short == nil {
		t.Error("two are under way, and a third was sent of the two that are not for the nodes")
	}
	q.Done(true)
	q.Done(false)
	if short := q.Take(0.5); short != nil {
		t.Fatal(short)
	}
	if short := q.Take(0.5); short == nil {
		t.Error("the one that failed did not count")
	}
	q.Done(false)
	answer(90, begun.Add(4), begun.Add(5))
	if short := q.Take(0.5); short != nil {
		t.Error("a later answer does not count")
	}
}

// TestQuotaEnds: a quota that is not stated any more, or was only with a refusal, is forgotten.
func TestQuotaEnds(t *testing.T) {
	stated := http.Header{"Ratelimit-Limit": {"60"}, "Ratelimit-Remaining": {"0"}}
	begun := time.Now()

	q := &Quota{}
	q.Hear(http.StatusTooManyRequests, stated, begun, begun)
	if q.Take(0.5) == nil {
		t.Error("sent although nothing is left")
	}
	q.Hear(http.StatusOK, http.Header{}, begun, begun.Add(time.Second)) // sent before
	if q.Take(0.5) == nil {
		t.Error("an answer to an earlier request counts")
	}
	if !q.Unsure(false, begun.Add(QuotaFresh)) {
		t.Error("not asked again")
	}
	q.Hear(http.StatusOK, http.Header{}, begun.Add(QuotaFresh), begun.Add(QuotaFresh))
	if short := q.Take(0.5); short != nil {
		t.Errorf("the registry states no quota any more: %v", short)
	}

	// Without any answer, not longer than its window.
	q = &Quota{}
	q.Hear(http.StatusOK, http.Header{"Ratelimit-Limit": {"60;w=7200"}, "Ratelimit-Remaining": {"0"}}, begun, begun)
	for after, refused := range map[time.Duration]bool{7199 * time.Second: true, 7200 * time.Second: false} {
		old := &Quota{heard: true, limit: q.limit, remaining: q.remaining, window: q.window, at: q.at}
		old.Unsure(false, begun.Add(after))
		if got := old.Take(0.5) != nil; got != refused {
			t.Errorf("after %s: refused %v", after, got)
		}
	}

	// What the hub refuses does not say whether it counts.
	q = &Quota{}
	q.Hear(http.StatusUnauthorized, http.Header{}, begun, begun)
	if !q.Unsure(true, begun) {
		t.Error("the hub is taken for a registry without quota")
	}
	q.Hear(http.StatusOK, http.Header{}, begun, begun)
	if q.Unsure(true, begun) {
		t.Error("the hub is asked again at once")
	}
}

// Half of what has to be stated is no quota.
func TestQuotaStatedInPart(t *testing.T) {
	for _, header := range []http.Header{
		{"Ratelimit-Limit": {"60"}}, {"Ratelimit-Remaining": {"0"}}, {"Ratelimit-Limit": {"0"}, "Ratelimit-Remaining": {"0"}},
		{"Ratelimit-Limit": {"60"}, "Ratelimit-Remaining": {"few"}}, {"Ratelimit-Limit": {"many"}, "Ratelimit-Remaining": {"0"}},
	} {
		q := &Quota{}
		if left, stated := q.Hear(http.StatusOK, header, time.Now(), time.Now()); stated || left != 0 {
			t.Errorf("%v: %d left, stated %v", header, left, stated)
		}
		if short := q.Take(0.5); short != nil {
			t.Errorf("%v: %v", header, short)
		}
	}
}
