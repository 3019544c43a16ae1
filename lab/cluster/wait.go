package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/internal/poll"
)

// WaitNodeReady waits until the node is Ready and accepts pods. It gives up
// when the node's kubelet has ended.
func (c *Cluster) WaitNodeReady(ctx context.Context, name string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return eventually(ctx, "node "+name, func(ctx context.Context) error {
		if node := c.Node(name); node != nil && node.Kubelet().PID() == 0 {
			kubelet := node.Kubelet()
			return poll.Permanent(fmt.Errorf("%s does not run; its log is %s%s", kubelet.Name(), kubelet.Log(), tail(kubelet.Log(), 0)))
		}
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return errors.New("not Ready: " + condition.Message)
			}
		}
		if len(node.Status.Conditions) == 0 {
			return errors.New("no status yet")
		}
		for _, taint := range node.Spec.Taints {
			return errors.New("it has the taint " + taint.ToString())
		}
		return nil
	})
}

// WaitPodRunning waits until all containers of the pod are ready.
func (c *Cluster) WaitPodRunning(ctx context.Context, namespace, name string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return eventually(ctx, "pod "+namespace+"/"+name, func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		why := fmt.Sprintf("%s on node %q", pod.Status.Phase, pod.Spec.NodeName)
		for _, container := range pod.Status.ContainerStatuses {
			if waiting := container.State.Waiting; waiting != nil {
				why += fmt.Sprintf(", container %s: %s %s", container.Name, waiting.Reason, waiting.Message)
			}
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Status == corev1.ConditionFalse && condition.Message != "" {
				why += ", " + condition.Message
			}
		}
		return errors.New(why)
	})
}

// waitServiceAccount waits for the service account that every pod of the
// default namespace needs.
func (c *Cluster) waitServiceAccount(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return eventually(ctx, "service account default/default", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// eventually waits until condition returns no error, or ctx ends. If ctx has no
// deadline, it gives up after two minutes.
func eventually(ctx context.Context, what string, condition func(context.Context) error) error {
	limit := startTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	if err := poll.Until(ctx, 100*time.Millisecond, limit, condition); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// plain connects directly, without the proxies of the environment.
var plain = &http.Transport{DisableKeepAlives: true}

// get succeeds if the server answers with 200. With https, the server's
// certificate must be signed by the cluster's CA.
func (c *Cluster) get(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	transport := plain
	if request.URL.Scheme == "https" {
		ca, err := os.ReadFile(c.path("pki", "ca.crt"))
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		transport = plain.Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", address, response.Status, body)
	}
	return nil
}
