#!/usr/bin/env bash
# Regenerates the generated code of the Kubernetes series and of this repository.
#
#   generate.sh          applies the hand-written patches, runs upstream's generators in
#                        the place of each patch of generated code, writes the series back
#   generate.sh in-tree  only runs the generators, in _build/kubernetes as it is
#   generate.sh check    runs them beside it, and fails if a patch of generated code differs
#   generate.sh own [--check]
#                        deep copies, defaults and conversions of LayerLocalityArgs; deep
#                        copies and the CustomResourceDefinitions of ImageManifest,
#                        NodeLayers and ImagePrefetch;
#                        --check: changes nothing and fails if they are not up to date
#
# The first three need protoc (Debian and Fedora: protobuf-compiler), which
# go-to-protobuf runs.
. "$(dirname "$0")/lib.sh"

TREE=$BUILD/kubernetes
# The series touches these API packages; everything else stays as upstream made it.
EXTERNAL=staging/src/k8s.io/api/core/v1
DEEPCOPY=("./$EXTERNAL" ./pkg/apis/core ./staging/src/k8s.io/kubelet/config/v1beta1 ./pkg/kubelet/apis/config)
CONVERSION=(./pkg/apis/core/v1 ./pkg/kubelet/apis/config/v1beta1)
APPLY=k8s.io/client-go/applyconfigurations

# The generators, built from the tree's own k8s.io/code-generator and friends.
build_generators() {
  say "generate: building the generators"
  GOBIN=$BIN go install \
    k8s.io/code-generator/cmd/{deepcopy-gen,conversion-gen,applyconfiguration-gen} \
    k8s.io/code-generator/cmd/{go-to-protobuf,go-to-protobuf/protoc-gen-gogo} \
    k8s.io/kube-openapi/cmd/openapi-gen \
    golang.org/x/tools/cmd/goimports \
    ./cmd/genswaggertypedocs
}

protobuf() {
  local imports packages
  say "generate: protobuf"
  # Only the .proto of apimachinery is needed, in the place the imports name.
  packages=$(printf -- '-k8s.io/apimachinery/pkg/%s,' util/intstr api/resource runtime/schema runtime apis/meta/v1)
  # A folder with only gogo.proto: otherwise go-to-protobuf would find the
  # .proto files of a whole module.
  imports=$BIN/import
  install -D -m 0644 "$(go list -m -f '{{.Dir}}' github.com/gogo/protobuf)/gogoproto/gogo.proto" \
    "$imports/github.com/gogo/protobuf/gogoproto/gogo.proto"
  go-to-protobuf --go-header-file "$HEADER" --output-dir "$PWD/staging/src" \
    --proto-import staging/src --proto-import "$imports" --proto-import third_party/protobuf \
    --apimachinery-packages "${packages%,}" --packages "${EXTERNAL#staging/src/}"
}

swagger_docs() {
  local file=$EXTERNAL/types_swagger_doc_generated.go
  say "generate: swagger docs"
  # Everything above the functions is boilerplate from upstream's script.
  sed -i '/AUTO-GENERATED FUNCTIONS START HERE/q' "$file"
  genswaggertypedocs -s "$EXTERNAL/types.go" -f - >>"$file"
  echo "// AUTO-GENERATED FUNCTIONS END HERE" >>"$file"
  gofmt -s -w "$file"
}

openapi() {
  local packages
  say "generate: OpenAPI"
  mapfile -t packages < <(git grep -l '^// *+k8s:openapi' -- '*.go' ':!*/testdata/*' \
    ':!staging/src/k8s.io/code-generator' ':!staging/src/k8s.io/sample-*' | xargs -n1 dirname | sort -u | sed 's,^,./,')
  openapi-gen --go-header-file "$HEADER" --output-file zz_generated.openapi.go \
    --output-dir pkg/generated/openapi --output-pkg k8s.io/kubernetes/pkg/generated/openapi \
    --report-filename "$BIN/violations" --output-model-name-file zz_generated.model_name.go "${packages[@]}"
  diff api/api-rules/violation_exceptions.list "$BIN/violations" >&2 ||
    die "the types break an API rule that upstream has no exception for"
}

apply_configurations() {
  local packages
  say "generate: apply configurations"
  go run ./pkg/generated/openapi/cmd/models-schema >"$BIN/schema.json"
  mapfile -t packages < <(cd staging/src && git ls-files 'k8s.io/api/*/types.go' | xargs -n1 dirname | sort -u)
  applyconfiguration-gen --openapi-schema "$BIN/schema.json" --go-header-file "$HEADER" \
    --output-dir "staging/src/$APPLY" --output-pkg "$APPLY" \
    "${packages[@]}" k8s.io/apimachinery/pkg/apis/meta/v1
}

# Tests that write the files that they compare with fail the first time.
fixtures() {
  say "generate: fixtures and feature lists"
  UPDATE_COMPATIBILITY_FIXTURE_DATA=true go test k8s.io/api -run '//HEAD' >/dev/null || true
  go test k8s.io/api -run '//HEAD' >&2
  UPDATE_COMPONENTCONFIG_FIXTURE_DATA=true go test ./pkg/kubelet/apis/config/scheme >/dev/null || true
  go test ./pkg/kubelet/apis/config/scheme >&2
  go run test/compatibility_lifecycle/main.go feature-gates update >&2
  # Since 1.36.
  [ ! -d cmd/genfeaturegates ] || go run cmd/genfeaturegates/genfeaturegates.go -output=test/compatibility_lifecycle/reference/feature_list.md
}

# The OpenAPI specifications as an API server with all features publishes them.
specifications() {
  local dir=$BIN/apiserver port=$((20000 + RANDOM % 10000)) pids=() tries=60
  say "generate: OpenAPI specifications, from a running API server"
  "$ROOT/scripts/build.sh" tools etcd
  go build -o "$BIN/kube-apiserver" ./cmd/kube-apiserver
  mkdir -p "$dir"
  echo token,admin,admin,system:masters >"$dir/tokens.csv"
  openssl genrsa -out "$dir/service-account.key" 2048 2>/dev/null
  # In a subshell, so that its exit ends the servers.
  (
    # Their data is temporary, and an API server takes a minute to end by
    # itself.
    trap '[ ${#pids[@]} -eq 0 ] || { kill -9 "${pids[@]}"; wait "${pids[@]}" || true; } 2>/dev/null' EXIT
    "$BUILD/bin/tools/etcd" --data-dir "$dir/etcd" --listen-peer-urls "http://127.0.0.1:$((port + 1))" \
      --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
      --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" \
      --initial-cluster "default=http://127.0.0.1:$((port + 1))" >"$dir/etcd.log" 2>&1 &
    pids+=($!)
    KUBE_APISERVER_STRICT_REMOVED_API_HANDLING_IN_ALPHA=true \
      kube-apiserver --etcd-servers "http://127.0.0.1:$port" --bind-address 127.0.0.1 --secure-port $((port + 2)) \
      --advertise-address 10.10.10.10 --cert-dir "$dir/certs" --token-auth-file "$dir/tokens.csv" \
      --feature-gates AllAlpha=true,AllBeta=true,OpenAPIEnums=false --runtime-config api/all=true \
      --authorization-mode RBAC --service-cluster-ip-range 10.0.0.0/24 \
      --service-account-key-file "$dir/service-account.key" --service-account-signing-key-file "$dir/service-account.key" \
      --service-account-issuer https://kubernetes.default.svc --enable-logs-handler >"$dir/kube-apiserver.log" 2>&1 &
    pids+=($!)
    until curl -fsk -o "$dir/ready" -H 'Authorization: Bearer token' "https://127.0.0.1:$((port + 2))/readyz"; do
      if [ $((tries -= 1)) -eq 0 ] || ! kill -0 "${pids[0]}" || ! kill -0 "${pids[1]}"; then
        tail -n 5 "$dir"/*.log >&2
        die "the API server whose specifications are needed does not start"
      fi
      sleep 2
    done
    # Only these two contain images of nodes. Written as by upstream's
    # hack/update-openapi-spec.sh.
    fetch_specification openapi/v2 swagger.json
    fetch_specification openapi/v3/api/v1 v3/api__v1_openapi.json
  )
}

fetch_specification() {
  curl -fsSk -H 'Authorization: Bearer token' "https://127.0.0.1:$((port + 2))/$1" |
    jq -S '.info.version="unversioned"' >"$dir/specification.json"
  mv "$dir/specification.json" "api/openapi-spec/$2"
}

generate() {
  local HEADER=hack/boilerplate/boilerplate.generatego.txt
  BIN=$(mktemp -d "$BUILD/generate.XXXXXX")
  trap 'rm -rf "$BIN"' EXIT
  cd "$TREE"
  unset GOWORK
  # With the flags of scripts/build.sh, whose compiled packages are used again.
  export GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0
  export PATH=$BIN:$PATH
  command -v protoc >/dev/null || die "protoc is not installed: apt-get install protobuf-compiler, or dnf install protobuf-compiler"
  build_generators
  say "generate: deep copies and conversions"
  deepcopy-gen --go-header-file "$HEADER" --output-file zz_generated.deepcopy.go "${DEEPCOPY[@]}"
  protobuf
  swagger_docs
  conversion-gen --go-header-file "$HEADER" --output-file zz_generated.conversion.go \
    --extra-peer-dirs k8s.io/kubernetes/pkg/apis/core --extra-peer-dirs k8s.io/kubernetes/pkg/apis/core/v1 \
    --extra-peer-dirs k8s.io/api/core/v1 "${CONVERSION[@]}"
  openapi
  apply_configurations
  fixtures
  specifications
}

# commit_as PATCH: commits everything with the message, author and date of the patch.
commit_as() {
  local info=$BIN/info
  git mailinfo -b "$BIN/message" /dev/null <"$1" >"$info"
  {
    sed -n 's/^Subject: //p' "$info"
    echo
    sed '/^---$/,$d' "$BIN/message"
  } >"$BIN/commit"
  git_in "$TREE" add -A -f
  git_in "$TREE" commit -q --author "$(sed -n 's/^Author: //p' "$info") <$(sed -n 's/^Email: //p' "$info")>" \
    --date "$(sed -n 's/^Date: //p' "$info")" -F "$BIN/commit"
}

regenerate() {
  local patch patches scratch
  mapfile -t patches < <(series kubernetes)
  # This script is also needed when a series' generated code no longer applies.
  "$ROOT/scripts/tree.sh" patched kubernetes >/dev/null || say "generate: going on from the hand-written patches"
  [ -z "$(git_in "$TREE" status --porcelain)" ] || die "$TREE has uncommitted edits: commit them there first"
  scratch=$(mktemp -d "$BUILD/series.XXXXXX")
  cp -- "${patches[@]}" "$scratch/"
  git_in "$TREE" checkout -q -B main overlay
  for patch in "$scratch"/*.patch; do
    if is_generated "$patch"; then
      (
        generate
        commit_as "$patch"
      )
    else
      git_in "$TREE" am -q "$patch" </dev/null || {
        git_in "$TREE" am --abort
        die "$(basename "$patch") does not apply"
      }
    fi
  done
  rm -rf "$scratch"
  "$ROOT/scripts/patches.sh" refresh kubernetes
}

is_generated() { grep -q '^Subject: .*[Gg]enerated' "$1"; }

# check: in a second work tree of _build/kubernetes, which stays as it is.
check() {
  local patched patch commit found=''
  patched=$("$ROOT/scripts/tree.sh" patched kubernetes)
  TREE=$BUILD/generated
  # shellcheck disable=SC2064 # the tree of now
  trap "git_in '$patched' worktree remove --force '$TREE'" EXIT
  git_in "$patched" worktree add -q --force --detach "$TREE" overlay
  while read -r patch commit; do
    is_generated "$patch" || continue
    found=1
    git_in "$TREE" checkout -q --detach "$commit^"
    (generate)
    git_in "$TREE" add -A -f
    git_in "$TREE" diff --cached --exit-code --stat "$commit" >&2 ||
      die "the generators make something else than $(basename "$patch"): run 'make patches P=generate'"
  done < <(paste -d ' ' <(series kubernetes) <(git_in "$patched" rev-list --reverse overlay..main))
  [ -n "$found" ] || die "no patch of generated code is in patches/kubernetes"
}

# The code that is generated from the types of this repository.
OWN=(api scheduler/apis deploy/resolver/crd deploy/agent/crd deploy/prefetcher/crd)

# own [--check]: runs in a copy of the packages, because the generators write
# beside what they read.
own() {
  local code=${KUBERNETES_VERSION/#v1./v0.} generator file
  local packages=(./scheduler/apis/config/v1)
  mkdir -p "$BUILD"
  COPY=$(mktemp -d "$BUILD/generate.XXXXXX")
  trap 'rm -rf "$COPY"' EXIT
  cd "$ROOT"
  cp -r --parents go.mod go.sum "${OWN[@]}" "$COPY"
  for generator in defaulter conversion deepcopy; do
    # The internal type has no defaults or conversions of its own.
    [ "$generator" != deepcopy ] || packages+=(./scheduler/apis/config)
    file=zz_generated.${generator/defaulter/defaults}.go
    generator=$(go_tool "k8s.io/code-generator/cmd/$generator-gen" "$code")
    (cd "$COPY" && "$generator" --go-header-file /dev/null --output-file "$file" "${packages[@]}")
  done
  generator=$(go_tool sigs.k8s.io/controller-tools/cmd/controller-gen "$CONTROLLER_TOOLS_VERSION")
  (cd "$COPY" && "$generator" object crd paths=./api/... output:crd:dir=deploy/resolver/crd &&
    mv deploy/resolver/crd/layerlocality.io_nodelayers.yaml deploy/agent/crd/ &&
    mv deploy/resolver/crd/layerlocality.io_imageprefetches.yaml deploy/prefetcher/crd/)
  if [ "${1:-}" = --check ]; then
    for file in "${OWN[@]}"; do
      diff -ru "$file" "$COPY/$file" >&2 ||
        die "the generated code of $file is not up to date: run scripts/generate.sh own"
    done
  else
    (cd "$COPY" && find "${OWN[@]}" \( -name 'zz_generated.*' -o -name 'layerlocality.io_*' \) \
      -exec cp --parents {} "$ROOT" \;)
  fi
}

case "${1:-} ${2:-}" in
" ") with_lock generate regenerate ;;
"in-tree ") generate ;;
"check ") with_lock generate check ;;
"own " | "own --check") own "${2:-}" ;;
*) die "usage: generate.sh [in-tree | check | own [--check]]" ;;
esac
