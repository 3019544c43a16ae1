package collect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/scheduler/placements"
)

func TestParseSince(t *testing.T) {
	for value, want := range map[string]time.Duration{"1m": time.Minute, "90m": 90 * time.Minute, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "1h30m": 90 * time.Minute, "366d": 366 * 24 * time.Hour} {
		if got, err := ParseSince(value); err != nil || got != want {
			t.Errorf("%s: %v, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "1", "0", "59s", "367d", "-1h", "1.5h", "yesterday", "1m]) or vector(1", "\x1b[2J" + strings.Repeat("9", 1<<20) + "d"} {
		_, err := ParseSince(value)
		if err == nil || !strings.Contains(err.Error(), "want a time from 1m to 366d, such as 24h or 7d") || len(err.Error()) > 300 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.100q: %.400v", value, err)
		}
	}
}

// sample is a series with its value, as Prometheus writes it.
func sample(labels, value string) string {
	return fmt.Sprintf(`{"metric":{%s},"value":[1700000000,%q]}`, labels, value)
}

// prometheus is one that answers so to what is asked about placements, and about bytes. It
// returns its address, and what it was asked.
func prometheus(t *testing.T, placed, missing string) (address string, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		*asked = append(*asked, query)
		body := missing
		if strings.Contains(query, "placements_total") {
			body = placed
		}
		if strings.HasPrefix(body, "[") {
			body = `{"status":"success","data":{"resultType":"vector","result":` + body + `}}`
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(body, `"status":"error"`) {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

// The answer has each profile, sorted, with whole bytes.
func TestSavingsOf(t *testing.T) {
	address, asked := prometheus(t,
		"["+sample(`"profile":"second"`, "2.4")+","+sample(`"profile":"first"`, "9.6")+"]",
		"["+sample(`"profile":"first","of":"chosen"`, "100.6")+","+sample(`"profile":"first","of":"mean"`, "250.5")+","+sample(`"profile":"third\u001b[2J","of":"mean"`, "7")+"]")
	got, problems, err := SavingsOf(t.Context(), address, `cluster="a",job=~"layer-.*"`, 36*time.Hour)
	if err != nil || len(problems) != 0 {
		t.Fatal(problems, err)
	}
	// On the clock of Prometheus.
	if !got.Since.Equal(time.Unix(1700000000, 0).Add(-36 * time.Hour)) {
		t.Errorf("since %s", got.Since)
	}
	want := []placements.Saved{
		{Profile: "first", Pods: 10, MissingBytes: 101, MeanMissingBytes: 250.5},
		{Profile: "second", Pods: 2},
		{Profile: "third\uFFFD[2J", MeanMissingBytes: 7},
	}
	if fmt.Sprintf("%+v", got.Profiles) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v, want %+v", got.Profiles, want)
	}
	const series = `_total{cluster="a",job=~"layer-.*"}[1d12h])`
	if len(*asked) != 2 || !strings.Contains((*asked)[0], series) || !strings.Contains((*asked)[1], series) {
		t.Errorf("%q", *asked)
	}
}

// Anything else than two lists of numbers is an error that names what to do.
func TestSavingsOfBad(t *testing.T) {
	one := "[" + sample(`"profile":"p"`, "1") + "]"
	for _, c := range []struct{ name, placed, missing, want string }{
		{"no such metrics", "[]", "[]", "has no scheduler_layerlocality_missing_bytes_total: have it scrape the scheduler (docs/monitoring.md)"},
		{"null", "[null]", "[null]", "has no scheduler_layerlocality_missing_bytes_total"},
		{"an error", `{"status":"error","errorType":"bad_data","error":"\u001b[2Jno"}`, one, "does not answer: bad_data"},
		{"another kind of answer", `{"status":"success","data":{"resultType":"scalar","result":[1700000000,"1"]}}`, one, "answers with a scalar: it is none"},
		{"no JSON", "<html>", one, "does not answer: "},
		{"more than is read", one, strings.Repeat(" ", maxAnswer+1), "answers with more than 16 MiB: it is none"},
		{"not a number", one, "[" + sample(`"profile":"p","of":"mean"`, "NaN") + "]", "answers with NaN: it is not a count"},
		{"no end", "[" + sample(`"profile":"p"`, "+Inf") + "]", one, "answers with +Inf: it is not a count"},
		{"negative", one, "[" + sample(`"profile":"p","of":"chosen"`, "-1") + "]", "answers with -1: it is not a count"},
		{"more than can be counted", one, "[" + sample(`"profile":"p","of":"chosen"`, "1e19") + "]", "answers with 10000000000000000000: it is not a count"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, _ := prometheus(t, c.placed, c.missing)
			got, _, err := SavingsOf(t.Context(), address, "", time.Hour)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "Prometheus at "+address) || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 700 {
				t.Errorf("%+v, %v, want %s", got, err, c.want)
			}
		})
	}
	for _, address := range []string{"", "prometheus:9090", "ftp://prometheus", "http://", "http://a b", "\x1b[2J" + strings.Repeat("x", 1<<20)} {
		if _, _, err := SavingsOf(t.Context(), address, "", time.Hour); err == nil || !strings.Contains(err.Error(), "want a URL such as http://prometheus.monitoring:9090") || len(err.Error()) > 1000 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.100q: %.400v", address, err)
		}
	}
}

// What Prometheus warns of is noted, each once, and not without end.
func TestPrometheusWarnings(t *testing.T) {
	warns := func(warnings ...string) string {
		return `{"status":"success","warnings":["` + strings.Join(warnings, `","`) + `"],"data":{"resultType":"vector","result":[` + sample(`"profile":"p","of":"mean"`, "1") + `]}}`
	}
	address, _ := prometheus(t, warns(`a store \u001b[2Jis away`, "b"), warns("b", "c", "d", "e", "f", "g"))
	got, problems, err := SavingsOf(t.Context(), address, "", time.Hour)
	if err != nil || len(got.Profiles) != 1 || len(problems) != maxWarnings || problems[2].Why != "c" {
		t.Fatalf("%+v, %v, %v", got, problems, err)
	}
	want := "cannot read all series of Prometheus at " + address + ": a store \uFFFD[2Jis away: the sums may be too small; see its log"
	if problems[0].Error() != want {
		t.Errorf("%v, want %s", problems[0], want)
	}
}

// Labels are no way to ask something else.
func TestLabelMatchers(t *testing.T) {
	for _, matchers := range []string{"a", `a="b`, `a="b"}) or vector(1) #`, `a="b"} or up{c="d"`, `a="b",`, `a=b`, "a=\"\x1b[2J\n\"", `a="\\" or "b"`} {
		if _, _, err := SavingsOf(t.Context(), "http://127.0.0.1:1", matchers, time.Hour); err == nil || !strings.HasPrefix(err.Error(), "--prometheus-selector ") || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", matchers, err)
		}
	}
}

// A password in the address is not said.
func TestPrometheusPassword(t *testing.T) {
	address, _ := prometheus(t, "[]", "[]")
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("user", "secret")
	if _, _, err := SavingsOf(t.Context(), u.String(), "", time.Hour); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}
