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
  scheduler = overlay ++ [
    "api"
    "cmd/kube-scheduler"
    "go.mod"
    "imageref"
    "memlimit"
    "scheduler"
  ];
  wanted =
    {
      cri-o = overlay ++ [ "crio" ];
      kubernetes = overlay ++ [ "kubelet/imagelayers" ];
      kube-scheduler = scheduler;
      layer-extender = scheduler ++ [
        "cmd/layer-extender"
        "extender"
      ];
      kubectl-layers = scheduler ++ [
        "cmd/kubectl-layers"
        "kubectllayers"
        "terminal"
      ];
      own = [
        "agent"
        "api"
        "cmd/layer-agent"
        "cmd/layer-prefetcher"
        "cmd/layer-resolver"
        "go.mod"
        "go.sum"
        "imagemanifest"
        "imageref"
        "memlimit"
        "prefetch"
        "resolver"
        "scheduler/apis"
        "scheduler/imagemanifests"
        "scheduler/index"
        "scheduler/internal/intern"
        "scheduler/internal/objects"
        "scheduler/locality"
        "scheduler/nodelayers"
        "scheduler/nodestatus"
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
