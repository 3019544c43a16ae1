// Package peers passes layers between nodes: it serves those that CRI-O keeps (crio/layercache) to other
// nodes, and asks other nodes for those that CRI-O of this node lacks.
//
//   - Switches: CRIO_LAYER_PEERS=on for CRI-O, and a container more in the pod of layer-agent
//     (deploy/agent/components/peers). CRI-O alone keeps layers, up to its bound. The container alone
//     listens on port 9451, publishes spec.peer and watches NodeLayers. No layer passes without both.
//   - Who serves: NodeLayers say which nodes have a layer, and where they serve: spec.peer. Those of the
//     same zone are asked first, as their pods have it in a label, otherwise any. The one that is asked may
//     have thrown away the compressed layer long ago: then another one is asked, three at most.
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
//   - Not by namespace: with a pull, CRI-O gets the name of a namespace and none of its labels, and what it
//     keeps may be a layer of images in other namespaces as well. Pods that shall neither send nor take
//     have nodes of their own, with CRIO_LAYER_PEERS=off.
//   - Bounds of who serves: connections, in all and of each node; bytes a second; a rate below which a
//     connection ends. Who comes when all places are taken is refused at once, and asks another one.
//   - What a pull may lose, beside one without peers: a second for the question which layers peers have,
//     the 256 KiB of each layer that are read twice, and two seconds in which the peers of all pulls were
//     behind 95 % of the rate at which this node got its last downloads from registries. Until CRI-O had
//     one, it asks no peers. If they are behind, it goes on without them, with the layers that came. It
//     throws away what it got of the others, three of each pull at most: if peers fail late, these layers
//     take twice as long as from the registry, and no other ones. A peer that is slow or stalls in the first
//     MiB is left for the next one within a second and a half.
//   - One peer sends a layer. If it fails after its first MiB, the registry sends all of that layer, so it is
//     clear who sent something else. That peer is not asked for an hour: a metric counts it without its name,
//     as anybody may read metrics, and an event names its Node. A peer is not asked for five minutes if it
//     failed or became slow after its first MiB, or if it was half a second behind its part of that rate when
//     CRI-O gave up; if it failed before, for seconds, and longer each time. So a hostile node costs each pull
//     that it serves at that moment three layers at most, and no later one for five minutes.
package peers
