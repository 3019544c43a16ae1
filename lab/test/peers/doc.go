// Package peers tests layers from other nodes: CRI-O with CRIO_LAYER_PEERS=on, and layer-agent with its component.
package peers
