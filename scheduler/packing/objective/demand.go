package objective

// memory is of how many pods the running means are: of more, older ones fade.
const memory = 100

// Demand is what pods demand: running means of the amounts and of their products, in which
// the k-th pod has the weight 1/min(k, 100). The zero value has seen no pod.
type Demand struct {
	pods    int
	mean    Vector
	product [Most]Vector
}

// Add notes what a pod demands, in the units of the nodes' capacities.
func (d *Demand) Add(amounts Vector) {
	d.pods++
	weight := 1 / float64(min(d.pods, memory))
	for i, x := range amounts {
		d.mean[i] += weight * (x - d.mean[i])
		for j, y := range amounts {
			d.product[i][j] += weight * (x*y - d.product[i][j])
		}
	}
}

// Pods returns how many pods were noted.
func (d *Demand) Pods() int { return d.pods }

// Variability returns how much pods differ: gamma of their demands as shares of the mean
// capacity of a node. Resources of which nodes have nothing do not count.
func (d *Demand) Variability(capacity Vector) float64 {
	var mean Vector
	var covariance [Most]Vector
	for i := range mean {
		if capacity[i] <= 0 {
			continue
		}
		mean[i] = d.mean[i] / capacity[i]
		for j := range mean {
			if capacity[j] > 0 {
				covariance[i][j] = (d.product[i][j] - d.mean[i]*d.mean[j]) / (capacity[i] * capacity[j])
			}
		}
	}
	return gamma(Most, &mean, &covariance)
}
