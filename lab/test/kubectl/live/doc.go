// Package live tests kubectl layers on a real cluster, with real pulls: of its four nodes one has
// the patched kubelet and CRI-O, one layer-agent, and two state names only, of which ImageManifests
// explain those of one. The scheduler with the plugin is a Deployment, which is asked through a
// forwarded port.
//
//   - nodes shows the source of each of the four
//   - savings of many pods is what the registry sent, beside what the mean node lacked by the
//     registry's manifests
//
// What plan and why print of a pod is compared with the registry's log in lab/test/scheduler.
//
// The tests need root and the build tag e2e; the cluster is always removed at the end.
package live
