# What scripts/install-deps.sh installs on Debian and Fedora, and Go: everything
# that building, the local cluster and its tests need, except a folder with the CNI
# plugins that the cluster looks into (docs/install-nix.md).
{ pkgs }:
let
  # Tests put it into images: static, and without its applets on PATH.
  busybox = pkgs.runCommand "busybox" { } ''
    mkdir -p $out/bin
    ln -s ${pkgs.pkgsStatic.busybox}/bin/busybox $out/bin/busybox
  '';
in
pkgs.mkShell {
  # pkg-config, and libseccomp and the C library to link statically.
  inputsFrom = [ (import ./packages.nix { inherit pkgs; }).crio ];
  packages = with pkgs; [
    buildah
    busybox
    cni-plugins
    conmon
    curl
    gawk
    gitMinimal
    gnumake
    go_1_26
    iproute2
    iptables
    jq
    nodejs
    openssl
    procps
    protobuf
    shellcheck
    skopeo
    util-linux
  ];
}
