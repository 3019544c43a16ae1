# layer-resolver, from this repository's own go.mod.
{
  buildGo126Module,
  lib,
  pins,
  verify,
}:
buildGo126Module {
  pname = "layer-resolver";
  version = lib.removePrefix "v" pins.kubernetesVersion;

  src = import ./part.nix "resolver";
  # The hash of what `go mod vendor` collects there; lab/test/nix/run.sh prints the
  # right one.
  vendorHash = pins.RESOLVER_VENDOR_HASH;
  subPackages = [ "cmd/layer-resolver" ];

  env.CGO_ENABLED = "0";
  ldflags = [
    "-s"
    "-w"
    "-X main.version=${pins.kubernetesVersion}"
  ];

  doCheck = false; # the tests are not in this part of the repository
  doInstallCheck = true;
  installCheckPhase = verify pins.kubernetesVersion;

  meta = {
    description = "Asks registries what the images of workloads consist of";
    homepage = pins.repository;
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
    mainProgram = "layer-resolver";
  };
}
