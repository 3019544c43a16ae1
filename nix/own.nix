# own "layer-resolver", ...: one program that is built from this repository's own go.mod.
{
  buildGo126Module,
  lib,
  pins,
  verify,
}:
name:
buildGo126Module {
  pname = name;
  version = lib.removePrefix "v" pins.kubernetesVersion;

  src = import ./part.nix "own";
  # The hash of what `go mod vendor` collects there; lab/test/nix/run.sh prints the
  # right one.
  vendorHash = pins.OWN_VENDOR_HASH;
  subPackages = [ "cmd/${name}" ];

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
    description = "${name}, of Layer Locality";
    homepage = pins.repository;
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
    mainProgram = name;
  };
}
