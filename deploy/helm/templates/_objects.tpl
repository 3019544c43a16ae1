{{/* Objects from the files that kustomize reads too, which "files" links to: what both install
cannot differ. Each define gets a dict: root ($), name (of the part), and its content. */}}

{{- define "layer-locality.image" -}}
{{- $digest := .digest -}}
{{- printf "%s/%s%s" (trimSuffix "/" .root.Values.registry) .image (ternary (printf "@%s" $digest) (printf ":%s" (default .root.Chart.AppVersion .root.Values.tag)) (ne $digest "")) -}}
{{- end }}

{{/* The objects of the files, as a JSON list under "objects". */}}
{{- define "layer-locality.read" -}}
{{- $root := .root -}}
{{- $objects := list -}}
{{- range $path := .files -}}
{{- $text := $root.Files.Get (printf "files/%s" $path) -}}
{{- if not $text }}{{ fail (printf "the chart has no file %s: its links are broken" $path) }}{{ end -}}
{{- range $document := regexSplit "(?m)^---\\s*$" $text -1 -}}
{{- $object := fromYaml $document -}}
{{- if $object.Error }}{{ fail (printf "%s: %s" $path $object.Error) }}{{ end -}}
{{- if $object.kind -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "objects" $objects | toJson -}}
{{- end }}

{{/* Prints objects, with the labels of their part and their namespace. */}}
{{- define "layer-locality.print" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- range $object := .objects -}}
{{- $labels := dict "app.kubernetes.io/name" $name "app.kubernetes.io/part-of" "layer-locality" -}}
{{- $_ := set $object.metadata "labels" (merge $labels (default dict $object.metadata.labels)) -}}
{{- if has $object.kind (list "ConfigMap" "DaemonSet" "Deployment" "NetworkPolicy" "PodDisruptionBudget" "Role" "RoleBinding" "Service" "ServiceAccount") -}}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{- end }}
---
{{ toYaml $object }}
{{- end -}}
{{- end }}

{{/* Sets the values of the pods of a part. Maps are merged with what the part has, arguments and
environment are added to it, everything else replaces it. */}}
{{- define "layer-locality.pods" -}}
{{- $root := .root -}}{{- $values := .values -}}{{- $image := .image -}}
{{- range $object := .objects -}}
{{- if has $object.kind (list "Deployment" "DaemonSet") -}}
{{- if $values.replicas }}{{- $_ := set $object.spec "replicas" $values.replicas }}{{ end -}}
{{- $pod := $object.spec.template.spec -}}
{{- with $values.nodeSelector }}{{ $_ := set $pod "nodeSelector" (merge (deepCopy .) $pod.nodeSelector) }}{{ end -}}
{{- with $values.affinity }}{{ $_ := set $pod "affinity" (merge (deepCopy .) (default dict $pod.affinity)) }}{{ end -}}
{{- if kindIs "slice" $values.tolerations }}{{ $_ := set $pod "tolerations" $values.tolerations }}{{ end -}}
{{- with $values.priorityClassName }}{{ $_ := set $pod "priorityClassName" . }}{{ end -}}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- $spread := list -}}
{{- range $values.topologySpreadConstraints }}{{ $spread = append $spread (merge (deepCopy .) (dict "labelSelector" $object.spec.selector)) }}{{ end -}}
{{- with $spread }}{{ $_ := set $pod "topologySpreadConstraints" . }}{{ end -}}
{{- range $container := $pod.containers -}}
{{- $_ := set $container "image" (include "layer-locality.image" (dict "root" $root "image" $image "digest" $values.digest)) -}}
{{- if $values.extraArgs }}{{- $_ := set $container "args" (concat (default list $container.args) $values.extraArgs) }}{{ end -}}
{{- with $values.extraEnv }}{{ $_ := set $container "env" (concat (default list $container.env) .) }}{{ end -}}
{{- with $values.resources }}{{ $_ := set $container "resources" (merge (deepCopy .) $container.resources) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Adds the NetworkPolicy of a part to its objects, with the addresses of the apiserver. */}}
{{- define "layer-locality.objects" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $files := .files -}}
{{- if and $policy.enabled .policy -}}
{{- if not $policy.apiServers }}{{ fail "networkPolicy.apiServers is empty: give the addresses of the apiserver as networks, such as 192.0.2.1/32; kubectl get endpointslices --selector kubernetes.io/service-name=kubernetes has them" }}{{ end -}}
{{- $files = append $files (printf "%s-network-policy/networkpolicy.yaml" .policy) -}}
{{- end -}}
{{- $objects := (include "layer-locality.read" (dict "root" .root "files" $files) | fromJson).objects -}}
{{- $peers := list -}}
{{- range $network := $policy.apiServers }}{{ $peers = append $peers (dict "ipBlock" (dict "cidr" $network)) }}{{ end -}}
{{- $extra := .extraEgress -}}
{{- range $object := $objects -}}
{{- if eq $object.kind "NetworkPolicy" -}}
{{- /* The last rule is the one for the apiserver. */ -}}
{{- $apiServer := dict "to" $peers "ports" (list (dict "protocol" "TCP" "port" $policy.apiServerPort)) -}}
{{- $_ := set $object.spec "egress" (concat (initial $object.spec.egress) (list $apiServer) $extra) -}}
{{- end -}}
{{- end -}}
{{- dict "objects" $objects | toJson -}}
{{- end }}

{{/* The minor version of the server. */}}
{{- define "layer-locality.minor" -}}
{{- regexFind "^[0-9]+" .Capabilities.KubeVersion.Minor -}}
{{- end }}
