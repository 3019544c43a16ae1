# source "cri-o" or source "kubernetes": upstream's tree at the pinned tag, with
# our overlay and patches. Both tags have vendor/ and no patch touches go.mod, so
# upstream's vendoring can be used.
{
  fetchFromGitHub,
  fetchurl,
  gitMinimal,
  lib,
  pins,
  stdenvNoCC,
}:
component:
let
  # What Nix checks what it fetches with.
  hashOf =
    key:
    if pins.${key} != "" then
      pins.${key}
    else
      throw "lines/${pins.line}/versions.env has no ${key}: nix/README.md says where it is published";
  upstream =
    {
      cri-o = rec {
        tag = pins.CRIO_VERSION;
        src = fetchFromGitHub {
          owner = "cri-o";
          repo = "cri-o";
          inherit tag;
          hash = hashOf "CRIO_SOURCE_HASH";
        };
      };
      kubernetes = rec {
        tag = pins.KUBERNETES_VERSION;
        # The archive of the release: its hash is published.
        src = fetchurl {
          url = "https://dl.k8s.io/${tag}/kubernetes-src.tar.gz";
          hash = hashOf "KUBERNETES_SOURCE_HASH";
        };
        # It has no folder at its top.
        sourceRoot = "source";
        unpackPhase = ''
          runHook preUnpack
          mkdir source
          tar -xf $src -C source
          runHook postUnpack
        '';
      };
    }
    .${component};
  patchesIn =
    folder:
    if builtins.pathExists folder then
      map (name: folder + "/${name}") (
        lib.filter (lib.hasSuffix ".patch") (builtins.attrNames (builtins.readDir folder))
      )
    else
      [ ];
  own =
    if pins.line == null then [ ] else patchesIn (../lines + "/${pins.line}/patches/${component}");
  # By number: of equal names, the first counts. attrValues sorts by name.
  series = builtins.attrValues (
    builtins.listToAttrs (
      map (file: {
        name = builtins.substring 0 4 (baseNameOf file);
        value = file;
      }) (own ++ patchesIn (../patches + "/${component}"))
    )
  );
in
stdenvNoCC.mkDerivation {
  pname = "${component}-layers-source";
  version = lib.removePrefix "v" upstream.tag;

  inherit (upstream) src;
  sourceRoot = upstream.sourceRoot or null;
  unpackPhase = upstream.unpackPhase or null;
  # An empty file drops one.
  patches = lib.filter (file: builtins.readFile file != "") series;

  nativeBuildInputs = [ gitMinimal ];
  # Not patch: it accepts hunks whose context differs, and does not support
  # binary ones. A hunk that has moved is also refused: the pin is exact, and so
  # are the patches.
  patchPhase = ''
    runHook prePatch
    bash ${import ./part.nix component}/scripts/overlay.sh ${component} .
    export GIT_CEILING_DIRECTORIES=''${PWD%/*}
    for patch in $patches; do
      if ! git apply --verbose "$patch" >../apply.log 2>&1 || grep -q '(offset ' ../apply.log; then
        cat ../apply.log >&2
        echo "$patch does not apply exactly to ${component} ${upstream.tag}: make patches P=refresh" >&2
        exit 1
      fi
    done
    runHook postPatch
  '';

  dontConfigure = true;
  dontBuild = true;
  installPhase = ''
    runHook preInstall
    cp -r . $out
    runHook postInstall
  '';
  dontFixup = true;
}
