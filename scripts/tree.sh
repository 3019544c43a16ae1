#!/usr/bin/env bash
# Assembles a source tree under _build and prints where it is.
#
#   tree.sh upstream COMPONENT [VERSION]   unmodified, _build/upstream/<component>-<version>
#   tree.sh vendored COMPONENT             _build/vendored/<component>-<version>: unmodified, with vendor/,
#                                          as upstream's tag has it; builds offline
#   tree.sh patched  COMPONENT             _build/<component>: upstream, overlay, patches
#   tree.sh workspace                      _build/workspace/layer-locality: this repository beside the patched Kubernetes
#
# With LINE in the environment, they are below _build/LINE. COMPONENT is cri-o or kubernetes. The patched tree is a git repository: tag
# `upstream`, one commit with the overlay (tag `overlay`), one commit per patch.
# It is made again only if the pin, the overlay or a patch changed.
#
# The workspace has a copy of this repository as a module without requirements. A Go workspace joins it
# with the patched Kubernetes tree, and gives it exactly the dependency versions of that tree; so what both
# are built on is compiled once. Every call updates it.
. "$(dirname "$0")/lib.sh"

usage() { die "usage: tree.sh upstream COMPONENT [VERSION] | tree.sh vendored COMPONENT | tree.sh patched COMPONENT | tree.sh workspace"; }

# Copies a module out of Go's read-only cache.
copy_module() {
  [ -n "$1" ] || die "no module to copy to $2"
  mkdir -p "$2"
  cp -r --no-preserve=mode,ownership "$1/." "$2/"
  # File modes do not survive module zips; upstream's scripts are executable.
  find "$2" -name '*.sh' -exec chmod +x {} +
}

upstream_tree() {
  local component=$1 version=$2 tree=$BUILD/upstream/$1-$2 tmp name from
  if [ ! -e "$tree/.complete" ]; then
    say "$component $version: fetching source through the Go module proxy"
    # A command substitution does not inherit set -e, and this function runs in one.
    from=$(module_dir "$(upstream_module "$component")" "$version") || exit 1
    tmp=$tree.tmp
    rm -rf "$tmp" "$tree"
    copy_module "$from" "$tmp"
    if [ "$component" = kubernetes ]; then
      # The module zip has no staging/: each staging repository is a module of
      # its own, with the same minor and patch as v0.x.y. What go.mod does not require
      # (two samples) is left out: the proxy lacks it for some versions.
      local names dirs
      mapfile -t names < <(sed -n "s,^\t\(k8s.io/[a-z0-9-]*\) v0.0.0$,\1@v0${version#v1},p" "$tmp/go.mod")
      [ ${#names[@]} -gt 0 ] || die "no staging modules in go.mod of kubernetes $version"
      say "$component $version: fetching ${#names[@]} staging modules"
      dirs=$(module_dirs "${names[@]}") || exit 1
      while read -r name from; do
        copy_module "$from" "$tmp/staging/src/$name"
      done <<<"$dirs"
      mapfile -t names < <(sed -n 's,^\t\(./staging/.*\),\1,p' "$tmp/go.work")
      for from in "${names[@]}"; do
        [ -d "$tmp/$from" ] || go work edit -dropuse="$from" "$tmp/go.work" || exit 1
      done
    fi
    touch "$tmp/.complete"
    mv "$tmp" "$tree"
  fi
  echo "$tree"
}

# Packages build from this tree: our patches touch no go.mod, so upstream's
# vendoring also works for the patched source.
vendored_tree() {
  local component=$1 tree upstream what=mod
  tree=$BUILD/vendored/$component-$(pinned_version "$component")
  if [ ! -e "$tree.complete" ]; then
    upstream=$(upstream_tree "$component" "$(pinned_version "$component")")
    say "$component: collecting the modules it needs in vendor/"
    rm -rf "$tree"
    mkdir -p "$tree" "$BUILD/log"
    cp -r "$upstream/." "$tree/"
    rm "$tree/.complete"
    [ ! -f "$tree/go.work" ] || what=work
    (cd "$tree" && GOFLAGS=-mod=mod go "$what" vendor) >"$BUILD/log/vendor-$component.log" 2>&1 ||
      die "$component: cannot collect its modules; see $BUILD/log/vendor-$component.log"
    touch "$tree.complete"
  fi
  echo "$tree"
}

patched_tree() {
  local component=$1 version tree=$BUILD/$1 hash overlay upstream file
  version=$(pinned_version "$component")
  hash=$(tree_hash "$component")
  if [ "$(cat "$tree/.git/layerlocality-inputs" 2>/dev/null)" = "$hash" ]; then
    echo "$tree"
    return
  fi
  # Unfinished edits are worth more than a fresh tree.
  if [ -e "$tree/.git/layerlocality-inputs" ] && [ -n "$(git_in "$tree" status --porcelain)" ]; then
    die "$tree has uncommitted edits, and the patches or the overlay changed since it was made.
Commit them there and run 'make patches P=refresh', or drop them: git -C $tree reset --hard && git -C $tree clean -fd"
  fi
  if [ -e "$tree/.git/layerlocality-head" ] &&
    [ "$(git_in "$tree" rev-parse HEAD)" != "$(cat "$tree/.git/layerlocality-head")" ]; then
    die "$tree has commits that are not in patches/$component yet: run 'make patches P=refresh' first, or drop them: rm -rf $tree"
  fi

  if [ "$(git_in "$tree" log -1 --format=%s upstream -- 2>/dev/null)" = "$component $version" ]; then
    git_in "$tree" checkout -q -f -B main upstream
    git_in "$tree" clean -q -f -d -x
  else
    upstream=$(upstream_tree "$component" "$version")
    say "$component $version: making $tree"
    # The objects of an older version stay: `git am --3way` merges with them.
    mkdir -p "$tree"
    find "$tree" -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +
    cp -r "$upstream/." "$tree/"
    rm "$tree/.complete"
    if [ -d "$tree/.git" ]; then
      rm -f "$tree/.git/index"
      git_in "$tree" update-ref -d refs/heads/main
      git_in "$tree" symbolic-ref HEAD refs/heads/main
    else
      git init -q -b main "$tree"
    fi
    # Upstream's .gitattributes must not rewrite line ends of test data.
    echo '* -text' >"$tree/.git/info/attributes"
    git_in "$tree" add -A -f
    git_in "$tree" commit -q -m "$component $version"
    git_in "$tree" tag -f upstream >/dev/null
  fi
  rm -f "$tree/.git/layerlocality-inputs"

  overlay=$(overlay_of "$component")
  copy_overlay "$component" "$tree"
  git_in "$tree" add -A -f
  git_in "$tree" commit -q --allow-empty -m "overlay: ${overlay% *}"
  git_in "$tree" tag -f overlay >/dev/null

  series "$component" | while read -r file; do
    git_in "$tree" am -q "$file" </dev/null || {
      git_in "$tree" am --abort
      # `git am --3way` merges with what the patch was made for.
      [ "$LINE" = "$DEFAULT_LINE" ] || git_in "$tree" fetch -q "$ROOT/_build/$component" +main:refs/heads/default 2>/dev/null || true
      die "$(basename "$file") does not apply to $component $version: 'make patches P=rebase COMPONENT=$component VERSION=$version' shows the hunks"
    }
  done
  git_in "$tree" rev-parse HEAD >"$tree/.git/layerlocality-head"
  echo "$hash" >"$tree/.git/layerlocality-inputs"
  echo "$tree"
}

# update FILE: writes standard input to the file, unless it already has that
# content.
update() {
  local new=$1.new
  mkdir -p "$(dirname "$1")"
  cat >"$new"
  if cmp -s "$new" "$1"; then rm "$new"; else mv "$new" "$1"; fi
}

# required_version MODULE: the version that this repository requires or, if it does not, crictl.
required_version() {
  local version
  version=$(sed -n "s,^\(\t\|require \)$1 \(v[^ ]*\).*,\2,p" "$ROOT/lab/go.mod" "$2" | head -n 1)
  [ -n "$version" ] || die "WORKSPACE_MODULES has $1, which neither lab/go.mod nor crictl requires"
  echo "$version"
}

# bare_name MODULE: the name of its folder.
bare_name() { echo "${1//\//+}"; }

# bare_modules FOLDER: has links to the modules that Kubernetes does not require, each with a go.mod without
# requirements, in the folder.
bare_modules() {
  local folder=$1 crictl name want=() want_all dirs dir to
  crictl=$(module_dir sigs.k8s.io/cri-tools "$CRI_TOOLS_VERSION")
  want=("sigs.k8s.io/cri-tools@$CRI_TOOLS_VERSION")
  for name in "${WORKSPACE_MODULES[@]}"; do want+=("$name@$(required_version "$name" "$crictl/go.mod")"); done
  # What is there already is what is wanted, or all is made again: also if Go's module cache is elsewhere now, or empty.
  want_all="$(go env GOMODCACHE) ${want[*]}"
  if [ "$(cat "$folder/.modules" 2>/dev/null)" = "$want_all" ] && [ -d "$crictl" ] && [ -e "$folder/github.com+docker+cli/cli" ]; then return 0; fi
  rm -rf "$folder"
  dirs=$(module_dirs "${want[@]}")
  while read -r name dir; do
    # Not one inside another: what is in a folder may be a link to Go's module cache.
    to=$folder/$(bare_name "$name")
    mkdir -p "$to"
    find "$dir" -mindepth 1 -maxdepth 1 ! -name go.mod ! -name go.sum -exec ln -s -t "$to" {} +
    { sed -n "s/^go \\([0-9]*[.][0-9]*\\).*/go \\1/p" "$dir/go.mod" 2>/dev/null | grep . || echo "go 1.20"; } | sed "1i module $name" >"$to/go.mod"
  done <<<"$dirs"
  echo "$want_all" >"$folder/.modules"
}

workspace() {
  local workspace=$BUILD/workspace kubernetes=$1 tree sums file name
  tree=$workspace/layer-locality
  mkdir -p "$tree"
  bare_modules "$workspace/modules"
  update "$tree/go.mod" < <(scheduler_module)
  update "$workspace/go.work" < <(
    sed "s/^go .*/go $(go_of "$kubernetes/go.work")/; "'s,^\t\./staging/,\t../kubernetes/staging/,; s,^\t\.$,\t../kubernetes\n\t./layer-locality,; /^)/d' "$kubernetes/go.work"
    for name in sigs.k8s.io/cri-tools "${WORKSPACE_MODULES[@]}"; do printf '\t./modules/%s\n' "$(bare_name "$name")"; done
    echo ')'
  )
  update "$workspace/go.work.sum" <"$kubernetes/go.work.sum"
  # One process compares all of them: one or more for each file takes ten seconds on a slow machine.
  sums=$(cd "$ROOT" && workspace_files | xargs -d '\n' sha256sum)
  { (cd "$tree" && sha256sum --check --quiet 2>/dev/null <<<"$sums") || true; } | sed -n 's/: FAILED.*//p' |
    (cd "$ROOT" && xargs -r -d '\n' cp --parents --remove-destination -t "$tree")
  workspace_files -type l -printf '%P\t%l\n' | while IFS=$'\t' read -r name file; do
    mkdir -p "$(dirname "$tree/$name")"
    ln -sfn "$file" "$tree/$name"
  done
  # What is deleted here is also deleted there.
  comm -23 <(cd "$tree" && find . -type f ! -path ./go.mod -printf '%P\n' | sort) <(workspace_files) |
    (cd "$tree" && xargs -r -d '\n' rm)
  find "$tree" -mindepth 1 -type d -empty -delete
  # Tests start the binaries, and leave logs.
  ln -sfn ../.. "$tree/_build"
  mkdir -p "$OUTPUT/test"
  ln -sfn "$OUTPUT" "$tree/_out"
  echo "$tree"
}

case "${1:-} $#" in
"upstream 2" | "upstream 3")
  upstream_module "$2" >/dev/null
  with_lock "upstream-$2" upstream_tree "$2" "${3:-$(pinned_version "$2")}"
  ;;
"vendored 2")
  upstream_module "$2" >/dev/null
  with_lock "vendored-$2" vendored_tree "$2"
  ;;
"patched 2")
  upstream_module "$2" >/dev/null
  with_lock "tree-$2" patched_tree "$2"
  ;;
"workspace 1")
  kubernetes=$("$0" patched kubernetes)
  with_lock workspace workspace "$kubernetes"
  ;;
*) usage ;;
esac
