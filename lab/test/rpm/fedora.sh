# Which of Fedora's packages compiling and linking crio and pinns takes, and how rpm finds them
# there. Sourced by run.sh. No Fedora is here: the compiler and the linker of this machine write
# down what they read, and the facts below name Fedora's package for each file.
# shellcheck shell=bash

# fedora_package DEBIAN-PACKAGE FILE: prints Fedora's package with that file. From the
# %files of Fedora's glibc, libseccomp, gcc, binutils and kernel-headers.
fedora_package() {
  case $1:$2 in
  libc6-dev:*_nonshared.a) echo glibc-devel ;;
  libc6-dev:*.a) echo glibc-static ;;
  libc6-dev:*) echo glibc-devel ;;
  libseccomp-dev:*.a) echo libseccomp-static ;;
  libseccomp-dev:*) echo libseccomp-devel ;;
  linux-libc-dev:*) echo kernel-headers ;;
  gcc-* | cpp-* | libgcc-*) echo gcc ;;
  binutils-*) echo binutils ;;
  pkg-config:* | pkgconf*) echo pkgconf-pkg-config ;;
  *) die "$2: no fact about Debian's package $1" ;;
  esac
}

# brings PACKAGE: prints what it requires, of what is asked for here.
brings() {
  case $1 in
  gcc) printf '%s\n' binutils glibc-devel kernel-headers ;; # the last by glibc-devel
  libseccomp-static) echo libseccomp-devel ;;
  esac
}

# traced FOLDER: compiles all C code of crio and pinns, links both, and leaves in
# FOLDER/*.d what was read.
traced() {
  local folder=$1 tree file
  tree=$("$ROOT/scripts/tree.sh" patched cri-o)
  (
    cd "$tree" || exit
    # As scripts/build.sh does.
    unset GOWORK CGO_LDFLAGS CGO_CPPFLAGS
    export CGO_ENABLED=1 GOFLAGS="-trimpath -buildvcs=false -mod=mod"
    mapfile -t packages < <(go list -deps -tags "$CRIO_TAGS" -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./cmd/crio)
    # Go does not compile C again whose flags it knows; -O0 is quicker.
    CGO_CFLAGS="-O0 -DTRACED_AT=$(date +%s%N)" SUNPRO_DEPENDENCIES=$folder/headers.d \
      go build -p 1 -tags "$CRIO_TAGS" "${packages[@]}"
    go build -tags "$CRIO_TAGS" -ldflags "${CRIO_LDFLAGS/-static/-static -Wl,--dependency-file=$folder/crio.d}" \
      -o "$folder/crio" ./cmd/crio
    SUNPRO_DEPENDENCIES=$folder/pinns-headers.d cc -std=c99 -static -Wl,--dependency-file="$folder/pinns.d" \
      -o "$folder/pinns" pinns/src/*.c
  )
  rm "$folder/crio" "$folder/pinns"
  for file in headers crio pinns-headers pinns; do test -s "$folder/$file.d"; done
}

# needed FOLDER: prints "PACKAGE FILE" for everything there that is the system's, and for
# the programs.
needed() {
  local program owner file package
  {
    # Names of source files are relative; object files are in temporary folders.
    cat "$1"/*.d | tr -s ' \\:' '\n' | grep '^/' | grep -v -e "^$WORK/" -e "^$(go env GOROOT)/" -e "^$(go env GOMODCACHE)/"
    echo "$(pkg-config --variable=pcfiledir libseccomp)/libseccomp.pc"
    for program in cc1 as ld; do cc -print-prog-name="$program"; done | xargs which
    which cc pkg-config
  } | xargs realpath | sort -u | xargs dpkg -S | while read -r owner file; do
    package=$(fedora_package "${owner%%:*}" "$file")
    echo "$package $file"
  done
}

# names PACKAGES NEEDED: checks that the list of packages, with what they bring, has
# every needed one.
names() {
  local package
  {
    cat "$1"
    while read -r package; do brings "$package"; done <"$1"
  } | sort -u >"$1.all"
  awk 'NR == FNR { has[$1]; next } !($1 in has) { print $1 " is missing, for " $2; bad = 1 } END { exit bad }' "$1.all" "$2"
}

# named_by_install_deps [EXTRA]: prints the packages that scripts/install-deps.sh installs with
# dnf, with those of an extra or without extras.
named_by_install_deps() {
  {
    sed -n "/^TABLE='\$/,/^'\$/p" "$ROOT/scripts/install-deps.sh" | awk 'NF == 3 { print $3 }'
    awk -v extra="${1:-}" 'NF == 4 && $1 == extra { print $4 }' "$ROOT/scripts/install-deps.sh"
  } | sort -u
}

# fedora_home FOLDER PACKAGE...: makes a home folder whose rpm takes this machine for a Fedora that has
# these packages, in any version, and no other.
fedora_home() {
  local home=$1
  mkdir -p "$home/db"
  printf '%%fedora 43\n%%_dbpath %s\n' "$home/db" >"$home/.rpmmacros"
  {
    printf '%s\n' 'Name: packages' 'Version: 1' 'Release: 1' 'Summary: Names' 'License: Apache-2.0' 'BuildArch: noarch'
    printf 'Provides: %s = 99\n' "${@:2}"
    printf '%%description\nNames.\n%%files\n'
  } >"$home/packages.spec"
  HOME=$home rpmbuild -bb --quiet --define "_topdir $home" "$home/packages.spec"
  HOME=$home rpm -i --nodeps --justdb "$home"/RPMS/noarch/*.rpm
}
