# nixpkgs with our programs in place of its own: pkgs.cri-o and pkgs.kubernetes, as
# NixOS uses them, and everything else of these packages (manual pages, kubeadm,
# kube-proxy, ...) from nixpkgs.
final: prev:
let
  packages = import ./packages.nix { pkgs = final; };

  # over THEIRS OURS: a package with the files of theirs, where ours come first.
  over =
    theirs: ours:
    final.symlinkJoin {
      name = "${theirs.pname}-${(builtins.head ours).version}";
      paths = ours ++ [ theirs ];
      # What others take from these packages beside their programs.
      passthru = (theirs.passthru or { }) // {
        inherit (theirs) pname;
        inherit ((builtins.head ours)) src version;
        man = theirs.man or null;
        pause = theirs.pause or null;
      };
      meta = (builtins.head ours).meta;
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
}
