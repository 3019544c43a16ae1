package handler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/handler"
	"github.com/layer-locality/layer-locality/extender/internal/fixture"
	"github.com/layer-locality/layer-locality/extender/metrics"
)

// server is a Handler with an agent "fixture", also called "alias".
type server struct {
	*httptest.Server
	plugin  *fixture.Plugin
	cluster *fixture.Cluster
	logger  klog.Logger
	names   []string
}

func serve(t testing.TB, nodes int, maxScore int64, filters bool) *server {
	t.Helper()
	objects, names := fixture.Nodes(nodes)
	s := &server{plugin: fixture.New(), cluster: fixture.NewCluster(t, objects...), names: names}
	if filters {
		s.plugin.OnFilter = func(*v1.Pod, string) string { return "" }
	}
	a := s.cluster.Rounded(t, s.plugin.Kind("fixture", "alias"), nil, func(score int64) int64 { return handler.Round(score, maxScore) })
	s.cluster.Follow(t, a)
	s.logger = logr.Discard()
	if _, fuzzing := t.(*testing.F); !fuzzing {
		s.logger = ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	}
	h, err := handler.New(s.logger, list(a), nil, maxScore)
	if err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(h)
	s.Config.ConnState = metrics.Connection
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func list[T any](items ...T) []T { return items }

// ask sends a request, and returns the status and the body of the answer.
func (s *server) ask(t testing.TB, path string, args any) (int, string) {
	t.Helper()
	body, ok := args.(string)
	if !ok {
		text, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		body = string(text)
	}
	return s.post(t, path, strings.NewReader(body))
}

func (s *server) post(t testing.TB, path string, body io.Reader) (int, string) {
	t.Helper()
	response, err := http.Post(s.URL+path, "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

const priorities, predicates = "/scheduler/priorities/fixture", "/scheduler/predicates/fixture"

func args(pod *v1.Pod, names ...string) *extenderv1.ExtenderArgs {
	names = append([]string{}, names...) // [] and not null
	return &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names}
}

// scores sends a request for priorities that must succeed.
func (s *server) scores(t testing.TB, request *extenderv1.ExtenderArgs) map[string]int64 {
	t.Helper()
	code, body := s.ask(t, priorities, request)
	var answer extenderv1.HostPriorityList
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	scores := map[string]int64{}
	for _, each := range answer {
		if _, again := scores[each.Host]; again {
			t.Errorf("%s is answered twice", each.Host)
		}
		scores[each.Host] = each.Score
	}
	return scores
}

// TestRounding compares answers with a table. What kube-scheduler adds is the answer times
// the weight times 10.
func TestRounding(t *testing.T) {
	golden := []struct {
		score int64
		by    map[int64]int64 // answers by --max-score
	}{
		{0, map[int64]int64{4: 0, 10: 0, 40: 0, 100: 0}},
		{1, map[int64]int64{4: 0, 10: 0, 40: 0, 100: 1}},
		{2, map[int64]int64{4: 0, 10: 0, 40: 1, 100: 2}},
		{4, map[int64]int64{4: 0, 10: 0, 40: 2, 100: 4}},
		{5, map[int64]int64{4: 0, 10: 1, 40: 2, 100: 5}},
		{12, map[int64]int64{4: 0, 10: 1, 40: 5, 100: 12}},
		{13, map[int64]int64{4: 1, 10: 1, 40: 5, 100: 13}},
		{30, map[int64]int64{4: 1, 10: 3, 40: 12, 100: 30}},
		{44, map[int64]int64{4: 2, 10: 4, 40: 18, 100: 44}},
		{45, map[int64]int64{4: 2, 10: 5, 40: 18, 100: 45}},
		{62, map[int64]int64{4: 2, 10: 6, 40: 25, 100: 62}},
		{63, map[int64]int64{4: 3, 10: 6, 40: 25, 100: 63}},
		{94, map[int64]int64{4: 4, 10: 9, 40: 38, 100: 94}},
		{95, map[int64]int64{4: 4, 10: 10, 40: 38, 100: 95}},
		{97, map[int64]int64{4: 4, 10: 10, 40: 39, 100: 97}},
		{99, map[int64]int64{4: 4, 10: 10, 40: 40, 100: 99}},
		{100, map[int64]int64{4: 4, 10: 10, 40: 40, 100: 100}},
	}
	for _, most := range slices.Sorted(maps.Keys(golden[0].by)) {
		s := serve(t, len(golden), most, false)
		s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return golden[slices.Index(s.names, node)].score }
		got := s.scores(t, args(fixture.Pod("p", "app"), s.names...))
		for i, g := range golden {
			if got[s.names[i]] != g.by[most] {
				t.Errorf("--max-score=%d: %d for a score of %d, want %d", most, got[s.names[i]], g.score, g.by[most])
			}
		}
	}
	for _, wrong := range []int64{-1, 0, 101} {
		if _, err := handler.New(klog.Background(), nil, nil, wrong); err == nil {
			t.Errorf("--max-score=%d is accepted", wrong)
		}
	}
}

// TestBadInput has what callers do wrong, and the answers.
func TestBadInput(t *testing.T) {
	s := serve(t, 2, 10, false)
	pod := fixture.Pod("p", "app")
	large := strings.Repeat("x", handler.MaxBody)
	for _, c := range []struct {
		name, path string
		args       any
		code       int
		want       string
	}{
		{"no JSON", priorities, "{", 400, "no ExtenderArgs in JSON"},
		{"nothing", priorities, "", 400, "no ExtenderArgs in JSON"},
		{"a list", priorities, "[]", 400, "no ExtenderArgs in JSON"},
		{"null", priorities, "null", 400, "no Pod"},
		{"more behind", priorities, `{"Pod":{},"NodeNames":[]}x`, 400, "no ExtenderArgs in JSON"},
		{"no pod", priorities, `{"NodeNames":["n1"]}`, 400, "no Pod"},
		{"no nodes", priorities, &extenderv1.ExtenderArgs{Pod: pod}, 400, "neither NodeNames nor Nodes"},
		{"a quantity", priorities, `{"Pod":{"spec":{"containers":[{"resources":{"requests":{"cpu":"NaN"}}}]}},"NodeNames":[]}`, 400, "no ExtenderArgs in JSON"},
		{"too large", priorities, `{"Pod":{"metadata":{"name":"` + large + `"}}}`, 413, "nodeCacheCapable: true"},
		{"too many objects", priorities, `{"Nodes":{"items":[` + strings.Repeat("{},", 200_000) + `{}]}}`, 413, "nodeCacheCapable: true"},
		{"unknown agent", "/scheduler/priorities/other", "{}", 404, "there are: priorities/alias, priorities/fixture"},
		{"unknown verb", "/scheduler/bind/fixture", "{}", 404, "priorities/fixture"},
		{"it does not filter", predicates, "{}", 404, "priorities/fixture"},
		{"more path", priorities + "/x", "{}", 404, "priorities/fixture"},
		{"nothing at all", "/scheduler/", "{}", 404, "priorities/fixture"},
	} {
		t.Run(c.name, func(t *testing.T) {
			agent, verb := "fixture", "priorities"
			switch c.path {
			case priorities:
			case predicates:
				verb = "predicates"
			case "/scheduler/priorities/other", priorities + "/x":
				agent = "unknown"
			case "/scheduler/bind/fixture":
				verb = "unknown"
			default:
				agent, verb = "unknown", "unknown"
			}
			counted := metrics.Requests.WithLabelValues(agent, verb, strconv.Itoa(c.code))
			before := counter(t, counted)
			code, body := s.ask(t, c.path, c.args)
			if more := counter(t, counted) - before; more != 1 {
				t.Errorf("%g requests counted for %s %s", more, agent, verb)
			}
			if code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("%d %q, want %d %q", code, body, c.code, c.want)
			}
			if strings.Count(strings.TrimSpace(body), "\n") > 0 || len(body) > 1000 {
				t.Errorf("more than a sentence: %q", body)
			}
		})
	}
	t.Run("method", func(t *testing.T) {
		counted := metrics.Requests.WithLabelValues("fixture", "priorities", "405")
		before := counter(t, counted)
		defer func() {
			if more := counter(t, counted) - before; more != 1 {
				t.Errorf("%g requests counted", more)
			}
		}()
		response, err := http.Get(s.URL + priorities)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != "POST" {
			t.Errorf("%d, Allow %q", response.StatusCode, response.Header.Get("Allow"))
		}
	})
	t.Run("it is cut off", func(t *testing.T) {
		connection, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", priorities)
		connection.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(connection)
		if !strings.Contains(string(answer), " 400 ") || !strings.Contains(string(answer), "ends early") {
			t.Errorf("%q", answer)
		}
		connection.Close()
	})
	// None of it left anything behind.
	if got := s.scores(t, args(pod, s.names...)); len(got) != 2 {
		t.Errorf("afterwards: %v", got)
	}
}

func TestNotSynced(t *testing.T) {
	s := serve(t, 1, 10, false)
	s.plugin.Unsynced.Store(true)
	if code, body := s.ask(t, priorities, args(fixture.Pod("p", "app"), "n1")); code != 503 || !strings.Contains(body, "not all nodes and pods are known yet") {
		t.Errorf("%d %s", code, body)
	}
	s.plugin.Unsynced.Store(false)
	s.scores(t, args(fixture.Pod("p", "app"), "n1"))
}

// TestNames asks for nodes that are not there, that are asked for twice, and that were
// deleted.
func TestNames(t *testing.T) {
	s := serve(t, 3, 10, false)
	s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return map[string]int64{"n1": 52, "n2": 50, "n3": 51}[node] }
	if err := s.cluster.Client.CoreV1().Nodes().Delete(t.Context(), "n3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the node is gone", func() bool {
		return s.scores(t, args(fixture.Pod("p", "app"), "n3"))["n3"] == 0
	})
	before := counter(t, metrics.Unknown.WithLabelValues("fixture"))
	got := s.scores(t, args(fixture.Pod("p", "app"), "n2", "no-such", "n1", "n2", "", "n3", "n2", "no-such"))
	if want := map[string]int64{"n1": 6, "n2": 5, "no-such": 0, "n3": 0, "": 0}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if more := counter(t, metrics.Unknown.WithLabelValues("fixture")) - before; more != 3 {
		t.Errorf("%g unknown nodes counted, want 3", more)
	}
	if got := s.scores(t, args(fixture.Pod("p", "app"))); len(got) != 0 {
		t.Errorf("no names: %v", got)
	}
}

func counter(t testing.TB, c basemetrics.CounterMetric) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(c)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestNodes sends whole Nodes, as schedulers do that forget nodeCacheCapable.
func TestNodes(t *testing.T) {
	s := serve(t, 2, 10, true)
	s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return map[string]int64{"n1": 100}[node] }
	s.plugin.OnFilter = func(_ *v1.Pod, node string) string { return map[string]string{"n1": "full"}[node] }
	nodes := &v1.NodeList{Items: []v1.Node{*fixture.Node("n1"), *fixture.Node("n2")}}
	request := &extenderv1.ExtenderArgs{Pod: fixture.Pod("p", "app"), Nodes: nodes}
	before := counter(t, metrics.WithNodes.WithLabelValues("fixture", "priorities"))
	for range 3 {
		if got := s.scores(t, request); !maps.Equal(got, map[string]int64{"n1": 10, "n2": 0}) {
			t.Errorf("%v", got)
		}
	}
	if more := counter(t, metrics.WithNodes.WithLabelValues("fixture", "priorities")) - before; more != 3 {
		t.Errorf("counted %g times, want 3", more)
	}
	_, body := s.ask(t, predicates, request)
	var result extenderv1.ExtenderFilterResult
	if err := json.Unmarshal([]byte(body), &result); err != nil {
		t.Fatal(err)
	}
	if result.NodeNames != nil || result.Nodes == nil || len(result.Nodes.Items) != 1 || result.Nodes.Items[0].Name != "n2" || result.FailedNodes["n1"] != "full" {
		t.Errorf("%s", body)
	}
	log := s.log()
	if n := strings.Count(log, "nodeCacheCapable: true"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, log)
	}
}

func (s *server) log() string {
	return s.logger.GetSink().(ktesting.Underlier).GetBuffer().String()
}

// TestTie has equal nodes: the one on which the pod is expected gets one step more, if there
// is one.
func TestTie(t *testing.T) {
	for points, want := range map[int64]int64{0: 1, 30: 4, 94: 10, 95: 10, 100: 10} {
		s := serve(t, 3, 10, false)
		s.plugin.OnScore = func(*v1.Pod, string) int64 { return points }
		for range 2 {
			got := s.scores(t, args(fixture.Pod("p", "app"), "n3", "n1", "n2", "no-such"))
			others := handler.Round(points, 10)
			if want := map[string]int64{"n1": want, "n2": others, "n3": others, "no-such": 0}; !maps.Equal(got, want) {
				t.Errorf("%d points: %v, want %v", points, got, want)
			}
		}
	}
}

// TestTieOfRounded has nodes whose scores differ by less than a step: kube-scheduler sees
// equal ones, and only one of them is to be the node on which the pod is expected.
func TestTieOfRounded(t *testing.T) {
	s := serve(t, 3, 10, false)
	s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return map[string]int64{"n1": 30, "n2": 31, "n3": 24}[node] }
	for range 2 { // the second time, too: the pod's own answer does not count for it
		got := s.scores(t, args(fixture.Pod("p", "app"), s.names...))
		if want := map[string]int64{"n1": 3, "n2": 4, "n3": 2}; !maps.Equal(got, want) || s.plugin.Reserved["p"] != "n2" {
			t.Errorf("%v, expected on %s; want %v", got, s.plugin.Reserved["p"], want)
		}
	}
}

// TestPredicates filters names.
func TestPredicates(t *testing.T) {
	s := serve(t, 3, 10, true)
	s.plugin.OnFilter = func(_ *v1.Pod, node string) string { return map[string]string{"n2": "full"}[node] }
	code, body := s.ask(t, "/scheduler/predicates/alias", args(fixture.Pod("p", "app"), "n3", "n2", "gone", "n1", "n3"))
	var result extenderv1.ExtenderFilterResult
	if err := json.Unmarshal([]byte(body), &result); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	if !slices.Equal(*result.NodeNames, []string{"n3", "n1"}) || result.FailedNodes["n2"] != "full" || result.FailedAndUnresolvableNodes["gone"] == "" || len(result.FailedNodes) != 1 || len(result.FailedAndUnresolvableNodes) != 1 || result.Error != "" {
		t.Errorf("%s", body)
	}
	s.plugin.Unresolvable = true
	_, body = s.ask(t, predicates, args(fixture.Pod("p", "app"), s.names...))
	result = extenderv1.ExtenderFilterResult{}
	if err := json.Unmarshal([]byte(body), &result); err != nil || len(result.FailedNodes) != 0 || result.FailedAndUnresolvableNodes["n2"] != "full" {
		t.Errorf("%s %v", body, err)
	}
}

// TestPanic has an agent panic once.
func TestPanic(t *testing.T) {
	s := serve(t, 2, 10, false)
	good := s.plugin.OnScore
	s.plugin.OnScore = func(*v1.Pod, string) int64 { panic("on purpose") }
	before := counter(t, metrics.Panics.WithLabelValues("fixture"))
	if code, body := s.ask(t, priorities, args(fixture.Pod("p", "app"), "n1")); code != 500 || strings.Contains(body, "on purpose") {
		t.Errorf("%d %s", code, body)
	}
	s.plugin.OnScore = func(*v1.Pod, string) int64 { return 101 }
	if code, body := s.ask(t, priorities, args(fixture.Pod("p", "app"), "n1")); code != 500 || !strings.Contains(body, "101") {
		t.Errorf("a score of 101: %d %s", code, body)
	}
	if more := counter(t, metrics.Panics.WithLabelValues("fixture")) - before; more != 1 {
		t.Errorf("%g panics counted", more)
	}
	if log := s.log(); strings.Count(log, "An agent panicked") != 1 || !strings.Contains(log, "on purpose") {
		t.Errorf("log:\n%s", log)
	}
	s.plugin.OnScore = good
	s.scores(t, args(fixture.Pod("p", "app"), "n1"))
}

// TestSlowClient has clients send the first half of a request, and others ask meanwhile.
func TestSlowClient(t *testing.T) {
	s := serve(t, 2, 10, false)
	body, err := json.Marshal(args(fixture.Pod("slow", "app"), s.names...))
	if err != nil {
		t.Fatal(err)
	}
	var slow []net.Conn
	for range 50 {
		connection, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", priorities, len(body), body[:len(body)/2])
		slow = append(slow, connection)
	}
	for range 20 {
		s.scores(t, args(fixture.Pod("p", "app"), s.names...))
	}
	// They are answered as soon as they have asked.
	for _, connection := range slow {
		if _, err := connection.Write(body[len(body)/2:]); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(connection); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
			t.Fatalf("%s %v", answer, err)
		}
	}
}

// TestManyLargeRequests has clients leave large requests unfinished: what is read of them is
// bounded. When they are gone, others are answered.
func TestManyLargeRequests(t *testing.T) {
	s := serve(t, 2, 10, false)
	part := bytes.Repeat([]byte(" "), handler.MaxBody-1)
	refused := metrics.Requests.WithLabelValues("fixture", "priorities", "503")
	before := counter(t, refused)
	var open []net.Conn
	for range 16 { // 64 MiB
		connection, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", priorities, handler.MaxBody)
		go connection.Write(part) // an error for those that are refused
		open = append(open, connection)
	}
	fixture.Eventually(t, "some are refused", func() bool { return counter(t, refused) > before })
	for _, connection := range open {
		connection.Close()
	}
	large := strings.Repeat(" ", handler.MaxBody/2) + `{"Pod":{},"NodeNames":["n1"]}`
	fixture.Eventually(t, "a large request is answered", func() bool {
		response, err := http.Post(s.URL+priorities, "application/json", strings.NewReader(large))
		if err != nil { // refused before all of it was sent
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// TestGone has clients go away while another request is worked on: theirs are not.
func TestGone(t *testing.T) {
	s := serve(t, 1, 10, false)
	working, goOn := make(chan struct{}), make(chan struct{})
	var worked sync.Map
	s.plugin.OnScore = func(pod *v1.Pod, _ string) int64 {
		if pod.Name == "first" {
			close(working)
			<-goOn
		}
		worked.Store(pod.Name, true)
		return 0
	}
	var group sync.WaitGroup
	group.Go(func() { s.scores(t, args(fixture.Pod("first", "app"), "n1")) })
	<-working
	// The server's side of the impatient request: its context ends when the client has gone.
	received, finished := make(chan context.Context, 1), make(chan struct{})
	behind := s.Config.Handler
	impatient := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received <- r.Context()
		behind.ServeHTTP(w, r)
		close(finished)
	}))
	defer impatient.Close()
	body, err := json.Marshal(args(fixture.Pod("impatient", "app"), "n1"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, goAway := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, impatient.URL+priorities, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	group.Go(func() {
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
			t.Error("the agent works on two requests at once")
		}
	})
	noticed := <-received
	goAway()
	<-noticed.Done()
	close(goOn)
	group.Wait()
	<-finished
	if _, ok := worked.Load("impatient"); ok {
		t.Error("a request was worked on whose client had gone")
	}
}

// TestConnections has Kubernetes' own client ask for 1,000 pods.
func TestConnections(t *testing.T) {
	s := serve(t, 500, 10, false)
	opened, closed := metrics.Connections.WithLabelValues(metrics.Opened), metrics.Connections.WithLabelValues(metrics.Closed)
	before, gone := counter(t, opened), counter(t, closed)
	client, err := scheduler.NewHTTPExtender(&config.Extender{
		URLPrefix: s.URL + "/scheduler", PrioritizeVerb: "priorities/fixture", Weight: 1, NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	infos := make([]fwk.NodeInfo, len(s.names))
	for i, name := range s.names {
		info := framework.NewNodeInfo()
		info.SetNode(fixture.Node(name))
		infos[i] = info
	}
	for i := range 1000 {
		answer, _, err := client.Prioritize(fixture.Pod(fmt.Sprint("p", i), "app"), infos)
		if err != nil || len(*answer) != len(infos) {
			t.Fatal(err)
		}
	}
	if count := counter(t, opened) - before; count == 0 || count > 5 {
		t.Errorf("%v connections for 1,000 pods, one after the other", count)
	}
	s.CloseClientConnections()
	fixture.Eventually(t, "connections are closed", func() bool { return counter(t, closed) > gone })
}

// TestPreempt has Kubernetes' own client ask for candidates of preemption, by names and with whole pods,
// for a pod that must not be beside others: nodes on which one of these stays are dropped, although
// the filter's answer for them now is that removing pods may help.
func TestPreempt(t *testing.T) {
	objects, _ := fixture.Nodes(5)
	nodes := []*v1.Node{}
	for _, object := range objects {
		node := object.(*v1.Node)
		node.Labels = map[string]string{v1.LabelHostname: node.Name}
		nodes = append(nodes, node)
	}
	victims, pods := map[string]*extenderv1.Victims{}, []*v1.Pod{}
	for _, c := range []struct {
		name, node   string
		same, leaves bool
	}{
		{"a", "n1", true, true},
		{"b", "n2", true, true}, {"c", "n2", true, false},
		{"d", "n3", false, true}, {"e", "n3", true, false},
		{"f", "n4", false, true}, {"g", "n4", false, false},
		{"h", "unknown", false, true},
	} {
		pod := fixture.Pod(c.name, "app")
		if pod.Spec.NodeName = c.node; c.same {
			pod.Labels = map[string]string{"app": "same"}
		}
		if pods, objects = append(pods, pod), append(objects, pod); c.leaves {
			victims[c.node] = &extenderv1.Victims{Pods: list(pod), NumPDBViolations: 1}
		}
	}
	snapshot := cache.NewSnapshot(pods, append(nodes, fixture.Node("unknown"))) // the scheduler's: it knows more
	cluster := fixture.NewCluster(t, objects...)
	a := cluster.Agent(t, agent.Kind{Name: "apart", Plugin: interpodaffinity.Name, New: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		return interpodaffinity.New(ctx, args, handle, feature.Features{})
	}}, nil)
	cluster.Follow(t, a)
	h, err := handler.New(ktesting.NewLogger(t, ktesting.NewConfig()), list(a), nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	apart := fixture.Pod("apart", "app")
	apart.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: list(v1.PodAffinityTerm{
		TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "same"}},
	})}}
	for _, names := range []bool{true, false} {
		client, err := scheduler.NewHTTPExtender(&config.Extender{
			URLPrefix: server.URL + "/scheduler", FilterVerb: "predicates/apart", PreemptVerb: "preempt/apart", NodeCacheCapable: names, HTTPTimeout: metav1.Duration{Duration: time.Minute},
		})
		if err != nil {
			t.Fatal(err)
		}
		infos, err := snapshot.NodeInfos().List()
		if err != nil {
			t.Fatal(err)
		}
		_, failed, unresolvable, err := client.Filter(apart, infos)
		if resolvable := slices.Sorted(maps.Keys(failed)); err != nil || !slices.Equal(resolvable, list("n1", "n2", "n3")) || len(unresolvable) != 1 {
			t.Errorf("names %t: filtered %v and %v: %v", names, failed, unresolvable, err)
		}
		left, err := client.ProcessPreemption(apart, victims, snapshot.NodeInfos())
		if err != nil {
			t.Fatal(err)
		}
		for node, want := range map[string]string{"n1": "a", "n4": "f"} {
			if got := left[node]; got == nil || got.NumPDBViolations != 1 || len(got.Pods) != 1 || got.Pods[0].Name != want {
				t.Errorf("names %t: %s: %+v, want %s", names, node, got, want)
			}
		}
		if len(left) != 2 {
			t.Errorf("names %t: %v, want n1 and n4", names, left)
		}
	}
}

// TestLog has what the log says of each verb, by its level: what is refused and why, then the best five of
// each answer, then each node; with the pod and the agent.
func TestLog(t *testing.T) {
	s := serve(t, 7, 10, true)
	s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return 10 * int64(node[1]-'0') }
	s.plugin.OnFilter = func(_ *v1.Pod, node string) string {
		return map[string]string{"n2": "too hot", "n3": "too hot", "n6": "too cold"}[node]
	}
	a := s.cluster.Agent(t, s.plugin.Kind("logged"), nil)
	fixture.Eventually(t, "the agent has synced", a.HasSynced)
	pod := fixture.Pod("asked-about", "app")
	const (
		who           = `pod="default/asked-about"`
		refuses       = `Refused nodes agent="logged" verb="predicates" ` + who + ` nodes=7 refused=3 reasons={"too cold":1,"too hot":2}`
		inVain        = `Refused nodes for preemption: removing the victims would not help agent="logged" verb="preempt" ` + who + ` nodes=2 refused=1 reasons={"too hot":1}`
		passes        = `Filtered nodes agent="logged" verb="predicates" ` + who + ` nodes=7 pass=4 first=["n1","n4","n5","n7"]`
		candidates    = `Filtered nodes for preemption agent="logged" verb="preempt" ` + who + ` nodes=2 pass=1 first=["n1"]`
		bestFive      = `Scored nodes agent="logged" verb="priorities" ` + who + ` nodes=7 best=[{"node":"n7","score":70},{"node":"n6","score":60},{"node":"n5","score":50},{"node":"n4","score":40},{"node":"n3","score":30}]`
		refusedNode   = `Filtered a node agent="logged" verb="predicates" ` + who + ` node="n3" pass=false reason="too hot"`
		scoredNode    = `Scored a node agent="logged" verb="priorities" ` + who + ` node="n1" score=10`
		notACandidate = `Filtered a node agent="logged" verb="preempt" ` + who + ` node="n2" pass=false reason="too hot"`
	)
	for _, c := range []struct {
		level, lines int
		has          []string
	}{
		{1, 0, nil}, {2, 2, list(refuses, inVain)}, {3, 2, nil}, {4, 5, list(refuses, inVain, passes, candidates, bestFive)}, {5, 5, nil},
		{6, 5 + 7 + 7 + 2, list(refuses, passes, bestFive, refusedNode, scoredNode, notACandidate)},
	} {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(c.level)))
		h, err := handler.New(logger, list(a), nil, 10)
		if err != nil {
			t.Fatal(err)
		}
		for verb, body := range map[string]any{
			"predicates": args(pod, s.names...), "priorities": args(pod, s.names...),
			"preempt": &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"n1": {}, "n2": nil}},
		} {
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/scheduler/"+verb+"/logged", bytes.NewReader(text))); w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", verb, w.Code, w.Body)
			}
		}
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if lines := strings.Count(text, who); lines != c.lines {
			t.Errorf("level %d: %d lines about the pod, want %d:\n%s", c.level, lines, c.lines, text)
		}
		for _, want := range c.has {
			if !strings.Contains(text, want) {
				t.Errorf("level %d: no %s in\n%s", c.level, want, text)
			}
		}
	}
}

// TestProperties checks what is true of every answer, for nodes and scores by chance.
func TestProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		nodes, most := 1+random.IntN(40), int64(1+random.IntN(handler.LimitMaxScore))
		s := serve(t, nodes, most, true)
		points := map[string]int64{}
		for _, name := range s.names {
			points[name] = random.Int64N(fwk.MaxScore + 1)
		}
		s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return points[node] }
		s.plugin.OnFilter = func(_ *v1.Pod, node string) string { return map[bool]string{true: "even"}[points[node]%2 == 0] }
		var first map[string]int64
		for range 3 {
			asked := slices.Clone(s.names)
			for range random.IntN(5) {
				asked = append(asked, fmt.Sprint("unknown-", random.IntN(3)), s.names[random.IntN(nodes)])
			}
			random.Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
			got := s.scores(t, args(fixture.Pod("p", "app"), asked...))
			for _, name := range asked {
				score, ok := got[name]
				if !ok || score < 0 || score > most {
					t.Fatalf("%s: %d, %t of at most %d", name, score, ok, most)
				}
			}
			for name, score := range got {
				if !slices.Contains(asked, name) {
					t.Fatalf("%s was not asked for", name)
				}
				if first != nil && slices.Contains(s.names, name) && first[name] != score {
					t.Fatalf("%s: %d, and %d in another order", name, first[name], score)
				}
				for other, its := range got {
					if points[name] > points[other] && score < its {
						t.Fatalf("%s has %d for %d, %s %d for %d", name, score, points[name], other, its, points[other])
					}
				}
			}
			first = got
			_, body := s.ask(t, predicates, args(fixture.Pod("p", "app"), asked...))
			var result extenderv1.ExtenderFilterResult
			if err := json.Unmarshal([]byte(body), &result); err != nil {
				t.Fatal(err)
			}
			for _, name := range *result.NodeNames {
				if !slices.Contains(s.names, name) || points[name]%2 == 0 || result.FailedNodes[name] != "" {
					t.Fatalf("%s passes", name)
				}
			}
			if len(*result.NodeNames)+len(result.FailedNodes)+len(result.FailedAndUnresolvableNodes) != len(got) {
				t.Fatalf("%d pass and %d fail of %d", len(*result.NodeNames), len(result.FailedNodes), len(got))
			}
		}
	}
}

// FuzzVerbs sends anything to both verbs: every answer is one of the documented ones, and a
// good one names the nodes that were asked for.
func FuzzVerbs(f *testing.F) {
	pod, err := json.Marshal(args(fixture.Pod("p", "app:v1"), "n1", "n2", "n3"))
	if err != nil {
		f.Fatal(err)
	}
	whole, err := json.Marshal(&extenderv1.ExtenderArgs{Pod: fixture.Pod("p", "app"), Nodes: &v1.NodeList{Items: []v1.Node{*fixture.Node("n1")}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(pod), string(whole), `{"Pod":{},"NodeNames":[""]}`, `{"pod":{"metadata":{"uid":"1"}},"nodenames":["n1","n1"]}`, `{"Pod":null,"Nodes":{"items":null}}`,
		`{"Pod":{"spec":{"containers":[{"image":"a@b:c","resources":{"requests":{"cpu":"1e400","memory":"-3"}}}],"initContainers":[{}]}},"NodeNames":["n1"]}`,
		`{"Pod":{"metadata":{"annotations":{"mean-free-cpu":"NaN"},"uid":"x","namespace":"../.."}},"NodeNames":["n1"]}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	s := serve(f, 2, 10, true)
	s.plugin.OnScore = func(_ *v1.Pod, node string) int64 { return int64(len(node)) }
	s.plugin.OnFilter = func(pod *v1.Pod, node string) string {
		return map[bool]string{true: "no"}[len(pod.Spec.Containers) > 0 && node == "n1"]
	}
	f.Fuzz(func(t *testing.T, body []byte, filter bool) {
		path := priorities
		if filter {
			path = predicates
		}
		request := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
		recorder := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(recorder, request)
		var sent extenderv1.ExtenderArgs
		asked := map[string]bool{}
		if err := json.Unmarshal(body, &sent); err == nil {
			if sent.NodeNames != nil {
				for _, name := range *sent.NodeNames {
					asked[name] = true
				}
			} else if sent.Nodes != nil {
				for _, node := range sent.Nodes.Items {
					asked[node.Name] = true
				}
			}
		}
		switch recorder.Code {
		case 400, 413:
			return
		case 200:
		default:
			t.Fatalf("%d %s", recorder.Code, recorder.Body)
		}
		if filter {
			var result extenderv1.ExtenderFilterResult
			if err := json.Unmarshal(recorder.Body.Bytes(), &result); err != nil {
				t.Fatal(err)
			}
			// Each node that was asked for is in one place, and no other one is anywhere.
			answered := map[string]bool{}
			answer := slices.Concat(slices.Collect(maps.Keys(result.FailedNodes)), slices.Collect(maps.Keys(result.FailedAndUnresolvableNodes)))
			if result.NodeNames != nil {
				answer = append(answer, *result.NodeNames...)
			} else if result.Nodes != nil {
				for _, node := range result.Nodes.Items {
					if !answered[node.Name] { // twice if it was sent twice
						answer = append(answer, node.Name)
					}
					answered[node.Name] = true
				}
			}
			clear(answered)
			for _, name := range answer {
				if !asked[name] || answered[name] {
					t.Fatalf("%q was not asked for, or is answered twice", name)
				}
				answered[name] = true
			}
			if len(answered) != len(asked) {
				t.Fatalf("%d of %d nodes are answered", len(answered), len(asked))
			}
			return
		}
		var answer extenderv1.HostPriorityList
		if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		if len(answer) != len(asked) {
			t.Fatalf("%d answers for %d nodes", len(answer), len(asked))
		}
		for _, each := range answer {
			if !asked[each.Host] || each.Score < 0 || each.Score > 10 {
				t.Fatalf("%+v", each)
			}
		}
	})
}
