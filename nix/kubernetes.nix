# kubernetes "kubelet", ...: one program of the patched Kubernetes. kube-scheduler
# is ours, with the plugin LayerLocality: a module in the tree's own workspace.
{
  buildGo126Module,
  ldflags,
  lib,
  pins,
  source,
  verify,
}:
name:
let
  version = pins.kubernetesVersion;
  scheduler = name == "kube-scheduler";
in
buildGo126Module (
  {
    pname = name;
    version = lib.removePrefix "v" version;

    src = source "kubernetes";
    vendorHash = null;
    subPackages = [ "cmd/${name}" ];

    env.CGO_ENABLED = "0";
    inherit ldflags;

    # Upstream's tests take hours; `make test` of this repository runs those of
    # the patched packages.
    doCheck = false;
    doInstallCheck = true;
    installCheckPhase = verify version;

    meta = {
      description = "${name} that knows the layers of images";
      homepage = pins.repository;
      license = lib.licenses.asl20;
      platforms = lib.platforms.linux;
      mainProgram = name;
    };
  }
  // lib.optionalAttrs scheduler {
    postPatch = ''
      bash ${import ./part.nix "scheduler"}/scripts/overlay.sh scheduler .
    '';
    modRoot = "layer-locality";
    tags = pins.schedulerTags;
  }
)
