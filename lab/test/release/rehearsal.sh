#!/usr/bin/env bash
# The dress rehearsal of a release: published to a registry, verified, installed from there on a stock cluster with nothing
# but the chart's reference, upgraded, rolled back and removed; then the demo with its programs. run.sh sources it.
#
#   rehearsal.sh RELEASE
#
# RELEASE is a folder that scripts/release.sh made, without --registry. Its registry is played by that of a local cluster,
# whose nodes have it as a mirror.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  . "$(dirname "$0")/../../../scripts/lib.sh"
  . "$ROOT/lab/test/checks.sh"
  RELEASE=$(realpath -- "${1:?"usage: rehearsal.sh RELEASE"}")
fi

REHEARSAL=rehearsal
localcluster() { "$ROOT/lab/run" localcluster --name "$REHEARSAL" "$@"; }
clean_up() { [ ! -e "/var/lib/layer-locality/$REHEARSAL" ] || localcluster down; }
PUBLISHED=$(image_registry)
FLAVOUR=${FLAVOUR:-stock}

# start: a cluster whose nodes get from its registry what they would get from ours. Sets KUBECONFIG and REGISTRY.
start() {
  localcluster up --nodes 2 --flavour "$FLAVOUR" >"$WORK/up"
  grep '^export ' "$WORK/up" >"$WORK/cluster"
  # shellcheck source=/dev/null
  . "$WORK/cluster"
  printf '\n[[registry]]\nprefix = "%s"\nlocation = "%s"\ninsecure = true\n' "${PUBLISHED%%/*}" "$REGISTRY" \
    >>"/var/lib/layer-locality/$REHEARSAL/config/registries.conf"
  localcluster status --json | jq -r '.processes[] | select(.socket) | .pid' | xargs kill -HUP # read it again
}

check "programs of a stock cluster" "$ROOT/scripts/build.sh" tools etcd registry runc crictl helm \
  "$FLAVOUR" crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler stock kubectl
check "a cluster with a registry" start
# shellcheck source=/dev/null
. "$WORK/cluster"
export KUBECONFIG NO_PROXY=${REGISTRY%:*} no_proxy=${REGISTRY%:*}
TARGET=$REGISTRY/${PUBLISHED#*/}
helm() {
  env HOME="$WORK/helm" HELM_CACHE_HOME="$WORK/helm" HELM_CONFIG_HOME="$WORK/helm" HELM_DATA_HOME="$WORK/helm" "$BUILD/bin/tools/helm" "$@"
}
kubectl() { "$BUILD/bin/stock/kubectl" "$@"; }

COSIGN=$(go_tool github.com/sigstore/cosign/v3/cmd/cosign "$COSIGN_VERSION")
CRANE=$(go_tool github.com/google/go-containerregistry/cmd/crane "$(go -C "$ROOT" list -m -f '{{.Version}}' github.com/google/go-containerregistry)")
export COSIGN_PASSWORD=rehearsal
for who in owner stranger; do
  check "a key of the $who" env -C "$WORK" "$COSIGN" generate-key-pair --output-key-prefix "$who"
done
# publish REGISTRY FILE: publishes the release there, and lists in the file what is published.
publish() { "$ROOT/scripts/publish.sh" --registry "$1" --insecure --key "$WORK/owner.key" --subjects "$WORK/subjects" "$RELEASE" >"$2"; }
check "the release is published" publish "$TARGET" "$WORK/published"
check "that is seven images and the chart" bash -c "[ \"\$(grep -c @sha256: '$WORK/published')\" = 8 ] && grep /charts/layer-locality@ '$WORK/published'"
check "it is published again" publish "$TARGET" "$WORK/again"
check "that has the same digests" diff "$WORK/published" "$WORK/again"
check "the digests are those of the release" diff <(sed 's/:[^:@]*@/@/' "$RELEASE/images.txt" | sed 's,.*/,,' | sort) <(grep -v /charts/ "$WORK/published" | sed 's,.*/,,' | sort)
check "what provenance is stated for has the images" grep -F "$(sed -n 's/.*@sha256:\(.*\)/\1/p;q' "$WORK/published")  $TARGET/" "$WORK/subjects"
move() {
  local name
  name=$(sed -n 's,.*/\(.*\)@.*,\1,p;q' "$RELEASE/images.txt")
  tar -cf "$WORK/empty.tar" --files-from /dev/null
  "$CRANE" append --insecure --new_layer "$WORK/empty.tar" --new_tag "$REGISTRY/moved/$name"
}
check "another image under the tag of a release" move
refuses "a tag that would be moved" "a published tag is not moved" publish "$REGISTRY/moved" "$WORK/moved"

# signed KEY: verifies everything that was published, and the bills of materials.
signed() {
  local image digest count=0
  local verify=(--key "$WORK/$1.pub" --insecure-ignore-tlog --allow-http-registry --allow-insecure-registry)
  while read -r image; do
    "$COSIGN" verify "${verify[@]}" "$image" >"$WORK/verified"
    [[ $image != */charts/* ]] || continue
    digest=$(skopeo inspect --raw --tls-verify=false "docker://$image" | jq -r --arg arch "$(go env GOHOSTARCH)" '(.manifests // [])[] | select(.platform.architecture == $arch) | .digest')
    "$COSIGN" verify-attestation "${verify[@]}" --type cyclonedx "${image%@*}@${digest:-${image#*@}}" >"$WORK/verified"
    jq -s -r '.[0].payload // .[0].dsseEnvelope.payload' "$WORK/verified" | base64 -d |
      jq -e --arg name "$(basename "${image%@*}")" '.predicate.metadata.component.name == $name'
    count=$((count + 1))
  done <"$WORK/published"
  [ "$count" = 7 ]
}
check "cosign verifies images, chart and bills of materials" signed owner
refuses "the key of a stranger" "no matching attestations" signed stranger
unpacked() { RELEASE_KEY=$WORK/$1.pub "$ROOT/scripts/from-release.sh" "${2:-$RELEASE}" "$WORK/unpacked" manifests; }
check "the manifests of the release are unpacked, verified" says "checksums hold, signed with $WORK/owner.pub" unpacked owner
by_digest_alone() {
  grep -A 2 '^- name: layer-locality/' "$WORK/unpacked/deploy/images/kustomization.yaml" | sed -n 's/^- name: .*/named/p; s/^  digest: sha256:.*/by digest/p' | sort | uniq -c | tee "$WORK/named"
  [ "$(tr -s ' ' ' ' <"$WORK/named" | paste -sd ,)" = " 5 by digest, 5 named" ]
}
check "they name all images by digest" by_digest_alone
refuses "checksums that a stranger signed" "is not signed with the key of" unpacked stranger
altered() {
  rm -rf "$WORK/altered" && mkdir "$WORK/altered"
  cp "$RELEASE"/SHA256SUMS* "$RELEASE"/*-manifests.tar.gz "$WORK/altered/"
  echo >>"$(ls "$WORK/altered/"*-manifests.tar.gz)"
}
check "an archive that was altered" altered
refuses "it" "is not what its SHA256SUMS says" unpacked owner "$WORK/altered"

# before: publishes a chart of an earlier version, with other images.
before() {
  local component image
  mkdir "$WORK/before"
  tar -xzf "$RELEASE"/layer-locality-[0-9]*.tgz -C "$WORK/before"
  sed -i 's/^version: .*/version: 0.0.1/' "$WORK/before/layer-locality/Chart.yaml"
  # pin.sh wants a copy of deploy.
  mkdir "$WORK/before/scheduler" && ln -s layer-locality "$WORK/before/helm" && mkdir "$WORK/before/scheduler/static-pod"
  for component in kube-scheduler layer-resolver; do
    image=$(grep "/$component@" "$WORK/published")
    "$CRANE" mutate --insecure --platform "linux/$(go env GOHOSTARCH)" --label before=1 --tag "$TARGET/$component:before" "$image"
    echo "$PUBLISHED/$component:before@$("$CRANE" digest --insecure "$TARGET/$component:before")"
  done | tee "$WORK/before.txt" | grep @sha256: | "$ROOT/deploy/images/pin.sh" "$WORK/before"
  helm package "$WORK/before/layer-locality" --destination "$WORK/before"
  helm push --plain-http "$WORK/before/layer-locality-0.0.1.tgz" "oci://$TARGET/charts"
}
check "a version before" before
# ours: lists all objects of the cluster that have our name.
ours() {
  kubectl api-resources --verbs list --output name | grep -vx -e events -e events.events.k8s.io -e componentstatuses |
    while read -r kind; do kubectl get "$kind" --all-namespaces --output name --ignore-not-found; done | grep layer | sort || true
}
ours >"$WORK/nothing"
# runs FILE: waits until scheduler and resolver run the images that the file lists, and no others.
runs_images() {
  local component
  for component in kube-scheduler layer-resolver; do
    grep -oE "/$component(:[a-z]+)?@sha256:.*" "$1" | sed 's/.*@//'
  done | sort -u >"$WORK/want"
  for _ in $(seq 120); do
    kubectl -n kube-system get pods --selector app.kubernetes.io/part-of=layer-locality \
      --output jsonpath='{range .items[*].spec.containers[*]}{.image}{"\n"}{end}' | sed 's/.*@//' | sort -u >"$WORK/have"
    ! diff "$WORK/want" "$WORK/have" >"$WORK/difference" || return 0
    sleep 1
  done
  cat "$WORK/difference"
  return 1
}
# places POD: runs a pod that names our scheduler, until it is placed by it.
places() {
  kubectl run "$1" --image="$REGISTRY/pause:1" --overrides='{"spec":{"schedulerName":"layer-locality"}}'
  kubectl wait --for=condition=Ready --timeout=2m "pod/$1"
  kubectl delete pod "$1" --now
}
CHART=oci://$TARGET/charts/layer-locality
IN=(--namespace kube-system --plain-http --wait --timeout 5m)
check "helm install of that, by its reference alone" helm install layer-locality "$CHART" --version 0.0.1 "${IN[@]}"
check "its images run" runs_images "$WORK/before.txt"
check "it places a pod" places one
check "helm upgrade to the release" helm upgrade layer-locality "$CHART" "${IN[@]}"
check "the images of the release run" runs_images "$WORK/published"
check "it places a pod" places two
check "helm rollback" helm rollback layer-locality 1 --namespace kube-system --wait --timeout 5m
check "the images of before run" runs_images "$WORK/before.txt"
check "it places a pod" places three
check "helm uninstall" helm uninstall layer-locality --namespace kube-system --wait --timeout 5m
# As deploy/helm/README.md has it.
check "the leases that are left" kubectl -n kube-system delete lease layer-locality-scheduler layer-resolver
gone() {
  for _ in $(seq 60); do
    ours >"$WORK/left"
    ! diff "$WORK/nothing" "$WORK/left" >"$WORK/difference" || return 0
    sleep 1
  done
  cat "$WORK/difference"
  return 1
}
check "nothing else of it is left" gone
check "helm install of the release, by its reference alone" helm install layer-locality "$CHART" "${IN[@]}"
check "the images of the release run" runs_images "$WORK/published"
check "the cluster goes" clean_up
unset KUBECONFIG

check "make demo with the programs of the release" says "demo: ok" env -C "$ROOT" "RELEASE=$RELEASE" "RELEASE_KEY=$WORK/owner.pub" make demo
check "it says which" grep -F "; checksums hold, signed with $WORK/owner.pub" "$WORK/said"
refuses "another demo from a release" "a release has the programs of the demo without a name" env -C "$ROOT" "RELEASE=$RELEASE" make demo D=agent
if [ "${BASH_SOURCE[0]}" = "$0" ]; then finish; fi
