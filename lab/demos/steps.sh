# Shared by nix-kind.sh and rpm-image.sh, sourced after lib.sh: commands that are printed and run as they stand.
# shellcheck shell=bash

# step COMMAND
step() {
  printf '\n$ %s\n' "$1"
  eval "$1"
}

# ready IN: waits for CRI-O where the command IN runs commands.
ready() { step "timeout 60 sh -c 'until $1 crictl info >/dev/null 2>&1; do sleep 1; done'" || die "CRI-O does not answer after 60 s"; }

# images WANT IN: prints the annotations of images there. They have to have layers, or with WANT none to have none.
images() {
  local shown found=none
  shown=$(step "$2 crictl images -o json | jq -c '.images[] | [.repoTags, .spec.annotations]'")
  echo "$shown"
  ! grep -q '"imageLayer\.sha256:' <<<"$shown" || found=layers
  [ "$found" = "$1" ] || die "CRI-O reports $found, want $1"
}
