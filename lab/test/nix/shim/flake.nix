# Stands in for nixpkgs where that cannot be fetched:
# nix build --override-input nixpkgs path:lab/test/nix/shim
{
  outputs =
    { self }:
    let
      pkgs = system: import self { inherit system; };
      inherit (pkgs "x86_64-linux") lib;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] pkgs;
    };
}
