# nixos-test MODULE: a NixOS machine with services.layer-locality, which is control plane and node. The test checks what
# CRI-O and the Node report of an image: nix build .#nixosTest, on a machine with KVM.
module:
{ pkgs, ... }:
let
  # Its one layer is larger than 1 MiB: the kubelet reports no smaller ones.
  image = pkgs.dockerTools.buildImage {
    name = "registry.example.com/busybox";
    tag = "v1";
    copyToRoot = pkgs.busybox;
  };
in
{
  name = "layer-locality";
  # The module adds an overlay.
  node.pkgsReadOnly = false;
  nodes.machine = {
    imports = [ module ];
    services.layer-locality.enable = true;
    services.kubernetes = {
      roles = [
        "master"
        "node"
      ];
      easyCerts = true;
      masterAddress = "machine";
    };
    environment.systemPackages = with pkgs; [
      cri-tools
      jq
      kubectl
      skopeo
    ];
    virtualisation = {
      memorySize = 3072;
      diskSize = 8192;
    };
  };
  testScript = ''
    machine.wait_for_unit("crio.service")
    machine.succeed("skopeo --insecure-policy copy docker-archive:${image} containers-storage:registry.example.com/busybox:v1")
    machine.succeed("crictl --runtime-endpoint unix:///run/crio/crio.sock images -o json | grep imageLayer.sha256:")
    machine.wait_until_succeeds(
        "kubectl --kubeconfig /etc/kubernetes/cluster-admin.kubeconfig get nodes -o json | jq -e '.items[0].status.images[] | select(.layers)'"
    )
  '';
}
