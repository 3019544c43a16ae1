package livetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Rights reads from the audit log of a cluster, whose policy is auditlog.RequestsOf, what a service
// account asked for so far: nothing that was forbidden, nothing but what its ClusterRoles name, and,
// in the end, all of that. reasons has verbs that it may do without here, with the reason.
func Rights(t *testing.T, c *cluster.Cluster, client kubernetes.Interface, user string, reasons map[string]string) {
	t.Helper()
	namespace, name, err := serviceaccount.SplitUsername(user)
	must(t, err)
	rules := rulesOf(t, client, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name})
	var use auditlog.Use
	Eventually(t, time.Minute, name+" has made use of all its rights", func(context.Context) error {
		log, err := auditlog.Read(c.AuditLog())
		if err != nil {
			return err
		}
		use = log.Use(user, rules)
		for _, right := range use.Unused {
			if reasons[right.Verbs[0]] == "" {
				return fmt.Errorf("it has not made use of %v", use.Unused)
			}
		}
		return nil
	})
	for _, right := range use.Unused {
		t.Logf("not used here: %s of %s%s: %s", right.Verbs[0], right.Resources, right.NonResourceURLs, reasons[right.Verbs[0]])
	}
	for _, request := range use.Forbidden {
		t.Errorf("%s is forbidden", request)
	}
	for _, request := range use.Unnamed {
		t.Errorf("no ClusterRole of %s names %s", name, request)
	}
}

// rulesOf returns the rules of the ClusterRoles that are bound to a subject.
func rulesOf(t *testing.T, client kubernetes.Interface, subject rbacv1.Subject) (rules []rbacv1.PolicyRule) {
	t.Helper()
	bindings, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, binding := range bindings.Items {
		if slices.Contains(binding.Subjects, subject) {
			role, err := client.RbacV1().ClusterRoles().Get(t.Context(), binding.RoleRef.Name, metav1.GetOptions{})
			must(t, err)
			rules = append(rules, role.Rules...)
		}
	}
	if len(rules) == 0 {
		t.Fatalf("no ClusterRole is bound to %s", subject.Name)
	}
	return rules
}
