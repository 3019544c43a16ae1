//go:build kubernetes1.37

package layerlocality

import fwk "k8s.io/kube-scheduler/framework"

// placementState is what plugins note of a placement of a pod group.
type placementState = fwk.PlacementCycleState
