# kubernetes "kubelet", ...: one program of the patched Kubernetes. kube-scheduler, with the plugin LayerLocality,
# layer-extender and kubectl-layers are ours: a module in the tree's own workspace.
{
  buildGo126Module,
  lib,
  pins,
  source,
  verify,
}:
name:
let
  version = pins.kubernetesVersion;
  ours = builtins.elem name [
    "kube-scheduler"
    "layer-extender"
    "kubectl-layers"
  ];
  stamp = {
    gitVersion = version;
    gitMajor = lib.versions.major (lib.removePrefix "v" version);
    gitMinor = lib.versions.minor (lib.removePrefix "v" version);
    gitTreeState = "clean";
  };
in
buildGo126Module (
  {
    pname = name;
    version = lib.removePrefix "v" version;

    src = source "kubernetes";
    vendorHash = null;
    subPackages = [ "cmd/${name}" ];

    env.CGO_ENABLED = "0";
    ldflags = [
      "-s"
      "-w"
      "-X main.version=${version}"
    ]
    ++ lib.concatMap (
      package: lib.mapAttrsToList (key: value: "-X ${package}.${key}=${value}") stamp
    ) [
      "k8s.io/component-base/version"
      "k8s.io/client-go/pkg/version"
    ];

    # Upstream's tests take hours; `make test` of this repository runs those of
    # the patched packages.
    doCheck = false;
    doInstallCheck = true;
    installCheckPhase = verify version;

    meta = {
      description = "${name}, with the layers of images";
      homepage = pins.repository;
      license = lib.licenses.asl20;
      platforms = lib.platforms.linux;
      mainProgram = name;
    };
  }
  // lib.optionalAttrs ours {
    postPatch = ''
      bash ${import ./part.nix name}/scripts/overlay.sh ${name} .
    '';
    modRoot = "layer-locality";
    tags = pins.schedulerTags;
  }
)
