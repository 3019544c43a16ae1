# What can be seen of nix/ without a build, as one attribute set.
{
  nixpkgs,
  nix,
  system ? "x86_64-linux",
}:
let
  pins = import (nix + "/pins.nix");
  shim = import nixpkgs {
    inherit system;
    overlays = [ (import (nix + "/overlay.nix")) ];
  };

  # nix/module.nix on a machine with these options: not NixOS' module system, but
  # the functions of its lib that the module calls, with what they come to when
  # nothing else sets the same option.
  module =
    {
      enable,
      kubelet,
      pkgs ? nixpkgsWith { },
      package ? pkgs.kubernetes,
    }:
    import (nix + "/module.nix") {
      inherit pkgs;
      config.services = {
        layer-locality.enable = enable;
        kubernetes = {
          inherit package;
          apiserver.enable = false;
          kubelet.enable = kubelet;
          featureGates.Other = true;
        };
      };
      lib = {
        mkEnableOption = _: { type = "bool"; };
        mkIf = condition: content: if condition then content else { };
        mkDefault = content: content;
        getVersion = package: package.version;
        inherit (builtins) concatLists;
        inherit (shim.lib) mapAttrsToList optionalAttrs removePrefix;
        optional = condition: element: if condition then [ element ] else [ ];
        versionOlder = a: b: builtins.compareVersions a b < 0;
        versions.majorMinor = version: "${shim.lib.versions.major version}.${shim.lib.versions.minor version}";
      };
    };
  # nixpkgsWith VERSIONS: a nixpkgs that has them, with the overlay.
  nixpkgsWith =
    {
      kubernetes ? shim.lib.removePrefix "v" pins.KUBERNETES_VERSION,
      cri-o ? shim.lib.removePrefix "v" pins.CRIO_VERSION,
    }:
    import nixpkgs {
      inherit system;
      overlays = [
        (_: prev: {
          kubernetes = prev.kubernetes // { version = kubernetes; };
          cri-o-unwrapped = prev.cri-o-unwrapped // { version = cri-o; };
        })
        (import (nix + "/overlay.nix"))
      ];
    };
  # refused OPTIONS: the messages of the assertions that do not hold for a node with these.
  refused =
    options:
    map (a: a.message) (
      builtins.filter (a: !a.assertion) (module ({ enable = true; kubelet = true; } // options)).config.assertions
    );
  # one PATTERN MESSAGES: whether there is exactly one message, and it is like this.
  one =
    pattern: messages:
    builtins.length messages == 1
    && builtins.match pattern (builtins.replaceStrings [ "\n" ] [ " " ] (builtins.head messages)) != null;
  node = module { enable = true; kubelet = true; };
in
{
  pins = builtins.removeAttrs pins [ "kubernetesVersion" "repository" "schedulerTags" "line" ];

  overlay = { inherit (shim) cri-o-unwrapped kubectl kubernetes; };
  overlayKeeps = builtins.isString "${shim.cri-o-unwrapped.man}${shim.kubernetes.pause}"
    && shim.cri-o-unwrapped.version == shim.layerLocality.crio.version
    && shim.cri-o-unwrapped.src == shim.layerLocality.crio.src;

  moduleOff = (module { enable = false; kubelet = true; }).config == { };
  moduleOption = node.options.services.layer-locality.enable ? description;
  moduleGates =
    let
      want = { NodeStatusImageLayers = true; Other = true; };
    in
    node.config.services.kubernetes.kubelet.featureGates == want
    && node.config.services.kubernetes.apiserver.featureGates == want
    && !(node.config.services.kubernetes ? featureGates);
  moduleRuntime =
    node.config.virtualisation.cri-o.enable == true
    && node.config.virtualisation.cri-o.settings.crio.network.plugin_dirs == [ "/opt/cni/bin" ]
    && (module { enable = true; kubelet = false; }).config.virtualisation.cri-o.enable == { };
  moduleAccepts =
    refused { } == [ ]
    && node.config.warnings == [ ]
    && (module { enable = true; kubelet = false; pkgs = nixpkgsWith { kubernetes = "1.2.3"; }; }).config.assertions == { };
  moduleRefusesOtherNixpkgs = one ".* Kubernetes 1\\.[0-9]+, .* this one has 1\\.2\\.3: .*" (
    refused { pkgs = nixpkgsWith { kubernetes = "1.2.3"; }; }
  );
  moduleRefusesOtherCRIO = one ".* CRI-O 1\\.[0-9]+, .* this one has 1\\.2\\.3: .*" (
    refused { pkgs = nixpkgsWith { cri-o = "1.2.3"; }; }
  );
  moduleRefusesOtherPackage = one ".* services\\.kubernetes\\.package is 0: remove that option.*" (
    refused { package = (import nixpkgs { inherit system; }).kubernetes; }
  );
  # A patch release that is newer than the pin.
  moduleWarnsOfDowngrade =
    let
      newer = "${shim.lib.removePrefix "v" pins.CRIO_VERSION}0";
      pkgs = nixpkgsWith { cri-o = newer; };
    in
    refused { inherit pkgs; } == [ ]
    && one ".* CRI-O ${newer} of nixpkgs by the older .*" (module { enable = true; kubelet = true; inherit pkgs; }).config.warnings;
  moduleOverlay =
    let
      inherit (import nixpkgs { inherit system; inherit (node.config.nixpkgs) overlays; }) cri-o-unwrapped;
    in
    "${cri-o-unwrapped}" == "${shim.cri-o-unwrapped}";
}
