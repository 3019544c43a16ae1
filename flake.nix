{
  description = "Kubernetes that knows which image layers a node already holds";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixpkgs-unstable";

  outputs =
    { self, nixpkgs }:
    let
      perSystem =
        attributes:
        nixpkgs.lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (
          system: attributes nixpkgs.legacyPackages.${system}
        );
      packages = pkgs: import ./nix/packages.nix { inherit pkgs; };
    in
    {
      packages = perSystem (pkgs: packages pkgs // { default = (packages pkgs).crio; });

      # Every package checks itself when it is built (nix/verify.sh), and the
      # patched sources are refused when a patch is not exact.
      checks = perSystem (
        pkgs:
        packages pkgs
        // {
          patches-cri-o = (packages pkgs).crio.src;
          patches-kubernetes = (packages pkgs).kubelet.src;
        }
      );

      # Not among the checks: it needs KVM.
      legacyPackages = perSystem (pkgs: {
        nixosTest = pkgs.testers.runNixOSTest (import ./nix/nixos-test.nix self.nixosModules.default);
      });

      formatter = perSystem (pkgs: pkgs.nixfmt-tree);

      devShells = perSystem (pkgs: { default = import ./nix/shell.nix { inherit pkgs; }; });

      overlays.default = import ./nix/overlay.nix;

      nixosModules.default = import ./nix/module.nix;
    };
}
