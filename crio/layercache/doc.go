// Package layercache has a node take layers from its neighbours, and keep for them what it pulled
// itself. CRIO_LAYER_PEERS=on turns it on; layer-agent (agent/peers) serves and asks.
//
//   - Kept: the store unpacks layers and throws away what came from the registry. While a pull has that
//     in a temporary file, a hard link keeps it, in a folder on the store's file system. Only what the
//     pull itself downloaded in plain counts: neither layers that were fetched in parts nor those that
//     were encrypted. What is in the file is checked once more before it gets its name.
//   - Bounded: by bytes, and by what is free on the file system. All of it goes before 15 % are free, when
//     the kubelet deletes images unless imageGCHighThresholdPercent is set. The oldest goes first.
//   - Taken: after the policy for signatures, from the bottom up, by a pull that has read the head of
//     each layer from its registry, with its own credentials. A neighbour sends a layer only to who
//     knows that head, so the digest of somebody else's layer is of no use.
//     Layers of up to 1 MiB come from the registry, as NodeLayers do not list them. A pull asks once more
//     for the manifest of an index's member, and its own agent once.
//   - Slow neighbours: all pulls together may be two seconds behind 95 % of what the node got from
//     registries, by its last 16 downloads: bytes, and the time from when their files were made until they
//     were last written. Until there is one, since CRI-O started, pulls ask no neighbours. At least, 2 MiB a
//     second count. Pulls that are behind go on without neighbours. Each keeps the layers that came whole,
//     and throws away the others, three at most. The agent leaves a neighbour that sends less than half
//     of its part of that rate.
//   - Trusted: nobody. Size and SHA-256 are those of the manifest, or the file is thrown away; the
//     diffID is computed from the bytes. Whatever goes wrong, the copy downloads what is missing, as if
//     there were no neighbours.
package layercache
