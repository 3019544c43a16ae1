# Packages with another program in place of what they build, to see what
# nix/verify.sh refuses.
{ nixpkgs, nix }:
let
  packages = import nix { inherit nixpkgs; };
  pins = import (nix + "/pins.nix");

  # printing PACKAGE FLAGS TEXT: the package, with a program that prints TEXT.
  printing =
    package: flags: text:
    package.overrideAttrs (old: {
      src = ./shim; # any folder
      postPatch = "";
      modRoot = ".";
      buildPhase = ''
        mkdir -p "$GOPATH/bin"
        printf '#include <stdio.h>\nint main(void) { puts("%s"); }' '${text}' |
          cc -xc ${flags} -o "$GOPATH/bin/${old.pname}" -
      '';
      postBuild = "";
    });
  crio = version: seccomp: "Version: ${version}\\nSeccompEnabled: ${seccomp}";
  kubelet = version: "Kubernetes ${version}";
in
{
  # Not refused: it is not the replacing that fails.
  intact-crio = printing packages.crio "-static" (crio packages.crio.version "true");
  intact-kubelet = printing packages.kubelet "-static" (kubelet pins.kubernetesVersion);

  dynamic-crio = printing packages.crio "" (crio packages.crio.version "true");
  dynamic-kubelet = printing packages.kubelet "" (kubelet pins.kubernetesVersion);
  without-seccomp = printing packages.crio "-static" (crio packages.crio.version "false");
  other-crio = printing packages.crio "-static" (crio "0.0.1" "true");
  stock-kubelet = printing packages.kubelet "-static" (kubelet pins.KUBERNETES_VERSION);
}
