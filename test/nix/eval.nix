# What can be seen of nix/ without a build, as one attribute set.
{
  nixpkgs,
  nix,
  system ? "x86_64-linux",
}:
let
  shim = import nixpkgs {
    inherit system;
    overlays = [ (import (nix + "/overlay.nix")) ];
  };

  # nix/module.nix on a machine with these options: not NixOS' module system, but
  # the functions of its lib that the module calls, with what they come to when
  # nothing else sets the same option.
  module =
    { enable, kubelet }:
    import (nix + "/module.nix") {
      config.services = {
        layer-locality.enable = enable;
        kubernetes = {
          kubelet.enable = kubelet;
          featureGates.Other = true;
        };
      };
      lib = {
        mkEnableOption = _: { type = "bool"; };
        mkIf = condition: content: if condition then content else { };
        mkDefault = content: content;
      };
    };
  node = module { enable = true; kubelet = true; };
in
{
  pins = builtins.removeAttrs (import (nix + "/pins.nix")) [ "kubernetesVersion" "SCHEDULER_TAGS" ];

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
  moduleOverlay =
    let
      inherit (import nixpkgs { inherit system; inherit (node.config.nixpkgs) overlays; }) cri-o-unwrapped;
    in
    "${cri-o-unwrapped}" == "${shim.cri-o-unwrapped}";
}
