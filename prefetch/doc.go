// Package prefetch has nodes pull images before pods need them: the controller of
// ImagePrefetches, and the sources that make some by themselves.
//
// A node pulls through a pod that is placed on it and has the images as image volumes: with the
// kubelet's credentials, back-off and checks. What a node lacks, and what is on its way there, is
// known from package locality as the scheduler knows it.
//
// One goroutine handles all ImagePrefetches, so budgets need no lock. All state is in the objects
// and their pods, so that another process goes on where this one ends.
package prefetch
