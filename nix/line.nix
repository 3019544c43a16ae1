# line null or "1.35": versions.env as an attribute set, with what lines/1.35 has of its own and derived
# values. Values may be in double quotes; lines that are not KEY=value are comments.
line:
let
  variables =
    file:
    let
      lines = builtins.filter builtins.isString (builtins.split "\n" (builtins.readFile file));
      matches = map (builtins.match "([A-Z][A-Z0-9_]*)=(\"([^\"]*)\"|([^\" ]*))") lines;
    in
    builtins.listToAttrs (
      map (match: {
        name = builtins.elemAt match 0;
        value =
          if builtins.elemAt match 2 != null then builtins.elemAt match 2 else builtins.elemAt match 3;
      }) (builtins.filter (match: match != null) matches)
    );
  pins =
    variables ../versions.env
    // (if line == null then { } else variables (../lines + "/${line}/versions.env"));
in
pins
// {
  inherit line;

  # As in scripts/build.sh.
  kubernetesVersion = "${pins.KUBERNETES_VERSION}+layerlocality.${pins.LAYERLOCALITY_REVISION}";

  # Where this repository is: its Go module is named after that.
  repository = "https://${
    builtins.head (builtins.match "module ([^\n]*)\n.*" (builtins.readFile ../go.mod))
  }";

  # The build tags for code that uses types of the patched Kubernetes, and of the line.
  schedulerTags = [
    (variables ../scripts/lib.sh).SCHEDULER_TAGS
  ]
  ++ (if line == null then [ ] else [ "kubernetes${line}" ]);
}
