{{/* Objects from the files that kustomize reads too, which "files" links to: what both install
cannot differ. Each define gets a dict: root ($), name (of the part), and what it says. */}}

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
{{- if has $object.kind (list "ConfigMap" "DaemonSet" "Deployment" "PodDisruptionBudget" "Role" "RoleBinding" "Service" "ServiceAccount") -}}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{- end }}
---
{{ toYaml $object }}
{{- end -}}
{{- end }}

{{/* Sets what values say of the pods of a part: replicas, image, extraArgs, resources. */}}
{{- define "layer-locality.pods" -}}
{{- $root := .root -}}{{- $values := .values -}}{{- $image := .image -}}
{{- range $object := .objects -}}
{{- if has $object.kind (list "Deployment" "DaemonSet") -}}
{{- if $values.replicas }}{{- $_ := set $object.spec "replicas" $values.replicas }}{{ end -}}
{{- range $container := $object.spec.template.spec.containers -}}
{{- $_ := set $container "image" (include "layer-locality.image" (dict "root" $root "image" $image "digest" $values.digest)) -}}
{{- if $values.extraArgs }}{{- $_ := set $container "args" (concat (default list $container.args) $values.extraArgs) }}{{ end -}}
{{- if $values.resources }}{{- $_ := set $container "resources" $values.resources }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The minor version of the server. */}}
{{- define "layer-locality.minor" -}}
{{- regexFind "^[0-9]+" .Capabilities.KubeVersion.Minor -}}
{{- end }}
