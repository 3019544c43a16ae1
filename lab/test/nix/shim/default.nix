# As much of nixpkgs as nix/ uses, made of the machine's own programs: bash, git, cc,
# pkg-config, libseccomp, Go. It shares names and arguments with nixpkgs, not code:
# what builds here has right names, patches, flags and results; whether nixpkgs'
# own buildGoModule takes it too is not known before it is tried.
{
  system,
  config ? { },
  overlays ? [ ],
}:
let
  lib = import ./lib.nix;

  # A stand-in for a package of which the machine's own is used.
  host =
    pname:
    mkDerivation {
      inherit pname;
      version = "0";
      phases = "installPhase";
      installPhase = "mkdir $out";
    };

  mkDerivation =
    attributes:
    derivation (
      {
        inherit system;
        name = attributes.name or "${attributes.pname}-${attributes.version}";
        builder = "/bin/bash";
        args = [ ./builder.sh ];
      }
      // builtins.removeAttrs attributes [
        "env"
        "meta"
        "passthru"
      ]
      // (attributes.env or { })
    )
    // {
      meta = attributes.meta or { };
      overrideAttrs = change: mkDerivation (attributes // change attributes);
    }
    // (attributes.passthru or { });

  # tags, ldflags, subPackages, modRoot and vendorHash are nixpkgs'.
  buildGoModule =
    attributes:
    mkDerivation (
      {
        goModules =
          if attributes.vendorHash == null then
            ""
          else
            mkDerivation {
              name = "${attributes.pname}-go-modules";
              inherit (attributes) src;
              buildPhase = ''GOFLAGS= GOPROXY=$PROXY GOSUMDB=$SUMDB go mod vendor -o "$TMPDIR/vendor"'';
              installPhase = ''cp -r "$TMPDIR/vendor" $out'';
              outputHashMode = "recursive";
              outputHash = attributes.vendorHash;
            };
        buildPhase = ''
          for package in $subPackages; do
            go install ''${tags:+-tags "''${tags// /,}"} -ldflags "$ldflags -buildid=" "./$package"
          done
        '';
        installPhase = ''
          mkdir -p $out
          cp -r "$GOPATH/bin" $out/bin
        '';
      }
      // attributes
    );

  # The tree that scripts/tree.sh made, instead of GitHub's.
  fetchFromGitHub =
    {
      owner,
      repo,
      tag,
      hash,
    }:
    assert builtins.match "sha256-[A-Za-z0-9+/]{43}=" hash != null;
    mkDerivation {
      name = "${owner}-${repo}-${tag}";
      phases = "installPhase";
      installPhase = ''ln -s "$VENDORED/${repo}-${tag}" $out'';
    };

  # The same as the release's archive: without a folder at its top.
  fetchurl =
    { url, hash }:
    assert builtins.match "sha512-[A-Za-z0-9+/]{86}==" hash != null;
    let
      tag = builtins.head (builtins.match "https://dl.k8s.io/(v[^/]+)/kubernetes-src.tar.gz" url);
    in
    mkDerivation {
      name = "kubernetes-src.tar.gz";
      phases = "installPhase";
      installPhase = ''tar -C "$VENDORED/kubernetes-${tag}" -cf $out .'';
    };

  runCommand =
    name: attributes: command:
    mkDerivation (
      attributes
      // {
        inherit name;
        phases = "installPhase";
        installPhase = command;
      }
    );

  pkgs = {
    inherit
      fetchFromGitHub
      fetchurl
      lib
      runCommand
      system
      ;
    stdenvNoCC = { inherit mkDerivation; };
    buildGo126Module = buildGoModule;
    newScope = extra: lib.callPackageWith (final // extra);

    symlinkJoin =
      {
        name,
        paths,
        passthru ? { },
        meta ? { },
      }:
      runCommand name { inherit passthru meta paths; } ''
        mkdir $out
        for path in $paths; do cp -rsn "$path/." $out; done
      '';

    mkShell =
      { inputsFrom, packages }:
      mkDerivation {
        name = "shell";
        outputs = [ "out" ]; # read by nix develop
        nativeBuildInputs = packages;
        from = map (package: package.drvPath) inputsFrom;
        phases = "installPhase";
        installPhase = "mkdir $out";
      };

    # What nix/overlay.nix puts our programs over. As there, kubernetes links to a
    # kubectl that is made of the recipe of kubernetes.
    cri-o-unwrapped = stock "cri-o" "man" "for program in crio pinns; do echo stock >$out/bin/$program; done";
    kubernetes = stock "kubernetes" "pause" ''
      for program in kubeadm kubelet; do echo stock >$out/bin/$program; done
      ln -s ${final.kubectl} $out/bin/kubectl
    '';
    kubectl = overridable (
      { kubernetes }:
      kubernetes.overrideAttrs (_: {
        name = "kubectl-0";
        installPhase = "echo stock >$out";
      })
    ) { inherit (final) kubernetes; };

    glibc = host "glibc" // {
      static = host "glibc-static";
    };
    pkgsStatic.busybox = host "busybox";
  }
  // lib.genAttrs [
    "buildah" "cni-plugins" "conmon" "curl" "gawk" "gitMinimal" "gnumake" "go_1_26"
    "iproute2" "iptables" "jq" "libseccomp" "nixfmt-tree" "nodejs" "openssl" "pkg-config" "procps" "protobuf"
    "shellcheck" "skopeo" "util-linux"
  ] host;

  stock =
    pname: output: command:
    runCommand "${pname}-0" {
      passthru = {
        inherit pname;
        version = "0";
        ${output} = host "${pname}-${output}";
      };
    } "mkdir -p $out/bin; ${command}";

  overridable = make: arguments: make arguments // { override = change: make (arguments // change); };

  final = builtins.foldl' (prev: overlay: prev // overlay final prev) pkgs overlays;
in
assert config == { };
final
