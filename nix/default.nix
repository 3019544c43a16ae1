# The packages without flakes, from the nixpkgs of flake.lock:
#
#   nix build -f nix             crio; nix-build nix
#   nix build -f nix kubelet     another; nix-build nix -A kubelet
{
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
  packages = import ./packages.nix { inherit pkgs; };
in
packages.crio // packages
