package cluster

import "context"

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
	// If the process runs but does not serve, Healthy is false and Problem is the
	// reason.
	Healthy bool   `json:"healthy"`
	Problem string `json:"problem,omitempty"`
	// Socket is a container runtime's CRI endpoint.
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
		status := ProcessStatus{Name: p.Name(), PID: p.PID(), Log: p.Log(), Binary: p.binary(settings)}
		if status.PID != 0 {
			if err := p.healthy(ctx); err != nil {
				status.Problem = err.Error()
			} else {
				status.Healthy = true
			}
		}
		if node := c.Node(p.machine); node != nil && p == node.Runtime() {
			status.Socket = "unix://" + node.CRISocket()
		}
		s.Processes = append(s.Processes, status)
	}
	return s, nil
}

// Down returns the names of the components that do not run or do not serve.
func (s *Status) Down() []string {
	var down []string
	for _, p := range s.Processes {
		if !p.Healthy {
			down = append(down, p.Name)
		}
	}
	return down
}
