package auditlog

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"
)

// asks returns the line of a request by user u: of verb and path, and the reference of its object.
func asks(verb, path, object string, code int) string {
	if object != "" {
		object = `"objectRef":{` + object + `},`
	}
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","requestURI":%q,"verb":%q,"user":{"username":"u"},%s"responseStatus":{"code":%d}}`,
		path, verb, object, code) + "\n"
}

func TestUse(t *testing.T) {
	const (
		pods   = `"resource":"pods"`
		status = `"resource":"pods","name":"p","subresource":"status"`
		lease  = `"resource":"leases","apiGroup":"coordination.k8s.io","name":"ours"`
	)
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"ours"}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
	}
	everything := asks("list", "/api/v1/pods?limit=5", pods, 200) + asks("watch", "/api/v1/pods", pods, 200) + asks("patch", "/status", status, 200) +
		asks("get", "/ours", lease, 404) + asks("update", "/ours", lease, 200) + asks("create", "/leases", lease, 201)
	for name, test := range map[string]struct{ log, forbidden, unnamed, unused string }{
		"all of it":               {log: everything},
		"all of it, impersonated": {log: strings.ReplaceAll(everything, `"username":"u"}`, `"username":"admin"},"impersonatedUser":{"username":"u"}`)},
		"impersonating others":    {log: everything + strings.Replace(asks("list", "/secrets", `"resource":"secrets"`, 403), `"username":"u"}`, `"username":"u"},"impersonatedUser":{"username":"v"}`, 1)},
		"forbidden":               {log: everything + asks("list", "/secrets", `"resource":"secrets"`, 403), forbidden: "list /secrets: 403"},
		"only forbidden":          {log: strings.ReplaceAll(everything, `"verb":"watch","user":{"username":"u"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200}`, `"verb":"watch","user":{"username":"u"},"objectRef":{"resource":"pods"},"responseStatus":{"code":403}`), forbidden: "watch /api/v1/pods: 403", unused: "watch pods"},
		"another resource":        {log: everything + asks("list", "/nodes", `"resource":"nodes"`, 200), unnamed: "list /nodes: 200"},
		"another verb":            {log: everything + asks("delete", "/pods", pods, 200), unnamed: "delete /pods: 200"},
		"another group":           {log: everything + asks("list", "/pods", pods+`,"apiGroup":"example.com"`, 200), unnamed: "list /pods: 200"},
		"another name":            {log: everything + asks("get", "/theirs", strings.Replace(lease, "ours", "theirs", 1), 200), unnamed: "get /theirs: 200"},
		"of the resource itself":  {log: everything + asks("patch", "/pods/p", `"resource":"pods","name":"p"`, 200), unnamed: "patch /pods/p: 200"},
		"no resource":             {log: everything + asks("get", "/version?x", "", 200), unnamed: "get /version?x: 200"},
		"not asked for":           {log: strings.SplitAfterN(everything, "\n", 2)[1], unused: "list pods"},
		"the resource is missing": {log: strings.SplitAfterN(everything, "\n", 2)[1] + asks("list", "/pods", pods, 404), unused: "list pods"},
		"the server is busy":      {log: strings.SplitAfterN(everything, "\n", 2)[1] + asks("list", "/pods", pods, 429), unused: "list pods"},
		"asked by another one":    {log: strings.Replace(everything, `"u"`, `"v"`, 1), unused: "list pods"},
		"not answered":            {log: strings.Replace(everything, "ResponseComplete", "RequestReceived", 1), unused: "list pods"},
	} {
		t.Run(name, func(t *testing.T) {
			log, err := read(strings.NewReader(test.log))
			if err != nil {
				t.Fatal(err)
			}
			use := log.Use("u", rules)
			var unused []string
			for _, right := range use.Unused {
				unused = append(unused, right.Verbs[0]+" "+right.Resources[0])
			}
			if got, want := fmt.Sprint(use.Forbidden, use.Unnamed, unused), fmt.Sprintf("[%s] [%s] [%s]", test.forbidden, test.unnamed, test.unused); got != want {
				t.Errorf("forbidden, unnamed and unused are %s, want %s", got, want)
			}
		})
	}
}

func TestRequestsOf(t *testing.T) {
	var policy auditv1.Policy
	if err := yaml.UnmarshalStrict([]byte(RequestsOf("system:serviceaccount:a:b")), &policy); err != nil {
		t.Fatal(err)
	}
	if len(policy.Rules) != 2 || policy.Rules[0].Users[0] != "system:serviceaccount:a:b" || policy.Rules[1].Level != auditv1.LevelNone {
		t.Errorf("%+v", policy)
	}
}
