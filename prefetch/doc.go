// Package prefetch has nodes pull images before pods need them: the controller of
// ImagePrefetches, and the sources that make some by themselves.
//
// A node pulls through a pod that is placed on it and has the images as image volumes: with the
// kubelet's credentials, back-off and checks. What a node lacks, and what is on its way there, is
// known from package locality as the scheduler knows it.
//
// # Garbage collection of images
//
// A kubelet uses the image of an image volume as long as the container is there that mounts it (handleImageVolumes in
// k8s.io/kubernetes/pkg/kubelet/images): CRI-O (mountImage in server) and containerd (ContainerStatus in internal/cri/server) report its ID.
// But the kubelet looks every five minutes, and most pods that pull are gone by then, so that the image was never used for it. Then
//
//   - above imageGCHighThresholdPercent, such images go first, once they are as old as imageMinimumGCAge: before those that pods ran, and
//     never instead of what pods run;
//   - with imageMaximumGCAge, which is off by default, they go the next time that it looks, however new they are, once the kubelet has
//     run for that age.
//
// A pod that stays for five minutes would prevent that, and count as a pod of the node and of quotas as long.
//
// # One process at a time
//
// One goroutine handles all ImagePrefetches, so budgets need no lock. All state is in the objects
// and their pods, so that another process goes on where this one ends.
package prefetch
