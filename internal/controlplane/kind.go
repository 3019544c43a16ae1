package controlplane

import (
	"fmt"
	"strings"
)

// OpenKind returns the CustomResourceDefinition (YAML) of a kind with any fields: it stands in
// for kinds that other products define. Objects of OpenShift are in no namespace, others are.
func OpenKind(group, version, kind string) string {
	plural, scope := strings.ToLower(kind)+"s", "Namespaced"
	if stem, ok := strings.CutSuffix(plural, "ys"); ok {
		plural = stem + "ies"
	}
	if strings.HasSuffix(group, ".openshift.io") {
		scope = "Cluster"
	}
	return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.%s},
spec: {group: %s, scope: %s, names: {plural: %s, kind: %s}, versions: [{name: %s, served: true, storage: true,
schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`, plural, group, group, scope, plural, kind, version)
}
