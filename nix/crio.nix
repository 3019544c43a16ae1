# crio and pinns, static: they run on any distribution, even copied to a node
# without /nix/store.
{
  buildGo126Module,
  glibc,
  lib,
  libseccomp,
  pins,
  pkg-config,
  source,
  verify,
}:
buildGo126Module {
  pname = "crio";
  version = lib.removePrefix "v" pins.CRIO_VERSION;

  src = source "cri-o";
  vendorHash = null;
  subPackages = [ "cmd/crio" ];

  # Without cgo it links, but lacks seccomp and SQLite.
  env.CGO_ENABLED = "1";
  tags = lib.splitString " " pins.CRIO_TAGS;
  ldflags = [ pins.CRIO_LDFLAGS ];

  nativeBuildInputs = [ pkg-config ];
  buildInputs = [
    glibc.static
    # As in CRI-O's own nix/.
    (libseccomp.overrideAttrs (old: {
      configureFlags = (old.configureFlags or [ ]) ++ [ "--disable-shared" ];
      dontDisableStatic = true;
      doCheck = false;
    }))
  ];

  postBuild = ''
    $CC -std=c99 -Os -Wall -Wextra -static -o "$GOPATH/bin/pinns" pinns/src/*.c
  '';

  # Upstream's tests need root and a network; `make test` of this repository runs
  # those of the patched packages.
  doCheck = false;
  doInstallCheck = true;
  installCheckPhase = verify (lib.removePrefix "v" pins.CRIO_VERSION);

  meta = {
    description = "CRI-O that reports the layers of images over CRI";
    homepage = pins.repository;
    # glibc and libseccomp are linked in.
    license = with lib.licenses; [ asl20 lgpl21Plus lgpl21Only ];
    platforms = lib.platforms.linux;
    mainProgram = "crio";
  };
}
