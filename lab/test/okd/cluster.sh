# A kube-apiserver with OKD's CustomResourceDefinitions, those of a cluster whose nodes and control plane are its
# own; sourced by run.sh. There is no operator. `oc` is kubectl but for `oc adm release` (fake/oc).
# shellcheck shell=bash disable=SC2154

clusters=()
stop_clusters() { [ ${#clusters[@]} = 0 ] || kill "${clusters[@]}" 2>/dev/null || true; }
# start_cluster KUBECONFIG [-stock]
start_cluster() {
  "$work/apiserver" -root "$ROOT" "${@:2}" "$1" 2>"$1.log" &
  clusters+=("$!")
  for _ in $(seq 1800); do
    if [ -s "$1" ]; then return; fi
    kill -0 "${clusters[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  die "no control plane: $(tail -n 3 "$1.log")"
}

export FAKE=$work/fake
mkdir -p "$FAKE/releases"
PATH=$ROOT/lab/test/okd/fake:$BUILD/bin/stock:$PATH
(cd lab && CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" go build -o "$work/apiserver" ./test/okd/apiserver)
start_cluster "$work/kubeconfig"
export KUBECONFIG=$work/kubeconfig
crds=$(module_dir github.com/openshift/api "$OPENSHIFT_API_VERSION")/payload-manifests/crds
for name in 80_machine-config_01_machineconfigs 80_machine-config_01_machineconfigpools-SelfManagedHA \
  80_machine-config_01_machineosconfigs 20_kube-apiserver_01_kubeapiservers-OKD; do
  kubectl create -f "$crds/0000_$name.crd.yaml"
done
kubectl wait --for=condition=Established --timeout=60s crd --all
