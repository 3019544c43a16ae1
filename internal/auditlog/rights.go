package auditlog

import (
	"fmt"
	"net/http"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// RequestsOf returns an audit policy that records what a user asks for, but not what it contains.
func RequestsOf(user string) string {
	return fmt.Sprintf(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [%q]
- level: None
`, user)
}

// Requests is an audit policy that records what everybody asks for, but not what it contains.
const Requests = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// Use is what became of the rights of a user.
type Use struct {
	// Forbidden are the requests that the apiserver did not allow.
	Forbidden []string
	// Unnamed are the requests that no rule names.
	Unnamed []string
	// Unused are the rights that no request made use of.
	Unused []rbacv1.PolicyRule
}

// Use compares what a user asked for with the rules that are meant for it.
func (l Log) Use(user string, rules []rbacv1.PolicyRule) Use {
	var u Use
	var rights []rbacv1.PolicyRule
	for _, rule := range rules {
		rights = append(rights, validation.BreakdownRule(rule)...)
	}
	used := make([]bool, len(rights))
	for _, event := range l {
		who := event.User.Username
		if event.ImpersonatedUser != nil {
			who = event.ImpersonatedUser.Username
		}
		if who != user || event.Stage == auditv1.StageRequestReceived {
			continue
		}
		code := 0
		if event.ResponseStatus != nil {
			code = int(event.ResponseStatus.Code)
		}
		request := fmt.Sprintf("%s %s: %d", event.Verb, event.RequestURI, code)
		if code == http.StatusForbidden {
			u.Forbidden = append(u.Forbidden, request)
			continue
		}
		needed, named := needs(event), false
		for i, right := range rights {
			if covered, _ := validation.Covers([]rbacv1.PolicyRule{right}, needed); covered {
				named = true
				used[i] = used[i] || served(event, code)
			}
		}
		if !named {
			u.Unnamed = append(u.Unnamed, request)
		}
	}
	for i, right := range rights {
		if !used[i] {
			u.Unused = append(u.Unused, right)
		}
	}
	return u
}

// needs returns the right that a request needs.
func needs(event auditv1.Event) []rbacv1.PolicyRule {
	right := rbacv1.PolicyRule{Verbs: []string{event.Verb}}
	object := event.ObjectRef
	if object == nil {
		path, _, _ := strings.Cut(event.RequestURI, "?")
		right.NonResourceURLs = []string{path}
		return []rbacv1.PolicyRule{right}
	}
	resource := object.Resource
	if object.Subresource != "" {
		resource += "/" + object.Subresource
	}
	right.APIGroups, right.Resources = []string{object.APIGroup}, []string{resource}
	// The name of what is to be created is in no request that is authorized.
	if object.Name != "" && event.Verb != "create" {
		right.ResourceNames = []string{object.Name}
	}
	return []rbacv1.PolicyRule{right}
}

// served reports whether a request came to what it was for. An object that was not there was looked
// for, but a resource that is not there is of no use to anybody.
func served(event auditv1.Event, code int) bool {
	return code >= http.StatusOK && code < http.StatusBadRequest ||
		code == http.StatusNotFound && event.ObjectRef != nil && event.ObjectRef.Name != ""
}
