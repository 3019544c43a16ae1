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
  inherit (pkgs.lib) genAttrs;
in
{
  crio = callPackage ./crio.nix { };
}
// genAttrs [
  "kubelet"
  "kube-apiserver"
  "kube-controller-manager"
  "kube-scheduler"
  "layer-extender"
  "kubectl-layers"
] (callPackage ./kubernetes.nix { })
// genAttrs [
  "layer-resolver"
  "layer-agent"
  "layer-prefetcher"
] (callPackage ./own.nix { })
