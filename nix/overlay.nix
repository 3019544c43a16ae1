# nixpkgs with our programs instead of its own in pkgs.cri-o and pkgs.kubernetes,
# as NixOS uses them. Everything else in these packages (manual pages, kubeadm,
# kube-proxy, ...) comes from nixpkgs.
final: prev:
let
  packages = import ./packages.nix { pkgs = final; };

  # over THEIRS OURS: a package with the files of theirs, where ours come first.
  over =
    theirs: ours:
    let
      inherit (builtins.head ours) meta src version;
    in
    final.symlinkJoin {
      name = "${theirs.pname}-${version}";
      paths = ours ++ [ theirs ];
      # What others use from these packages besides their files.
      passthru =
        (theirs.passthru or { })
        // builtins.intersectAttrs { man = null; pause = null; } theirs
        // {
          inherit (theirs) pname;
          inherit src version;
          # For the assertions of module.nix.
          patchedFrom = theirs.version;
        };
      inherit meta;
    };
in
{
  layerLocality = packages;

  # pkgs.cri-o wraps it.
  cri-o-unwrapped = over prev.cri-o-unwrapped [ packages.crio ];

  kubernetes = over prev.kubernetes [
    packages.kubelet
    packages.kube-apiserver
    packages.kube-controller-manager
    packages.kube-scheduler
  ];
  # Made with the recipe of pkgs.kubernetes, which has a link to it.
  kubectl = prev.kubectl.override { inherit (prev) kubernetes; };
}
