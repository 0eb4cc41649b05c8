//! Every limit of the protocol, in one place, with the relations between them checked at compile time.

/// Most peers in one run.
pub const MAX_PEERS: usize = 1024;
/// Most clients that may wait for admission.
pub const MAX_PENDING_PEERS: usize = 256;
/// Largest group whose members are connected with each other directly, beside the ring.
pub const MAX_MESH_RANKS: usize = 8;
/// Most connections per ring edge.
pub const MAX_POOL_CONNECTIONS: u16 = 64;
/// Most tensors in one `all_reduce_many`.
pub const MAX_PARTS: usize = 16_384;
/// Bytes of one contribution, times the number of ranks, up to which a collective is done by all-gather. Measured, see
/// `docs/performance.md`; all ends have to agree on it.
pub const MAX_ALL_GATHER_BYTES: u64 = 256 << 10;
/// Most collectives that one group may have in flight.
pub const MAX_TAGS_IN_FLIGHT: usize = 1024;
/// Formings of groups that the master remembers, of one number of a group: their uuids cannot be used again.
pub const MAX_FORMINGS: usize = 65_536;
/// Of those that failed, how many it remembers with the verdict, for members who call late.
pub const MAX_FAILED_FORMINGS: usize = 64;
/// Outcomes per group and epoch after which the master starts a new epoch at a quiet moment, so that the counts of
/// attempts that master and peers keep per tag stay bounded.
pub const MAX_TAG_HISTORY: usize = 65_536;
/// Most tensors in one shared state.
pub const MAX_STATE_ENTRIES: usize = 16_384;
/// Most sources that one receiver is given in a sync. More would not be faster, as all give at once.
pub const MAX_SYNC_SOURCES: usize = 16;
/// Longest key of a shared-state tensor, in bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// Longest host name or address text, in bytes.
pub const MAX_HOST_BYTES: usize = 255;
/// Longest name of a peer, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest explanatory text, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;
/// Largest packet (kind and body) on a control or state connection, in bytes.
pub const MAX_PACKET_BYTES: usize = 8 << 20;
/// Largest packet that a client may send before it is registered, in bytes.
pub const MAX_FIRST_PACKET_BYTES: usize = 4096;
/// Most edges in one answer about rates.
pub const MAX_RATES: usize = 400_000;
/// Most entries in the list of what waits in one status.
pub const MAX_STATUS_WAITS: usize = 256;
/// How often a client that has not registered may ask for the status; then it is dropped.
pub const MAX_STRANGER_REQUESTS: u32 = 8;
/// Bytes queued towards one client after which the master drops it as a slow reader.
pub const MAX_CLIENT_QUEUE_BYTES: usize = 16 << 20;
/// Time for a client of the master to complete its preamble and its registration, in milliseconds.
pub const REGISTRATION_TIMEOUT_MS: u64 = 5_000;
/// Default first port of the master.
pub const DEFAULT_MASTER_PORT: u16 = 48_148;
/// First port tried by a peer's shared-state listener.
pub const FIRST_STATE_PORT: u16 = 48_149;
/// First port tried by a peer's data listener.
pub const FIRST_P2P_PORT: u16 = 48_150;
/// How many ports a listener tries before it gives up.
pub const PORT_TRIES: u16 = 1024;
/// Default time without a beat after which a peer is dropped, in milliseconds.
pub const DEFAULT_PEER_TIMEOUT_MS: u64 = 10_000;
/// Default time without an echo after which the master is lost, in milliseconds.
pub const DEFAULT_MASTER_TIMEOUT_MS: u64 = 30_000;
/// Default time between two beats of a peer, in milliseconds.
pub const DEFAULT_BEAT_INTERVAL_MS: u64 = 1_000;
/// Default time after which an edge counts as broken on which bytes wait that do not move, in milliseconds.
pub const DEFAULT_EDGE_TIMEOUT_MS: u64 = 4_000;
/// Default time within which a ring must be confirmed by all of its members, in milliseconds.
pub const DEFAULT_RING_TIMEOUT_MS: u64 = 15_000;
/// Default time for one probe of an edge, in milliseconds.
pub const DEFAULT_PROBE_MS: u64 = 2_000;
/// Most edges between a peer and single other ones to which it sends, or that send to it, beside ring and mesh.
pub const MAX_PAIRS_OF_PEER: usize = 48;
/// Most edges of one peer.
pub const MAX_EDGES_OF_PEER: usize = 2 * MAX_MESH_RANKS + MAX_PAIRS_OF_PEER;
/// Default time for one dial of a neighbour, in milliseconds.
pub const DEFAULT_DIAL_TIMEOUT_MS: u64 = 3_000;

// A vote that lists the largest shared state must fit into one packet: key, length, digest, count, type, flag.
const _: () = assert!(MAX_STATE_ENTRIES * (MAX_KEY_BYTES + 4 + 16 + 8 + 2) + 64 < MAX_PACKET_BYTES);
// So must a vote that lists the most tensors of one operation.
const _: () = assert!(MAX_PARTS * 22 + 64 < MAX_PACKET_BYTES);
// So must the plan of the largest group, with its edges.
const _: () =
    assert!(MAX_PEERS * (16 + MAX_HOST_BYTES + 32 + MAX_EDGES_OF_PEER * 16) + 256 < MAX_PACKET_BYTES);
// So must the list of the largest group that is formed.
const _: () = assert!(MAX_PEERS * (MAX_NAME_BYTES + 5) + 64 < MAX_PACKET_BYTES);
// So must a status of the largest run: peers with their places in rings, groups, waits.
const _: () = assert!(
    MAX_PEERS * (2 * 16 + MAX_HOST_BYTES + MAX_NAME_BYTES + 80 + 64)
        + MAX_STATUS_WAITS * (MAX_TEXT_BYTES + 16)
        + 256
        < MAX_PACKET_BYTES
);
// So must what is known of rates.
const _: () = assert!(MAX_RATES * 16 + MAX_PEERS * (16 + 4 + MAX_NAME_BYTES) + 256 < MAX_PACKET_BYTES);
// So must the question whom a peer reaches of all others, and the longest answer.
const _: () = assert!(MAX_PEERS * (16 + MAX_HOST_BYTES + 16) + 64 < MAX_PACKET_BYTES);
const _: () = assert!(2 * MAX_PEERS * (16 + MAX_TEXT_BYTES + 16) + 64 < MAX_PACKET_BYTES);
// A client that reads slowly is not dropped for one large packet behind another.
const _: () = assert!(MAX_CLIENT_QUEUE_BYTES >= 2 * MAX_PACKET_BYTES);
const _: () = assert!(DEFAULT_BEAT_INTERVAL_MS * 4 < DEFAULT_PEER_TIMEOUT_MS);
const _: () = assert!(DEFAULT_EDGE_TIMEOUT_MS + DEFAULT_DIAL_TIMEOUT_MS < DEFAULT_PEER_TIMEOUT_MS);
const _: () = assert!(DEFAULT_DIAL_TIMEOUT_MS < DEFAULT_RING_TIMEOUT_MS);
