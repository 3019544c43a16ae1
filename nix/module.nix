# services.layer-locality: a NixOS node or control plane whose CRI-O and Kubernetes
# know the layers of images. It only changes how services.kubernetes and
# virtualisation.cri-o, which come with NixOS, are set.
{
  config,
  lib,
  ...
}:
let
  inherit (config.services) kubernetes;
  gates = kubernetes.featureGates // {
    NodeStatusImageLayers = true;
  };
in
{
  options.services.layer-locality.enable = lib.mkEnableOption "" // {
    description = ''
      Whether CRI-O and Kubernetes of this machine report the layers of images:
      patched programs (nix/overlay.nix), CRI-O as the runtime of the kubelet, and
      the feature gate NodeStatusImageLayers in kubelet and kube-apiserver, those of
      them that the machine runs.
    '';
  };

  config = lib.mkIf config.services.layer-locality.enable {
    nixpkgs.overlays = [ (import ./overlay.nix) ];

    virtualisation.cri-o = {
      enable = lib.mkIf kubernetes.kubelet.enable true;
      # The kubelet's module links all of cni.packages there, including flannel's
      # plugin.
      settings.crio.network.plugin_dirs = [ "/opt/cni/bin" ];
    };

    # Not services.kubernetes.featureGates: kube-proxy comes from nixpkgs and does
    # not start with a gate that it does not know.
    services.kubernetes = {
      apiserver.featureGates = gates;
      kubelet = {
        featureGates = gates;
        containerRuntimeEndpoint = lib.mkDefault "unix:///run/crio/crio.sock";
      };
    };

    # The kubelet's module makes all of /etc/cni/net.d.
    environment.etc = lib.mkIf kubernetes.kubelet.enable {
      "cni/net.d/10-crio-bridge.conflist".enable = false;
      "cni/net.d/99-loopback.conflist".enable = false;
    };
  };
}
