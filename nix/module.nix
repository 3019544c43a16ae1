# services.layer-locality: a NixOS node or control plane whose CRI-O and Kubernetes
# know the layers of images. It only changes how services.kubernetes and
# virtualisation.cri-o, which come with NixOS, are set.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (config.services) kubernetes;
  gates = kubernetes.featureGates // {
    NodeStatusImageLayers = true;
  };

  pins = import ./pins.nix;
  ours = lib.removePrefix "v" pins.kubernetesVersion;
  minor = lib.versions.majorMinor ours;

  # What nixpkgs has, in place of which the overlay puts ours.
  theirs = {
    Kubernetes = kubernetes.package.patchedFrom or ours;
  }
  // lib.optionalAttrs kubernetes.kubelet.enable { CRI-O = pkgs.cri-o-unwrapped.patchedFrom; };
  patched = {
    Kubernetes = lib.removePrefix "v" pins.KUBERNETES_VERSION;
    CRI-O = lib.removePrefix "v" pins.CRIO_VERSION;
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

    # Otherwise the machine is built, and its services do not start.
    assertions = lib.mkIf (kubernetes.kubelet.enable || kubernetes.apiserver.enable) ([
      {
        assertion = lib.getVersion kubernetes.package == ours;
        message = ''
          services.layer-locality turns on a feature gate that only its own Kubernetes ${ours}
          knows, but services.kubernetes.package is ${lib.getVersion kubernetes.package}: remove that option.
        '';
      }
    ]
    ++ lib.mapAttrsToList (name: version: {
      assertion = lib.versions.majorMinor version == minor;
      message = ''
        services.layer-locality needs a nixpkgs with ${name} ${minor}, whose other programs run beside its
        own, but this one has ${version}: choose a revision of nixpkgs with ${minor}
        (nix eval nixpkgs/REVISION#kubernetes.version, and #cri-o-unwrapped.version).
      '';
    }) theirs);

    warnings = lib.concatLists (
      lib.mapAttrsToList (
        name: version:
        lib.optional (lib.versionOlder patched.${name} version)
          "services.layer-locality replaces ${name} ${version} of nixpkgs by the older ${patched.${name}}, without what was fixed since"
      ) theirs
    );

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
