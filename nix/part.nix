# part "cri-o", ...: this repository, reduced to what one package needs. An edit
# elsewhere, or in a test, causes no rebuild.
name:
let
  # For scripts/overlay.sh.
  overlay = [
    "versions.env"
    "scripts/lib.sh"
    "scripts/overlay.sh"
  ];
  wanted =
    {
      cri-o = overlay ++ [ "crio" ];
      kubernetes = overlay ++ [ "kubelet/imagelayers" ];
      scheduler = overlay ++ [
        "api"
        "cmd/kube-scheduler"
        "go.mod"
        "imageref"
        "memlimit"
        "scheduler"
      ];
      own = [
        "agent"
        "api"
        "cmd/kubectl-layers"
        "cmd/layer-agent"
        "cmd/layer-extender"
        "cmd/layer-prefetcher"
        "cmd/layer-resolver"
        "extender"
        "go.mod"
        "go.sum"
        "imageref"
        "kubectllayers"
        "memlimit"
        "ocimanifest"
        "prefetch"
        "resolver"
        "scheduler"
        "terminal"
      ];
    }
    .${name};

  root = toString ../.;
  from = builtins.substring;
  relative = path: from (builtins.stringLength root + 1) (-1) (toString path);
  below = path: parent: path == parent || from 0 (builtins.stringLength parent + 1) path == "${parent}/";
  isTest = path: builtins.match ".*(_test\\.go|/README\\.md)" path != null;
in
builtins.path {
  name = "layer-locality-${name}";
  path = ../.;
  filter =
    file: type:
    let
      path = relative file;
    in
    builtins.any (want: below path want || (type == "directory" && below want path)) wanted
    && !isTest path;
}
