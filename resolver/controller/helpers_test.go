package controller

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/resolver/policy"
)

func deploymentOf(account, image string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns"}}
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Image: image}}}
	return d
}

func emptyPolicy(t *testing.T) *policy.Policy {
	p, err := policy.New(policy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// addNodes adds a node of each platform.
func addNodes(r *Resolver, platforms ...string) {
	for _, platform := range platforms {
		r.nodes.set("node-"+platform, nodeFacts{platform: platform})
	}
	r.nodesChanged()
}
