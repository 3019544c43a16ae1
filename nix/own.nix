# own "layer-resolver", ...: one program that is built from this repository's own go.mod. layer-extender and
# kubectl-layers also read the layers that Nodes state, which the patched type alone has.
{
  buildGo126Module,
  ldflags,
  lib,
  pins,
  source,
  verify,
}:
name:
buildGo126Module (
  {
    pname = name;
    version = lib.removePrefix "v" pins.kubernetesVersion;

    src = import ./part.nix "own";
    # The hash of what `go mod vendor` collects there; lab/test/nix/run.sh prints the
    # right one.
    vendorHash = pins.OWN_VENDOR_HASH;
    subPackages = [ "cmd/${name}" ];

    env.CGO_ENABLED = "0";
    inherit ldflags;

    doCheck = false; # the tests are not in this part of the repository
    doInstallCheck = true;
    installCheckPhase = verify pins.kubernetesVersion;

    meta = {
      description = "${name}, of Layer Locality";
      homepage = pins.repository;
      license = lib.licenses.asl20;
      platforms = lib.platforms.linux;
      mainProgram = name;
    };
  }
  // lib.optionalAttrs (name == "layer-extender" || name == "kubectl-layers") {
    tags = pins.schedulerTags;
    preBuild = ''
      chmod -R u+w vendor/k8s.io/api/core/v1
      cp ${source "kubernetes"}/staging/src/k8s.io/api/core/v1/*.go vendor/k8s.io/api/core/v1/
    '';
  }
)
