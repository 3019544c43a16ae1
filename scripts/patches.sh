#!/usr/bin/env bash
# Maintains the patch series.
#
#   patches.sh refresh [COMPONENT]         commits of _build/<component> -> patches/<component>; with LINE, those of
#                                          _build/LINE/<component> that the default line's do not make -> lines/LINE/patches
#   patches.sh lint    [COMPONENT]         form, order, clean application, size, what can be dropped
#   patches.sh compile COMPONENT           compiles the series patch by patch, and without what can be dropped
#   patches.sh rebase  COMPONENT VERSION   tries the series on another version, reports every hunk
#   patches.sh lines                       prints for each patch and line: as is, own copy, generated or dropped
#
# COMPONENT is cri-o or kubernetes; without one: both.
. "$(dirname "$0")/lib.sh"
# As scripts/build.sh compiles, so that what is compiled is shared.
export GOFLAGS="-trimpath -buildvcs=false"

# Every patch has these parts, in this order (docs/patches.md).
HEADERS=("What:" "Difference from upstream:" "Why not upstream yet:" "Related:" "Droppable from:")
AUTHOR="Layer Locality maintainers <maintainers@layerlocality.io>"
# The maximum number of hand-written changed lines in upstream's files.
limit() { case $1 in cri-o) echo 24 ;; kubernetes) echo 180 ;; esac }

# Folders to remove at the end, in any case.
SCRATCH=()
mkdir -p "$BUILD"
trap 'rm -rf ${SCRATCH[@]+"${SCRATCH[@]}"}' EXIT

refresh() {
  local component=$1 tree=$BUILD/$1 overlay changed packages
  if [ ! -d "$tree/.git" ]; then
    say "$component: no tree yet, nothing to turn back into patches"
    return
  fi
  [ -z "$(git_in "$tree" status --porcelain)" ] ||
    die "$tree has uncommitted edits: commit them there first, as a new patch or with 'git commit --fixup' and 'git rebase -i --autosquash overlay'"
  overlay=$(overlay_of "$component")
  mapfile -t packages < <(overlay_files "$component" | sed "s,^\.,${overlay#* },; s,/[^/]*\$,," | sort -u)
  changed=$(git_in "$tree" diff --name-only overlay HEAD -- "${packages[@]}")
  [ -z "$changed" ] ||
    die "these belong to the overlay, edit them in ${overlay% *}/ instead: $changed"
  if [ "$LINE" = "$DEFAULT_LINE" ]; then
    rm -f "$ROOT/patches/$component"/[0-9][0-9][0-9][0-9]-*.patch
    format_patches "$tree" "$ROOT/patches/$component" overlay..HEAD
  else
    refresh_line "$component" "$tree" "$ROOT/lines/$LINE/patches/$component"
  fi
  git_in "$tree" rev-parse HEAD >"$tree/.git/layerlocality-head"
  tree_hash "$component" >"$tree/.git/layerlocality-inputs"
  say "$component $LINE: $(series "$component" | wc -l) patches"
}

# format_patches TREE FOLDER ARGS...: writes patches without hashes, versions or counts that would change although the
# patch does not.
format_patches() {
  git_in "$1" format-patch -q --zero-commit --no-signature --no-numbered --no-stat \
    --full-index --no-renames --abbrev=40 -o "$2" "${@:3}"
}

# refresh_line COMPONENT TREE FOLDER: writes to the folder those that the default line's patches do not make. Commits after
# those of its patches are the line's alone, from 0101 on.
refresh_line() {
  local component=$1 tree=$2 own=$3 patches commits i number last=0100
  mapfile -t patches < <(series "$component")
  mapfile -t commits < <(git_in "$tree" rev-list --reverse overlay..HEAD)
  [ ${#commits[@]} -ge ${#patches[@]} ] ||
    die "$tree has ${#commits[@]} commits for ${#patches[@]} patches: an empty file ${own#"$ROOT"/}/NNNN-name.patch drops one of $LINE"
  for i in "${!commits[@]}"; do
    number=$(printf %04d $((10#$last + 1)))
    [ "$i" -ge ${#patches[@]} ] || number=$(basename "${patches[i]}" | cut -c1-4)
    [ "$((10#$number))" -lt "$((10#$last))" ] || last=$number
    rm -f "$own/$number"-*.patch
    makes "$tree" "${commits[i]}" "$ROOT/patches/$component/$number"-*.patch ||
      format_patches "$tree" "$own" --start-number "$((10#$number))" -1 "${commits[i]}"
  done
}

# makes TREE COMMIT PATCH: whether the patch makes what the commit is, of its parent.
makes() (
  [ -f "$3" ] || exit 1
  GIT_INDEX_FILE=$(git -C "$1" rev-parse --absolute-git-dir)/layerlocality-index
  export GIT_INDEX_FILE
  git -C "$1" read-tree "$2^" && git -C "$1" apply --cached "$3" 2>/dev/null &&
    [ "$(git -C "$1" write-tree)" = "$(git -C "$1" rev-parse "$2^{tree}")" ]
)

# table: prints for each patch and line what the line has of it.
table() {
  local line own number row component
  printf '%-11s %-6s' component patch
  for line in $(lines); do printf ' %-20s' "$line"; done
  echo
  for component in cri-o kubernetes; do
    for number in $(find "$ROOT/patches/$component" "$ROOT"/lines/*/patches/"$component" -name '*.patch' -printf '%f\n' 2>/dev/null | cut -c1-4 | sort -u); do
      row=''
      for line in $(lines); do
        own=$(find "$ROOT/lines/$line/patches/$component" -name "$number-*" 2>/dev/null || true)
        if [ -z "$own" ] && ! compgen -G "$ROOT/patches/$component/$number-*" >/dev/null; then
          row+=$(printf ' %-20s' -)
        elif [ -z "$own" ]; then
          row+=$(printf ' %-20s' 'as is')
        elif [ ! -s "$own" ]; then
          row+=$(printf ' %-20s' dropped)
        elif generated "$own"; then
          row+=$(printf ' %-20s' "generated $(wc -c <"$own")")
        else
          row+=$(printf ' %-20s' "own copy $(wc -c <"$own")")
        fi
      done
      printf '%-11s %-6s%s\n' "$component" "$number" "$row"
    done
  done
}

# lint_line: what a line has of its own is known to the default one, and different.
lint_line() {
  local setting file
  while read -r setting; do
    grep -q "^${setting%%=*}=" "$ROOT/versions.env" || die "lines/$LINE/versions.env: versions.env has no ${setting%%=*}"
    ! grep -qxF -e "$setting" "$ROOT/versions.env" || die "lines/$LINE/versions.env: $setting is also in versions.env: leave it out"
  done < <(grep '^[A-Z]' "$ROOT/lines/$LINE/versions.env")
  while read -r file; do
    [[ ${file##*/} == 01* ]] || compgen -G "$ROOT/${file%/*}/$(basename "$file" | cut -c1-4)-*.patch" >/dev/null ||
      die "lines/$LINE/$file: ${file%/*} has none of this number; those of a line alone begin with 0101"
  done < <(cd "$ROOT/lines/$LINE" && find . -name '*.patch' -printf '%P\n')
}

# generated PATCH: whether its subject says that it has only generated code.
generated() { grep -q '^Subject: .*[Gg]enerated' "$1"; }

# is_generated_file PATH: whether upstream's generators write it.
is_generated_file() {
  case $1 in
  */zz_generated.*.go | */generated.pb.go | */generated.protomessage.pb.go | */generated.proto | */types_swagger_doc_generated.go | \
    */applyconfigurations/* | test/compatibility_lifecycle/reference/* | */testdata/* | */openapi-spec/* | *_fixture*) true ;;
  *) false ;;
  esac
}

is_test_file() {
  case $1 in
  *_test.go | */testdata/* | */testing/* | test/*) true ;;
  *) false ;;
  esac
}

lint() {
  local component=$1 patches patch previous header lines n file added removed
  local touched=0 new=0 generated=0 tests=0 bad=0 scratch
  local -A ours=()
  mapfile -t patches < <(series "$component")
  [ ${#patches[@]} -gt 0 ] || die "patches/$component is empty"
  complain() {
    echo "${patch#"$ROOT"/}: $*" >&2
    bad=1
  }

  n=0
  for patch in "${patches[@]}"; do
    n=$((n + 1))
    [ "$(basename "$patch" | cut -c1-4)" = "$(printf %04d $n)" ] || [ "$LINE" != "$DEFAULT_LINE" ] || complain "number $n of the series, but its name does not start with $(printf %04d $n)"
    head -n 1 "$patch" | grep -q '^From 0\{40\} ' || complain "made without --zero-commit: run 'make patches P=refresh'"
    [ "$(sed -n 's/^From: //p' "$patch" | head -n 1)" = "$AUTHOR" ] || complain "its author is not $AUTHOR: git commit --amend --author=\"$AUTHOR\""
    previous=0
    for header in "${HEADERS[@]}"; do
      lines=$(sed '/^diff --git/,$d' "$patch" | grep -n "^$header" | head -n 1 | cut -d: -f1)
      if [ -z "$lines" ]; then
        complain "its message has no line '$header'"
      elif [ "$lines" -le "$previous" ]; then
        complain "'$header' is out of order"
      else
        previous=$lines
      fi
    done
    while read -r added removed file; do
      case $file in
      go.mod | go.sum | */go.mod | */go.sum | vendor/* | go.work*)
        complain "touches $file: packages build with upstream's vendoring unchanged"
        ;;
      esac
      if generated "$patch"; then
        is_generated_file "$file" || complain "holds generated code, but $file is hand-written"
      elif is_generated_file "$file" && ! is_test_file "$file"; then
        complain "is hand-written, but $file is generated: put it into the generated patch"
      fi
      if [ "$added" = - ]; then
        continue # binary fixture
      elif is_generated_file "$file"; then
        generated=$((generated + added + removed))
      elif is_test_file "$file"; then
        tests=$((tests + added + removed))
      elif [ -n "${ours["$file"]:-}" ] || grep -A1 -F "diff --git a/$file b/$file" "$patch" | grep -q '^new file'; then
        # Also if an earlier patch of the series made it.
        ours["$file"]=1
        new=$((new + added))
      else
        touched=$((touched + added + removed))
      fi
    done < <(git apply --numstat "$patch")
  done
  [ "$bad" = 0 ] || die "$component: the series is not in form"

  # Apply them in order, without fuzz, as `git am` on an upstream checkout would.
  scratch=$(mktemp -d "$BUILD/lint-$component.XXXXXX")
  SCRATCH+=("$scratch")
  scratch_tree "$component" "$(pinned_version "$component")" "$scratch" "${patches[@]}"
  for patch in "${patches[@]}"; do
    git -C "$scratch" apply --index "$patch" || die "$(basename "$patch") does not apply to $component $(pinned_version "$component")"
    if git -C "$scratch" diff --cached --check | grep -v '^[+]' | grep -v -e testdata -e '\.pb:' | grep .; then
      die "$(basename "$patch") leaves whitespace errors"
    fi
    git_in "$scratch" commit -q -m "$(basename "$patch")"
    [[ $patch == "$ROOT"/patches/* ]] || ! makes "$scratch" HEAD "$ROOT/patches/$component/$(basename "$patch" | cut -c1-4)"-*.patch ||
      die "${patch#"$ROOT"/}: the default line's makes the same: LINE=$LINE scripts/patches.sh refresh $component"
  done
  droppable "$component" "$scratch" "${patches[@]}"
  [ "$touched" -le "$(limit "$component")" ] ||
    die "$component: $touched hand-written lines changed in upstream files, at most $(limit "$component") allowed"
  echo "$component: ${#patches[@]} patches apply to $(pinned_version "$component"); changed lines in upstream files $touched of at most $(limit "$component"), in new files $new, in tests $tests, generated $generated"
}

# rows COMPONENT: prints the numbers of the patches of each row of the table in docs/patches.md, a row a line,
# with a space before and after each number.
rows() {
  local name numbers range
  while IFS='|' read -r _ name numbers _; do
    [ "${name// /}" = "$1" ] || continue
    while read -r range; do
      seq -f ' %04.0f ' "${range%-*}" "${range#*-}"
    done < <(grep -oE '\b[0-9]{4}(-[0-9]{4})?\b' <<<"$numbers" || true) | tr -d '\n'
    echo
  done <"$ROOT/docs/patches.md" | grep .
}

# without NUMBERS WHY FOLDER PATCH...: makes a scratch tree that of all patches but these. WHY is said of one that does
# not apply.
without() {
  local numbers=$1 why=$2 scratch=$3 patch
  shift 3
  git -C "$scratch" checkout -q -f --detach "$(git -C "$scratch" rev-list --max-parents=0 HEAD)"
  for patch in "$@"; do
    [[ $numbers != *" $(basename "$patch" | cut -c1-4) "* ]] || continue
    git -C "$scratch" apply --index "$patch" || die "$(basename "$patch") does not apply $why"
  done
}

DROPPABLE="which docs/patches.md says can be dropped"

# droppable COMPONENT FOLDER PATCH...: checks in a scratch tree that the others apply
# without the patches of each row, and that each patch is in a row.
droppable() {
  local component=$1 scratch=$2 row patch known=''
  shift 2
  while read -r row; do
    row=" $row " known+=$row
    without "$row" "without $row, $DROPPABLE" "$scratch" "$@"
  done < <(rows "$component")
  for patch in "$@"; do
    [[ $known == *" $(basename "$patch" | cut -c1-4) "* ]] ||
      die "$(basename "$patch") is in no row of docs/patches.md: say when it can be dropped"
  done
}

# compile COMPONENT: compiles the packages that the patches touch after each patch of the series, and without those of
# each row. The files of a scratch tree stand in for those of the patched one.
compile() {
  local component=$1 tree scratch patches patch row later packages
  tree=$("$ROOT/scripts/tree.sh" patched "$component") || exit 1
  mapfile -t patches < <(series "$component")
  scratch=$(mktemp -d "$BUILD/compile-$component.XXXXXX")
  SCRATCH+=("$scratch")
  scratch_tree "$component" "$(pinned_version "$component")" "$scratch" "${patches[@]}"
  mapfile -t packages < <(sed -n 's,^diff --git a/\(.*\)/[^/]*\.go b/.*,./\1,p' "${patches[@]}" | grep -v -e /testdata -e '^\./test/' | sort -u)
  later=" $(basename -a "${patches[@]}" | cut -c1-4 | tr '\n' ' ')"
  for patch in "${patches[@]}"; do
    later=${later#" $(basename "$patch" | cut -c1-4)"}
    without "$later" "to those before it" "$scratch" "${patches[@]}"
    compiled "$component" "$tree" "$scratch" "${packages[@]}" || die "$component does not compile with $(basename "$patch") and those before it"
  done
  while read -r row; do
    without " $row " "without $row, $DROPPABLE" "$scratch" "${patches[@]}"
    compiled "$component" "$tree" "$scratch" "${packages[@]}" || die "$component does not compile without $row, $DROPPABLE"
  done < <(rows "$component")
  echo "$component: compiles after each of ${#patches[@]} patches, and without those of each row"
}

# compiled COMPONENT TREE SCRATCH PACKAGE...: compiles packages of a tree with the files of a scratch tree.
compiled() {
  local component=$1 tree=$2 scratch=$3 files file
  shift 3
  files=$(git -C "$tree" diff --name-only --diff-filter=AM overlay HEAD) || return 1
  [ -n "$files" ] || die "$tree has no patches"
  # A file that is not there is "": deleted.
  while read -r file; do
    if [ -f "$scratch/$file" ]; then echo "$tree/$file $scratch/$file"; else echo "$tree/$file"; fi
  done <<<"$files" | jq -Rn '{Replace: [inputs / " " | {key: .[0], value: (.[1] // "")}] | from_entries}' >"$scratch/.git/overlay.json" || return 1
  (cd "$tree" && if [ "$component" = cri-o ]; then
    CGO_ENABLED=1 GOFLAGS="$GOFLAGS -mod=mod" go build -overlay "$scratch/.git/overlay.json" -tags "$CRIO_TAGS" "$@"
  else
    CGO_ENABLED=0 go build -overlay "$scratch/.git/overlay.json" "$@"
  fi)
}

# upstream_file COMPONENT VERSION PATH: prints where that file of the upstream tree
# is in Go's module cache. Only requested modules are fetched.
declare -A FETCHED=()
upstream_file() {
  local module version=$2 path=$3
  module=$(upstream_module "$1")
  if [[ $path == staging/src/k8s.io/* ]]; then
    path=${path#staging/src/k8s.io/}
    module=k8s.io/${path%%/*} version=v0${version#v1} path=${path#*/}
  fi
  if [ -z "${FETCHED["$module@$version"]:-}" ]; then
    FETCHED["$module@$version"]=$(module_dir "$module" "$version") || exit 1
  fi
  UPSTREAM_FILE=${FETCHED["$module@$version"]}/$path
}

# scratch_tree COMPONENT VERSION FOLDER PATCH...: makes a git repository with only
# the upstream files that the patches touch; patches apply to it as to the tree.
scratch_tree() {
  local component=$1 version=$2 scratch=$3 files file
  shift 3
  mapfile -t files < <(cat -- "$@" | sed -n 's,^diff --git a/\(.*\) b/.*,\1,p' | sort -u)
  for file in "${files[@]}"; do
    upstream_file "$component" "$version" "$file"
    [ ! -f "$UPSTREAM_FILE" ] || install -D -m 0644 "$UPSTREAM_FILE" "$scratch/$file"
  done
  [ -d "$scratch/.git" ] || git init -q -b main "$scratch"
  git -C "$scratch" add -A -f
  git_in "$scratch" commit -q --allow-empty -m "upstream $version"
}

# rebase COMPONENT VERSION FOLDER: applies every patch as `git am` would; if that
# fails, as a merge between the pinned and the other version, which shows why.
rebase() {
  local component=$1 version=$2 pinned scratch patch patches files file i log rejected=0
  pinned=$(pinned_version "$component")
  mapfile -t patches < <(series "$component")
  scratch=$3
  log=$scratch/.git/layerlocality.log
  scratch_tree "$component" "$pinned" "$scratch" "${patches[@]}"
  git -C "$scratch" tag pinned
  for i in "${!patches[@]}"; do
    git -C "$scratch" apply --index "${patches[i]}" ||
      die "$(basename "${patches[i]}") does not even apply to $pinned: 'make patches P=lint' first"
    git_in "$scratch" commit -q -m "$(basename "${patches[i]}")"
    git -C "$scratch" tag "patch-$i"
  done
  git -C "$scratch" checkout -q -b other pinned
  git -C "$scratch" rm -q -r . && git -C "$scratch" clean -q -f -d -x
  scratch_tree "$component" "$version" "$scratch" "${patches[@]}"

  for i in "${!patches[@]}"; do
    patch=${patches[i]}
    if git -C "$scratch" apply --index "$patch" 2>"$log"; then
      echo "ok      $(basename "$patch")"
    else
      rejected=$((rejected + 1))
      mapfile -t files < <(sed -n 's/^error: \(.*\): patch does not apply$/\1/p; s/^error: \(.*\): No such file.*/\1/p; s/^error: \(.*\): already exists.*/\1/p' "$log" | sort -u)
      if git_in "$scratch" cherry-pick --no-commit "patch-$i" >"$log" 2>&1; then
        echo "MERGES  $(basename "$patch"): the context of its hunks changed, their lines did not"
      else
        echo "FAILS   $(basename "$patch")"
      fi
      if generated "$patch"; then echo "        generated: 'make patches P=generate' writes it anew"; fi
      for file in "${files[@]}"; do
        echo "        $file"
        generated "$patch" || explain "$scratch" "$file" "$pinned" "$version"
      done
      git -C "$scratch" add -A
    fi
    git_in "$scratch" commit -q --allow-empty -m "$(basename "$patch")"
  done
  echo "$rejected of ${#patches[@]} patches do not apply to $component $version as they are"
  [ "$rejected" = 0 ]
}

# explain SCRATCH FILE PINNED VERSION: prints what changed upstream at the place of
# our lines.
explain() {
  if [ ! -e "$1/$2" ]; then
    echo "          | not in $4"
  elif grep -q '^<<<<<<< ' "$1/$2"; then
    sed -n '/^<<<<<<< /,/^>>>>>>> /p' "$1/$2" | sed "s/^<<<<<<< .*/<<<<<<< $4/; s/^>>>>>>> .*/>>>>>>> patch on $3/; s/^/          | /"
  else
    git -C "$1" diff --cached -U4 HEAD -- "$2" | sed '1,/^@@/{/^@@/!d}; s/^/          | /'
  fi
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
refresh | lint)
  [ $# -gt 0 ] || set -- cri-o kubernetes
  [ "$command" = refresh ] || [ "$LINE" = "$DEFAULT_LINE" ] || lint_line
  for component in "$@"; do
    upstream_module "$component" >/dev/null
    "$command" "$component"
  done
  ;;
lines) table ;;
compile)
  [ $# -eq 1 ] || die "usage: patches.sh compile COMPONENT"
  upstream_module "$1" >/dev/null
  compile "$1"
  ;;
rebase)
  [ $# -eq 2 ] || die "usage: patches.sh rebase COMPONENT VERSION, as in 'make patches P=rebase COMPONENT=kubernetes VERSION=v1.37.0'"
  upstream_module "$1" >/dev/null
  [[ $2 =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]] || die "VERSION must look like v1.36.5, not '$2'"
  mkdir -p "$BUILD/log"
  report=$BUILD/log/rebase-$1-$2.txt
  scratch=$(mktemp -d "$BUILD/rebase-$1.XXXXXX")
  SCRATCH+=("$scratch")
  rebase "$1" "$2" "$scratch" | tee "$report" || die "the report is in ${report#"$ROOT"/}; docs/patches.md tells how to go on"
  ;;
*) die "usage: patches.sh refresh|lint [COMPONENT] | lines | compile COMPONENT | rebase COMPONENT VERSION" ;;
esac
