// Package peers passes layers between nodes: it serves those that CRI-O keeps (crio/layercache) to other
// nodes, and asks other nodes for those that CRI-O of this node lacks.
//
//   - Switches: CRIO_LAYER_PEERS=on for CRI-O, and a container more in the pod of layer-agent
//     (deploy/agent/components/peers). CRI-O alone keeps layers, up to its bound. The container alone
//     listens on port 9451, publishes spec.peer and watches NodeLayers. No layer passes without both.
//   - Who serves: NodeLayers say which nodes have a layer, and where they serve: spec.peer. The one that
//     is asked may have thrown away the compressed layer long ago: then another one is asked, three at
//     most.
//   - Who asks: both sides use a key that they made when they started and that no disk has. NodeLayers
//     have its fingerprint, and a ValidatingAdmissionPolicy has seen to it that only a token that is bound
//     to the node wrote it. So no authority issues certificates, nobody approves requests for them, and
//     what is stolen from a node is of no use once its NodeLayers are gone. Keys change every day.
//   - What proves that it may have a layer: the head of the layer, 256 KiB, which only a registry serves,
//     to the pull with its own credentials. The asking node sends no head but a code made of it and of
//     the secret of that one connection. So the digest of somebody else's layer, which NodeLayers show, is
//     of no use to a node that was taken over. Pods that name an image would prove less: that their
//     credentials open it is for the registry to say, and the layers of a new private image are known to
//     nobody else. And each node would have to read the pods of all others.
//   - Bounds: connections, in all and of each node; bytes a second; rates below which a connection ends.
//     A peer that fails is left alone for a while, one that sent something else than the layer for an hour.
package peers
