# All packages of a line, by default that of versions.env, by name.
{
  pkgs,
  line ? null,
}:
let
  scope = {
    pins = import ./line.nix line;
    source = callPackage ./source.nix { };
    # verify VERSION: the installCheckPhase of a package.
    verify = version: ''
      runHook preInstallCheck
      bash ${./verify.sh} ${version} $out/bin/*
      runHook postInstallCheck
    '';
  };
  callPackage = pkgs.newScope scope;
  kubernetes = callPackage ./kubernetes.nix { };
in
{
  crio = callPackage ./crio.nix { };
  layer-resolver = callPackage ./resolver.nix { };
}
// pkgs.lib.genAttrs [
  "kubelet"
  "kube-apiserver"
  "kube-controller-manager"
  "kube-scheduler"
] kubernetes
