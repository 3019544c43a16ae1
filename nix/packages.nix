# All packages of a line, by default that of versions.env, by name.
{
  pkgs,
  line ? null,
}:
let
  inherit (pkgs) lib;
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
  # As scripts/build.sh has them: -X is for those that have such a variable.
  ldflags =
    let
      version = scope.pins.kubernetesVersion;
      number = lib.removePrefix "v" version;
    in
    [
      "-s"
      "-w"
      "-X main.version=${version}"
    ]
    ++ lib.concatMap
      (package: [
        "-X ${package}.gitVersion=${version}"
        "-X ${package}.gitMajor=${lib.versions.major number}"
        "-X ${package}.gitMinor=${lib.versions.minor number}"
        "-X ${package}.gitTreeState=clean"
      ])
      [
        "k8s.io/component-base/version"
        "k8s.io/client-go/pkg/version"
      ];
  callPackage = pkgs.newScope (scope // { inherit ldflags; });
in
{
  crio = callPackage ./crio.nix { };
}
// lib.genAttrs [
  "kubelet"
  "kube-apiserver"
  "kube-controller-manager"
  "kube-scheduler"
] (callPackage ./kubernetes.nix { })
// lib.genAttrs (
  [
    "layer-resolver"
    "layer-agent"
    "layer-prefetcher"
  ]
  # Of the line whose libraries go.mod has.
  ++ lib.optionals (line == null) [
    "layer-extender"
    "kubectl-layers"
  ]
) (callPackage ./own.nix { })
