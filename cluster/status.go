package cluster

import (
	"context"
	"slices"
)

// Status is a snapshot of what runs.
type Status struct {
	Name       string          `json:"name"`
	Dir        string          `json:"dir"`
	Subnet     string          `json:"subnet"`
	Registry   string          `json:"registry"`
	Kubeconfig string          `json:"kubeconfig,omitempty"`
	Processes  []ProcessStatus `json:"processes"`
}

// ProcessStatus is a snapshot of one component.
type ProcessStatus struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"` // 0: it does not run
	Binary string `json:"binary"`
	Log    string `json:"log"`
	// Healthy is false and Problem says why if it runs but does not serve.
	Healthy bool   `json:"healthy"`
	Problem string `json:"problem,omitempty"`
	// Socket is CRI-O's CRI endpoint.
	Socket string `json:"socket,omitempty"`
}

// Status asks every component whether it runs and serves.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	s := &Status{
		Name:     c.config.Name,
		Dir:      c.config.Dir,
		Subnet:   c.subnet.String(),
		Registry: c.Registry().Address,
	}
	if !c.config.RuntimeOnly {
		s.Kubeconfig = c.Kubeconfig()
	}
	for _, p := range c.processes() {
		settings, err := p.Settings()
		if err != nil {
			return nil, err
		}
		status := ProcessStatus{Name: p.Name(), PID: p.PID(), Log: p.Log(), Binary: c.config.binary(p.name, settings)}
		if status.PID != 0 {
			if err := p.healthy(ctx); err != nil {
				status.Problem = err.Error()
			} else {
				status.Healthy = true
			}
		}
		if p.name == "crio" {
			status.Socket = "unix://" + c.Node(p.machine).CRISocket()
		}
		s.Processes = append(s.Processes, status)
	}
	return s, nil
}

// Down names the components that do not run or do not serve.
func (s *Status) Down() []string {
	var down []string
	for _, p := range s.Processes {
		if !p.Healthy {
			down = append(down, p.Name)
		}
	}
	return down
}

// processes are all components, those of the control machine first.
func (c *Cluster) processes() []*Process {
	var all []*Process
	for _, name := range []string{"registry", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "layer-resolver"} {
		if p := c.process[name]; p != nil {
			all = append(all, p)
		}
	}
	for _, node := range c.nodes {
		all = append(all, node.crio, node.kubelet)
	}
	return slices.DeleteFunc(all, func(p *Process) bool { return p == nil })
}
