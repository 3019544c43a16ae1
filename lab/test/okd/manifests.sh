# Tests the manifests for the cluster; sourced by run.sh after image.sh.
# shellcheck shell=bash disable=SC2154

manifests() { okd-machine-os/manifests.sh --out "$work/manifests" "$@"; }
digest=sha256:$(printf 'a%.0s' {1..64})

for wrong in \
  "no digest|--image must be .*a tag can move|--image registry.example.com/own/os:5.0" \
  "a short digest|--image must be|--image registry.example.com/own/os@sha256:abc" \
  "no image|manifests.sh --image|--pool worker" \
  "both ways at once|manifests.sh --image|--image r.example.com/os@$digest --on-cluster r.example.com/rpms@$digest" \
  "a pool that cannot be|cannot be the name of a pool|--image r.example.com/os@$digest --pool Worker" \
  "a gate that cannot be|--gate must be|--image r.example.com/os@$digest --gate maybe" \
  "no place to push to|--push-to must be|--on-cluster r.example.com/rpms@$digest" \
  "no secret to push with|--push-secret must|--on-cluster r.example.com/rpms@$digest --push-to r.example.com/own/os:1" \
  "two pools, one place|takes one --pool|--on-cluster r.example.com/rpms@$digest --push-to r.example.com/own/os:1 --push-secret s --pool a --pool b"; do
  IFS='|' read -r what message arguments <<<"$wrong"
  # shellcheck disable=SC2086 # words
  refuses "manifests: $what" "$message" manifests $arguments
done

check "manifests: workers, and a pool of its own" manifests --image "$os_image" --pool worker --pool canary --gate off
check "manifests: a cluster takes them" kubectl apply -f "$work/manifests"
check "manifests: and again" says unchanged kubectl apply -f "$work/manifests"
check "manifests: five objects" [ "$(find "$work/manifests" -name '*.yaml' | wc -l)" = 5 ]
check "manifests: the image that was pushed, by digest" grep -q "osImageURL: $os_image\$" "$work/manifests/30-worker-os.yaml"
# The Machine Config Operator merges by name, and a custom pool has what workers
# have.
names() { sed -n "s/^  name: \(.*-layer-locality-$1\)$/\1/p" "$work"/manifests/*.yaml | sort; }
check "manifests: what a pool of its own says comes last" [ "$(names os | tail -n 1) $(names gate | tail -n 1)" = "99-canary-layer-locality-os 99-canary-layer-locality-gate" ]
# refused WHAT MESSAGE FILE SED: whether the cluster refuses the object with this edit.
refused() {
  sed "$4" "$3" >"$work/wrong.yaml"
  ! cmp -s "$3" "$work/wrong.yaml" || die "the edit '$4' changes nothing in $3"
  refuses "manifests: the cluster refuses $1" "$2" kubectl apply --dry-run=server -f "$work/wrong.yaml"
}
refused "a misspelt field" 'unknown field .*osImageUrl' "$work/manifests/30-worker-os.yaml" 's/osImageURL/osImageUrl/'
refused "an osImageURL of another type" 'osImageURL: Invalid value' "$work/manifests/30-worker-os.yaml" 's/osImageURL: .*/osImageURL: [a]/'
check "manifests: and they can be deleted" kubectl delete -f "$work/manifests"

# ignition FILE: whether Ignition, which first writes it on a new node, takes the configuration of a MachineConfig.
ignition() { kubectl create --dry-run=client -f "$1" -o json | jq .spec.config >"$work/config.ign" && "$BUILD/bin/tools/ignition-validate" "$work/config.ign"; }
check "manifests: Ignition takes the drop-in" ignition "$work/manifests/20-worker-gate.yaml"
sed 's,path: /etc/,path: etc/,' "$work/manifests/20-worker-gate.yaml" >"$work/wrong.yaml"
refuses "manifests: Ignition refuses a file without an absolute path" 'not absolute' ignition "$work/wrong.yaml"
# What docs/install-fcos.md has new nodes boot with.
sed -n '/^variant: fcos/,/^```/p' docs/install-fcos.md | sed '$d' >"$work/node.bu"
butane() { "$BUILD/bin/tools/butane" --strict --output "$work/node.ign" "$1" && "$BUILD/bin/tools/ignition-validate" "$work/node.ign"; }
check "Fedora CoreOS: butane and Ignition take the configuration of new nodes" butane "$work/node.bu"
sed 's/enabled: true/enable: true/' "$work/node.bu" >"$work/wrong.bu"
refuses "Fedora CoreOS: butane refuses a misspelt field" 'enable' butane "$work/wrong.bu"

# The kubelet itself reads the drop-in, says so, and ends: it has no lock file.
gate_is() {
  manifests --image "$os_image" --gate "$1" >/dev/null
  mkdir -p "$work/kubelet.conf.d"
  sed -n 's/^ *source: .*;base64,//p' "$work/manifests/20-worker-gate.yaml" | base64 -d >"$work/kubelet.conf.d/20-image-layers.conf"
  printf '%s\n' 'apiVersion: kubelet.config.k8s.io/v1beta1' 'kind: KubeletConfiguration' 'failCgroupV1: false' >"$work/kubelet.yaml"
  "$BUILD/bin/patched/kubelet" --config="$work/kubelet.yaml" --config-dir="$work/kubelet.conf.d" --cert-dir="$work/kubelet" --root-dir="$work/kubelet" \
    --exit-on-lock-contention --v=5 >"$work/kubelet.log" 2>&1 || true
  grep 'featureGates=' "$work/kubelet.log"
  grep -q "featureGates={\"NodeStatusImageLayers\":$2}" "$work/kubelet.log"
}
check "manifests: the kubelet takes the drop-in that turns the gate on" gate_is on true
check "manifests: the kubelet takes the drop-in that turns it off" gate_is off false

rm -rf "$work/manifests"
check "manifests: layering on the cluster" \
  manifests --on-cluster "$rpms_image" --push-to registry.example.com/own/os:canary --push-secret push --pool canary
check "manifests: a cluster takes them" kubectl apply -f "$work/manifests"
refused "a MachineOSConfig without push secret" 'renderedImagePushSecret: Required value' "$work/manifests/30-canary-os.yaml" '/renderedImagePushSecret:/,/name:/d'
refused "one that pushes nowhere" 'renderedImagePushSpec' "$work/manifests/30-canary-os.yaml" 's,renderedImagePushSpec: .*,renderedImagePushSpec: "",'
# As the cluster builds it: the cluster calls its own configured image
# `configs`.
kubectl get machineosconfig canary -o jsonpath='{.spec.containerFile[0].content}' >"$work/Containerfile.cluster"
check "manifests: and they can be deleted" kubectl delete -f "$work/manifests"
on_cluster() {
  podman tag "localhost/base/$1" localhost/configs:latest
  podman build --file "$work/Containerfile.cluster" --tag localhost/own/cluster "$work/engine/bin"
}
check "on the cluster: its Containerfile builds" on_cluster okd:5.0
check "on the cluster: crio is ours" prints "^crio version ${CRIO_VERSION#v}" in_result localhost/own/cluster crio --version
refuses "on the cluster: a wrong base is refused there, too" 'Kubernetes 1\.35\.5' on_cluster minor
