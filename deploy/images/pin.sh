#!/usr/bin/env bash
# Names images by digest in what users apply: the overlays, the static pod and the Helm chart.
#
#   build.sh --push ... | pin.sh [FOLDER]
#
# It reads what build.sh beside it prints, one image a line: REPOSITORY/COMPONENT:TAG@DIGEST. FOLDER is
# deploy, or a copy of it; default the one that this script is in.
set -euo pipefail

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

folder=${1:-$(cd "$(dirname "$0")/.." && pwd)}
[ -d "$folder/scheduler" ] || die "$folder is no copy of deploy"
while IFS= read -r line; do
  [[ $line =~ ^([^@[:space:]|]+)/([a-z-]+)(:[^@/]+)?@(sha256:[0-9a-f]{64})$ ]] || die "'$line' names no image by digest: want REPOSITORY/COMPONENT:TAG@sha256:..."
  repository=${BASH_REMATCH[1]} component=${BASH_REMATCH[2]} digest=${BASH_REMATCH[4]}
  case $component in
  kube-scheduler) part=scheduler ;;
  layer-*) part=${component#layer-} ;;
  *) continue ;; # the manifests here name none of the others
  esac
  find "$folder" -name kustomization.yaml -exec sed -i \
    -e "/^- name: layer-locality\/${component}$/{n;s|.*|  newName: $repository/$component|;n;s|.*|  digest: $digest|}" {} +
  find "$folder/scheduler/static-pod" -name '*.yaml' -exec sed -i \
    -e "s|^\( *image: \).*/${component}[:@].*|\1$repository/$component@$digest|" {} +
  [ ! -d "$folder/helm" ] || sed -i -e "s|^registry: .*|registry: $repository|" \
    -e "/^$part:/,/^[a-z]/s|^  digest: .*|  digest: $digest|" "$folder/helm/values.yaml"
done
