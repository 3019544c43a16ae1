// Package cluster runs a real Kubernetes cluster on one Linux machine: etcd, a
// control plane, an image registry and any number of nodes, each with its own
// CRI-O and kubelet. It needs root, and neither systemd nor a container engine.
//
//	c, err := cluster.Start(ctx, cluster.Config{Nodes: 3, Flavour: cluster.Stock})
//	if err != nil { ... } // nothing is left behind but log files, which the error names
//	defer c.Stop(context.Background())
//
//	client, err := c.Client()
//	_, err = images.Push(ctx, c.Registry().Address+"/app:v1", img)
//	err = c.Node("n2").Runtime().Restart(ctx, func(s *cluster.Component) { s.Flavour = cluster.Patched })
//
// Components that do not belong to Kubernetes are add-ons ([Addon]), described
// by data. Package addons has those of this repository.
//
// Every node, and the control plane, has its own set of namespaces (see package
// machine). A node sees the host's programs, but has its own processes,
// network, /run, /var/lib and /var/log. Everything a cluster writes is below
// one folder, [Config.Dir]. Besides that folder, the host sees one network link
// and the cgroups of the pods.
//
// A cluster belongs to the process that started it. When that process is
// killed, the next Start on the same folder, or Clean, removes what it left.
// After Detach, the cluster runs on and can be used with Open.
package cluster
