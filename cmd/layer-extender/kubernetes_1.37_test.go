//go:build kubernetes1.37

package main

import (
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/scheduler"
)

// schedulerInformers returns those that kube-scheduler makes for itself.
func schedulerInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0, nil)
}

// unknownAfterEviction is why TestPreemptsNotInVain is skipped.
const unknownAfterEviction = "with the scheduler of 1.37, a pod of this test is not bound after the eviction: why is not known yet"
