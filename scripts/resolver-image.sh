#!/usr/bin/env bash
# Builds layer-resolver and its container image without a container tool, root or Kubernetes'
# source, and prints where they are:
#
#   resolver-image.sh [OPTION...]
#
#   --out FOLDER          gets <arch>/layer-resolver, and <arch>/layer-resolver.tar for docker,
#                         podman, ctr and kind; default _out/resolver-image
#   --platform P[,P]      linux/amd64, linux/arm64; default: that of this machine
#   --push REGISTRY/PATH  push it too, with the credentials of docker or podman, several
#                         platforms as an index; prints its digest
#   --insecure            push by plain HTTP
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

program=layer-resolver out=_out/resolver-image platform='' push='' crane_flags=()
while [ $# -gt 0 ]; do
  case $1 in
  --out | --platform | --push)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --insecure) crane_flags+=(--insecure) ;;
  *) usage ;;
  esac
  shift
done
command -v jq >/dev/null || die "jq is not installed: install it"
certificates=$(ca_certificates)
version=$(our_version kubernetes)
name=${push:-localhost/layer-locality}
name=${name%/}/$program
tag=${version/+/_}
IFS=, read -r -a platforms <<<"${platform:-linux/$(go env GOHOSTARCH)}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# archive FOLDER FILE NAME...: an archive that depends on the content of files alone.
archive() {
  tar --create --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --directory "$1" --file "$2" "${@:3}"
}

for platform in "${platforms[@]}"; do
  arch=${platform#linux/}
  [ "linux/$arch" = "$platform" ] || die "--platform $platform: linux/amd64 or linux/arm64"
  folder=$out/$arch
  root=$work/$arch
  CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOFLAGS="-trimpath -buildvcs=false" \
    go build -ldflags "-s -w -X main.version=$version" -o "$folder/$program" "./cmd/$program"
  install -D -m 0755 -t "$root/usr/local/bin" "$folder/$program"
  install -D -m 0644 "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
  mkdir -p "$root/usr/share/sbom"
  scripts/sbom.sh "$folder/$program" "$root/usr/share/licenses/$program" >"$root/usr/share/sbom/$program.cdx.json"
  archive "$root" "$work/layer.tar" etc usr
  gzip --no-name --keep --force "$work/layer.tar"
  # What the Dockerfile in deploy/images gives it.
  jq -n --arg arch "$arch" --arg program "$program" --arg version "$version" --arg layer "$(sha256sum "$work/layer.tar" | cut -d' ' -f1)" '{
    created: "1970-01-01T00:00:00Z", os: "linux", architecture: $arch, rootfs: {type: "layers", diff_ids: ["sha256:" + $layer]},
    config: {
      User: "65532:65532", Entrypoint: ["/usr/local/bin/" + $program], Env: ["PATH=/usr/local/bin:/usr/bin:/bin"], StopSignal: "SIGTERM",
      Labels: {
        "org.opencontainers.image.title": $program, "org.opencontainers.image.version": $version,
        "org.opencontainers.image.description": "Asks registries what images consist of, for the LayerLocality plugin"
      }
    }
  }' >"$work/config.json"
  jq -n --arg name "$name:$tag" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar.gz"]}]' >"$work/manifest.json"
  archive "$work" "$folder/$program.tar" manifest.json config.json layer.tar.gz
  echo "$folder/$program"
  echo "$folder/$program.tar ($name:$tag, $platform)"
done
[ -n "$push" ] || exit 0

crane=$(go_tool github.com/google/go-containerregistry/cmd/crane "$(go list -m -f '{{.Version}}' github.com/google/go-containerregistry)")
if [ ${#platforms[@]} = 1 ]; then
  "$crane" push "${crane_flags[@]}" "$folder/$program.tar" "$name:$tag"
  exit
fi
manifests=()
for platform in "${platforms[@]}"; do
  file=$out/${platform#linux/}/$program.tar
  image=$name@$("$crane" digest --tarball "$file")
  "$crane" push "${crane_flags[@]}" "$file" "$image" >&2
  manifests+=(--manifest "$image")
done
"$crane" index append "${crane_flags[@]}" "${manifests[@]}" --tag "$name:$tag"
