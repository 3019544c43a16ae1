# A kind node as kind's own are, with containerd and nothing of ours: containerd, shim and ctr as
# upstream has them, kind's configuration of them, and a stock kubelet and control plane. kind's own
# image is not to be had offline. This one is made of our node image: Debian and kind's other files
# are the same. KIND_NODE_ARCHIVE names kind's own image instead, as `docker save kindest/node:TAG`
# writes it where Docker Hub can be reached. Sourced by run.sh.
# shellcheck shell=bash

# containerd_image NODE_IMAGE NAME: builds it. As in kind's Dockerfile, but that the images of a
# cluster are not in it: they come from the test's registry.
containerd_image() {
  local files=$KIND_FILES context=$WORK/node
  mkdir -p "$context"/{bin,sbin,etc/systemd/system,etc/default}
  cp -L _build/bin/tools/{containerd,containerd-shim-runc-v2,ctr} "$context/bin/"
  cp -L _build/bin/tools/runc "$context/sbin/"
  cp -L _build/bin/stock/kubelet "$context/"
  cp --no-preserve=mode "$files"/etc/systemd/system/{containerd,undo-mount-hacks}.service "$context/etc/systemd/system/"
  cp --no-preserve=mode "$files/etc/default/kubelet" "$context/etc/default/"
  cp --no-preserve=mode "$files/etc/crictl.yaml" "$context/etc/"
  cat >"$context/Dockerfile" <<END
FROM $1
RUN systemctl disable --quiet crio.service && rm -rf /etc/systemd/system/crio.service /etc/crio /usr/bin/crio /usr/bin/pinns /var/lib/containers
COPY bin /usr/local/bin
COPY sbin /usr/local/sbin
COPY kubelet /usr/bin/
COPY etc /etc
RUN systemctl enable --quiet containerd.service && ctr oci spec \
  | jq '.hooks.createContainer[.hooks.createContainer | length] |= . + {"path": "/kind/bin/mount-product-files.sh"} | del(.process.rlimits)' >/etc/containerd/cri-base.json
END
  docker build --quiet --tag "$2" "$context"
}

# push_cluster NODE_IMAGE: pushes the images of a cluster, which are in our node image, under their
# names without the registry; those of Kubernetes' control plane from stock binaries.
push_cluster() {
  local name sandbox
  sandbox=$(sed -n 's/^ *sandbox_image = ".*\/\(.*\)"/\1/p' "$KIND_FILES/etc/containerd/config.toml")
  docker run --rm --privileged --network host --volume /var --entrypoint bash "$1" -euc '
    for name in $(jq -r ".[].names[]?" /var/lib/containers/storage/*-images/images.json); do
      to=${name#*/}
      case $to in kube-apiserver:* | kube-controller-manager:* | kube-scheduler:* | *@*) continue ;; pause:*) to=$2 ;; esac
      skopeo copy --quiet --dest-tls-verify=false "containers-storage:$name" "docker://$1/$to"
    done' push "$REGISTRY" "$sandbox"
  for name in kube-apiserver kube-controller-manager kube-scheduler; do
    push "$name:$KUBERNETES_VERSION" "_build/bin/stock/$name" /usr/local/bin
  done
}

# containerd_config: writes kind's configuration for one such node. Its registry takes the place of
# all others, the way kind documents it.
containerd_config() {
  mkdir -p "$WORK/certs.d/_default"
  printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" >"$WORK/certs.d/_default/hosts.toml"
  cat <<END >"$WORK/cluster.yaml"
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  failCgroupV1: false # as in kind/cluster.yaml
containerdConfigPatches:
- |
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
nodes:
- role: control-plane
  extraMounts:
  - {hostPath: $WORK/certs.d, containerPath: /etc/containerd/certs.d, readOnly: true}
END
  if withholds; then
    sed -i '/config_path/a \  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\n    BinaryName = "/usr/local/sbin/oci-runtime"' "$WORK/cluster.yaml"
    echo "  - {hostPath: $ROOT/lab/test/engine/oci-runtime, containerPath: /usr/local/sbin/oci-runtime, readOnly: true}" >>"$WORK/cluster.yaml"
  fi
}

# agent_archive FILE NAME: writes the image of layer-agent.
agent_archive() {
  install -D _build/bin/patched/layer-agent "$WORK/image/usr/local/bin/layer-agent"
  program_image "$1" "$2" "$WORK/image" /usr/local/bin/layer-agent
  rm -r "$WORK/image"
}

# load_image NAME: the image in KIND_NODE_ARCHIVE, under that name.
load_image() {
  local loaded
  loaded=$(docker load --input "$KIND_NODE_ARCHIVE") && docker tag "${loaded#Loaded image*: }" "$1"
}

agent_objects() { _build/bin/stock/kubectl kustomize deploy/agent/containerd; }
install_agent() { agent_objects | kubectl apply -f -; }
uninstall_agent() { agent_objects | kubectl delete -f -; }
# agent_is_gone: whether nothing of it is left, and so no NodeLayers.
agent_is_gone() {
  local left
  left=$(agent_objects | kubectl get -f - --ignore-not-found -o name &&
    kubectl -n kube-system get pods -l app.kubernetes.io/name=layer-agent -o name) && [ -z "$left" ]
}

# spec FILTER: what the node's NodeLayers says.
spec() { kubectl get nodelayers "$CONTROL" -o json | jq -er ".spec | $1"; }
# held IMAGE: the layers of an image as the NodeLayers has them, in the order of its manifest.
held() {
  kubectl get nodelayers "$CONTROL" -o json | jq -er --arg image "$1" '.spec as $s | $s.images[]
    | split(" ") | select(.[1:] | index($image)) | .[0] | split(",")[] | $s.layers[tonumber]'
}
# same_layers NAME TAG: whether they are those that the registry's manifest has, with their sizes.
same_layers() {
  curl -sf -H 'Accept: application/vnd.oci.image.manifest.v1+json' "http://$REGISTRY/v2/$1/manifests/$2" |
    jq -er '.layers[] | "\(.digest) \(.size)"' >"$WORK/wanted" &&
    held "$REGISTRY/$1:$2" >"$WORK/held" && diff "$WORK/wanted" "$WORK/held"
}
lists() { spec '.images[]' | grep -F -e "$1"; }

on_containerd() {
  local image agent KIND_FILES
  KIND_FILES=$(module_dir sigs.k8s.io/kind "$KIND_VERSION")/images/base/files
  start_dockerd "$WORK/docker" "$CGROUP"
  use_cluster
  image=$(kind/build-node-image.sh)
  start_registry
  if [ -n "${KIND_NODE_ARCHIVE:-}" ]; then
    check "containerd: kind's own node image, from $KIND_NODE_ARCHIVE" load_image containerd-node
  else
    check "containerd: a node image with what kind's own has" containerd_image "$image" containerd-node
  fi
  check "containerd: the images of a cluster are in the registry" push_cluster "$image"
  containerd_config
  check "containerd: kind create cluster" "$KIND" create cluster --image containerd-node --config "$WORK/cluster.yaml" --kubeconfig "$WORK/kubeconfig"
  cp "$WORK/log" "$LOGS/containerd-up.log"
  check "containerd: the node is ready" kubectl wait --for=condition=Ready node --all --timeout=3m
  check "containerd: layers are dropped after unpacking, as kind has it" in_node "$CONTROL" grep -E '^ *discard_unpacked_layers = true' /etc/containerd/config.toml
  agent=$(agent_objects | sed -n 's/^ *image: \(.*layer-agent.*\)/\1/p' | sort -u)
  agent_archive "$WORK/agent.tar" "$agent"
  check "containerd: kind load: the image of layer-agent" "$KIND" load image-archive "$WORK/agent.tar"
  check "containerd: deploy/agent/containerd is applied" install_agent
  check "containerd: the agent is ready" kubectl -n kube-system rollout status daemonset/layer-agent --timeout=240s
  "$FAMILY" "$REGISTRY"
  check "containerd: a pod of image one = L1 L2 L3 runs" pod p1 "$REGISTRY/one:v1" "$CONTROL"
  check "containerd: NodeLayers have its layers as the registry's manifest has them" within 120 same_layers one v1
  check "containerd: a pod of image two = L1 L2 L4 runs" pod p2 "$REGISTRY/two:v1" "$CONTROL"
  check "containerd: NodeLayers have its layers, too" within 120 same_layers two v1
  check "containerd: layers count in chains" within 120 spec 'select(.reuse == "Chain")'
  [ -n "${KIND_NODE_ARCHIVE:-}" ] ||
    check "containerd: the runtime is the containerd of versions.env" spec "select(.runtime | startswith(\"containerd ${CONTAINERD_VERSION#v}\"))"
  check "containerd: what kind load brought is listed" lists "$agent"
  check "containerd: the agent is deleted" uninstall_agent
  check "containerd: nothing is left of it" within 120 agent_is_gone
  check "containerd: kind delete cluster" "$KIND" delete cluster --kubeconfig "$WORK/kubeconfig"
  check "containerd: no node is left" no_nodes
}
