// Package evaluation holds the results of simulations and their statistics. It
// depends neither on the simulator nor on the page that shows them.
package evaluation

// Report is the outcome of an evaluation: raw numbers without aggregation.
type Report struct {
	// Version of the program.
	Version string `json:"version"`
	// Data is where the images come from: a file, or "generated".
	Data string `json:"data"`
	// Command repeats the evaluation.
	Command     string       `json:"command"`
	Experiments []Experiment `json:"experiments"`
}

// Experiment answers one question: one table or figure.
type Experiment struct {
	// Name is short and unique: "zipf", "frontier", ...
	Name string `json:"name"`
	// Title is the question in a few words.
	Title string `json:"title"`
	// Text describes what was done, in one or two sentences.
	Text string `json:"text"`
	// Command repeats this experiment alone.
	Command string `json:"command"`
	// Axis is what X of the runs means ("Zipf exponent", "Mbit/s", ...); empty if
	// the experiment varies nothing.
	Axis string `json:"axis,omitempty"`
	Runs []Run  `json:"runs"`
}

// Run is one policy in one scenario with one seed. Runs of an experiment with the
// same Scenario, X and Seed got the same workload.
type Run struct {
	// Scenario is the name of the workload, Policy that of the policy.
	Scenario string  `json:"scenario"`
	Policy   string  `json:"policy"`
	X        float64 `json:"x,omitempty"`
	Seed     uint64  `json:"seed"`
	Metrics
}

// Metrics are what was measured in a run. Bytes are compressed.
type Metrics struct {
	// Pods that were created; those that never found a node; and those that found
	// one but never started, or were deleted before. The last two kinds have no
	// start-up time.
	Pods          int `json:"pods"`
	Unschedulable int `json:"unschedulable"`
	Unstarted     int `json:"unstarted"`
	// PulledBytes is the sum over all nodes; PeerBytes are those of them that came from
	// other nodes and not from a registry.
	PulledBytes int64 `json:"pulledBytes"`
	PeerBytes   int64 `json:"peerBytes,omitempty"`
	// DistinctBytes are those of the layers that the pods need and that no node had
	// before, each layer once: if all nodes were one, it would pull them. No placement
	// pulls less. 0: not known.
	DistinctBytes int64 `json:"distinctBytes,omitempty"`
	// Start-up times, in seconds, from the creation of a pod to the start of its
	// container.
	StartupMean float64 `json:"startupMean"`
	StartupP50  float64 `json:"startupP50"`
	StartupP99  float64 `json:"startupP99"`
	// StartupNew is the mean of the first ten pods of each node that joined; 0 if none did.
	StartupNew float64 `json:"startupNew,omitempty"`
	// CPUStd is the standard deviation over nodes of the share of CPU that is
	// requested, as a mean over the moments after each placement.
	CPUStd float64 `json:"cpuStd"`
	// MaxMeanPods is the largest number of pods on a node divided by the mean
	// number, as a mean over the same moments.
	MaxMeanPods float64 `json:"maxMeanPods"`
	// DiskBytes are the bytes on all disks at the end. RemovedBytes are those
	// that the kubelets' image garbage collection removed.
	DiskBytes    int64 `json:"diskBytes"`
	RemovedBytes int64 `json:"removedBytes"`
	// Seconds is how long the run took on the machine.
	Seconds float64 `json:"seconds"`
}
