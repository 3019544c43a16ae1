# The functions of nixpkgs' lib that nix/ uses, and no others.
rec {
  inherit (builtins) concatMap filter;

  genAttrs =
    names: value: builtins.listToAttrs (map (name: { inherit name; value = value name; }) names);
  mapAttrsToList = f: set: map (name: f name set.${name}) (builtins.attrNames set);
  optionalAttrs = condition: set: if condition then set else { };
  optionals = condition: list: if condition then list else [ ];

  hasPrefix = prefix: text: builtins.substring 0 (builtins.stringLength prefix) text == prefix;
  removePrefix =
    prefix: text:
    if hasPrefix prefix text then
      builtins.substring (builtins.stringLength prefix) (-1) text
    else
      text;
  hasSuffix =
    suffix: text:
    let
      start = builtins.stringLength text - builtins.stringLength suffix;
    in
    start >= 0 && builtins.substring start (-1) text == suffix;
  splitString =
    separator: text: filter builtins.isString (builtins.split separator text);

  versions = {
    major = version: builtins.elemAt (builtins.splitVersion version) 0;
    minor = version: builtins.elemAt (builtins.splitVersion version) 1;
  };

  callPackageWith =
    set: file: extra:
    let
      f = if builtins.isFunction file then file else import file;
    in
    f (builtins.intersectAttrs (builtins.functionArgs f) set // extra);

  licenses = {
    asl20.spdxId = "Apache-2.0";
    lgpl21Only.spdxId = "LGPL-2.1-only";
    lgpl21Plus.spdxId = "LGPL-2.1-or-later";
  };
  platforms.linux = [ "x86_64-linux" "aarch64-linux" ];
}
