# The packages without flakes, from the nixpkgs of flake.lock:
#
#   nix build -f nix             crio; nix-build nix
#   nix build -f nix kubelet     another; nix-build nix -A kubelet
#   ... --argstr line 1.35       that of another minor of Kubernetes, in lines/1.35
{
  line ? null,
  system ? builtins.currentSystem,
  nixpkgs ?
    let
      locked = (builtins.fromJSON (builtins.readFile ../flake.lock)).nodes.nixpkgs.locked;
    in
    fetchTarball {
      url = "https://github.com/${locked.owner}/${locked.repo}/archive/${locked.rev}.tar.gz";
      sha256 = locked.narHash;
    },
  pkgs ? import nixpkgs {
    inherit system;
    config = { };
    overlays = [ ];
  },
}:
let
  packages = import ./packages.nix { inherit pkgs line; };
in
packages.crio // packages
