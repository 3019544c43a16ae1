package evaluation

import (
	"math"
	"slices"
)

// SetStartups fills in the start-up times of Metrics, in seconds; it sorts
// them. A quantile is the smallest time that the given percentage of all times
// does not exceed.
func (m *Metrics) SetStartups(seconds []float64) {
	n := len(seconds)
	if n == 0 {
		return
	}
	slices.Sort(seconds)
	m.StartupMean = 0
	for _, s := range seconds {
		m.StartupMean += s / float64(n)
	}
	at := func(percent int) float64 { return seconds[(percent*n+99)/100-1] }
	m.StartupP50, m.StartupP99 = at(50), at(99)
}

// Avoided is the share of the avoidable bytes that a run did not pull: those that base,
// usually of the default policy, pulled beyond the distinct ones. 1 is the most that a
// placement can reach; it is less than 0 if more was pulled. NaN if base pulled nothing that
// was avoidable. Both runs must be of the same workload.
func (m *Metrics) Avoided(base *Metrics) float64 {
	avoidable := base.PulledBytes - base.DistinctBytes
	if avoidable <= 0 || base.DistinctBytes == 0 {
		return math.NaN()
	}
	return float64(base.PulledBytes-m.PulledBytes) / float64(avoidable)
}

// Load is how much of a node is in use.
type Load struct {
	// CPU is the share that is requested.
	CPU  float64
	Pods int
}

// Balance is how evenly the nodes of a cluster are used, as a mean over
// moments.
type Balance struct {
	moments         int
	cpuStd, maxMean float64
}

// Add adds a moment at which there is at least one pod.
func (b *Balance) Add(nodes []Load) {
	var sum, squares float64
	var pods, most int
	for _, l := range nodes {
		sum += l.CPU
		squares += l.CPU * l.CPU
		pods += l.Pods
		most = max(most, l.Pods)
	}
	n := float64(len(nodes))
	b.moments++
	b.cpuStd += math.Sqrt(max(0, squares/n-sum/n*sum/n))
	b.maxMean += float64(most) * n / float64(pods)
}

// SetBalance fills in the balance of Metrics.
func (m *Metrics) SetBalance(b Balance) {
	if b.moments > 0 {
		m.CPUStd, m.MaxMeanPods = b.cpuStd/float64(b.moments), b.maxMean/float64(b.moments)
	}
}
