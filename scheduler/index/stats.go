package index

// Stats is the size of the index.
type Stats struct {
	Nodes, Images, Names, Layers int
	// LayerNodes counts the pairs of a node and a layer it holds.
	LayerNodes int
	// Reservations counts placed pods whose layers have not been reported yet.
	Reservations int
	// PendingBytes are what placed pods still wait for, in compressed bytes.
	PendingBytes int64
}

// Stats counts what the index holds; it walks over all layers.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	stats := Stats{
		Nodes: len(x.nodes), Images: len(x.contents), Names: len(x.names), Layers: len(x.layers),
		Reservations: len(x.reservations),
	}
	for _, l := range x.layers {
		stats.LayerNodes += l.nodes.n
	}
	for _, n := range x.pending {
		stats.PendingBytes += n
	}
	return stats
}
