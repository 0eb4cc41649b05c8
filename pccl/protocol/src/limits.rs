//! Every limit of the protocol, in one place, with the relations between them checked at compile time.

/// Most peers in one run.
pub const MAX_PEERS: usize = 1024;
/// Most peers that may wait for admission: a whole run may come at once.
pub const MAX_PENDING_PEERS: usize = MAX_PEERS;
/// Largest group whose members may be connected with each other directly, beside the ring.
pub const MAX_MESH_RANKS: usize = 32;
/// Largest group that has these connections whatever they are worth to large operations.
pub const ALWAYS_MESH_RANKS: usize = 8;
/// Most connections per ring edge.
pub const MAX_POOL_CONNECTIONS: u16 = 64;
/// Most names of trusted seeders.
pub const MAX_TRUSTED_SEEDERS: usize = 64;
/// Most masters that stand by for one.
pub const MAX_STANDBYS: usize = 8;
/// Most copies of one standby whose promises it gives back.
pub const MAX_CLAIMS: usize = 8;
/// Bytes of a journal in one packet of a feed.
pub const APPEND_BYTES: usize = 1 << 20;
/// After this time without a word a standby and the peers of a run with standbys take the leader for lost, in
/// milliseconds.
pub const STANDBY_SILENCE_MS: u64 = 3_000;
/// When a standby has heard no leader for this long, it says what to start, and then again each time, in
/// milliseconds.
pub const STANDBY_ADVICE_MS: u64 = 30_000;
/// For how long peers are waited for when another master goes on, at least, in milliseconds: some of them look at
/// places first where nobody answers.
pub const TAKE_OVER_GRACE_MS: u64 = 10_000;
/// Most tensors in one `all_reduce_many`.
pub const MAX_PARTS: usize = 16_384;
/// Bytes of one contribution, times the number of ranks, up to which a collective is done by all-gather. Measured, see
/// `docs/performance.md`; all ends have to agree on it.
pub const MAX_ALL_GATHER_BYTES: u64 = 256 << 10;
/// Votes with more tensors than this count for [`MAX_VOTED_PARTS`]; smaller ones are bounded by their number.
pub const FEW_PARTS: usize = 64;
/// Most tensors in all large votes of one peer for collectives that wait, together: the master keeps them until all
/// have voted.
pub const MAX_VOTED_PARTS: usize = 8 * MAX_PARTS;
/// Segments of one call that may be in flight at the same time: each has a track of the caller's tag.
pub const TRACKS: u8 = 2;
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
/// Most addresses of a peer beside its host.
pub const MAX_ADDRESSES: usize = 6;
/// Bytes that they take in a packet.
const MAX_ADDRESSES_BYTES: usize = 4 + MAX_ADDRESSES * 17;
/// Longest name of a peer, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest name of a figure, in bytes.
pub const MAX_FIGURE_NAME_BYTES: usize = 32;
/// Most figures of a peer.
pub const MAX_FIGURES: usize = 16;
/// Bytes that they take in a packet.
const MAX_FIGURES_BYTES: usize = 4 + MAX_FIGURES * (4 + MAX_FIGURE_NAME_BYTES + 8);
/// Longest explanatory text, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;
/// Largest packet (kind and body) on a control connection, in bytes.
pub const MAX_PACKET_BYTES: usize = 8 << 20;
/// The same on a connection for shared state, whose bytes are in no packets.
pub const MAX_STATE_PACKET_BYTES: usize = 1024;
/// Largest packet that a client may send before it is registered, in bytes.
pub const MAX_FIRST_PACKET_BYTES: usize = 4096;
/// Largest packet that a peer may send while it waits to be let in, in bytes.
pub const MAX_WAITING_PACKET_BYTES: usize = 16 << 10;
/// The same if its groups are formed of lists and it has been in none, in bytes: a list has to fit.
pub const MAX_FORMING_PACKET_BYTES: usize = 128 << 10;
/// Packets up to this are taken from everybody at any time; all larger ones together share
/// [`MAX_LARGE_PACKETS_BYTES`].
pub const MAX_SMALL_PACKET_BYTES: usize = 64 << 10;
/// Memory of a master for packets above [`MAX_SMALL_PACKET_BYTES`] that are arriving, in bytes. A client that sends
/// another one is not read until there is room.
pub const MAX_LARGE_PACKETS_BYTES: usize = 64 << 20;
/// Most edges in one answer about rates.
pub const MAX_RATES: usize = 400_000;
/// Most entries in the list of what waits in one status.
pub const MAX_STATUS_WAITS: usize = 256;
/// How often a client that has not registered may ask for the status; then it is dropped.
pub const MAX_STRANGER_REQUESTS: u32 = 8;
/// Peers to which a machine that is examined measures the rate; for this number it gets tickets in a run with a key.
pub const MAX_VISITED: usize = 16;
/// Most bytes that a visit, the measurement of a rate from outside of a run, sends to a peer.
pub const MAX_VISIT_BYTES: u64 = 256 << 20;
/// Most bytes without a meaning in an examination: more than an Ethernet frame, less than a first packet may have.
pub const MAX_PADDING_BYTES: usize = 3072;
/// Bytes queued towards one client after which the master drops it as a slow reader.
pub const MAX_CLIENT_QUEUE_BYTES: usize = 16 << 20;
/// The same towards a client that is not in a ring, in bytes.
pub const MAX_WAITING_QUEUE_BYTES: usize = 1 << 20;
/// Bytes queued towards all clients together; beyond that the one with the longest queue is dropped as a slow reader.
pub const MAX_QUEUES_BYTES: usize = 96 << 20;
/// A client for which bytes wait has to take this number of them, or all, in each [`READER_WINDOW_MS`].
pub const MIN_READ_BYTES: usize = 16 << 10;
/// See [`MIN_READ_BYTES`], in milliseconds.
pub const READER_WINDOW_MS: u64 = 15_000;
/// Bytes that the system may keep for each direction of a control connection.
pub const CONTROL_BUFFER_BYTES: usize = 256 << 10;
/// Bytes that a master reads from one connection in one turn; then it is the next one's turn.
pub const TURN_BYTES: usize = 64 << 10;
/// Packets of one connection that a master looks at in one turn.
pub const TURN_PACKETS: usize = 64;
/// Time for one turn through all connections, in milliseconds; a client that was not reached is the first of the next
/// turn.
pub const TURN_MS: u64 = 20;
/// Bytes that a master reads and throws away of a client that it has dropped, so that the client hears why.
pub const MAX_THROWN_AWAY_BYTES: usize = 16 << 20;
/// Questions for the status that one client may have open.
pub const MAX_OPEN_QUESTIONS: usize = 64;
/// Time for a client of the master to complete its preamble and its registration, in milliseconds.
pub const REGISTRATION_TIMEOUT_MS: u64 = 5_000;
/// Default port of the relay of a master.
pub const DEFAULT_RELAY_PORT: u16 = 48_147;
/// Most connections that a relay carries at once.
pub const MAX_RELAYED_PAIRS: usize = 64;
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
/// Bytes of packets that have left and that each end keeps for another connection.
pub const MAX_KEPT_BYTES: usize = 2 * MAX_PACKET_BYTES;
/// Default time in which a peer goes on looking for its master after the connection ended, in milliseconds.
pub const DEFAULT_MASTER_GRACE_MS: u64 = 10_000;
/// The same if the master comes back after its death.
pub const JOURNAL_MASTER_GRACE_MS: u64 = 60_000;
/// Default time without an echo after which the master is lost, in milliseconds.
pub const DEFAULT_MASTER_TIMEOUT_MS: u64 = 30_000;
/// Default time between two beats of a peer, in milliseconds.
pub const DEFAULT_BEAT_INTERVAL_MS: u64 = 1_000;
/// Default time after which an edge counts as broken on which bytes wait that do not move, in milliseconds.
pub const DEFAULT_EDGE_TIMEOUT_MS: u64 = 4_000;
/// Time without any progress after which the receiving end of an edge is not waited for any more because it is at work
/// on what has come, in milliseconds: then the edge counts as any other on which nothing moves. Longer than what that
/// end itself waits for a device.
pub const BUSY_PATIENCE_MS: u64 = 90_000;
/// Time without any progress of copies from a device after which a peer gives up an operation, in milliseconds.
pub const DEVICE_PATIENCE_MS: u64 = 60_000;
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
const _: () = assert!(
    MAX_PEERS * (16 + MAX_HOST_BYTES + MAX_ADDRESSES_BYTES + 32 + MAX_EDGES_OF_PEER * 16) + 256
        < MAX_PACKET_BYTES
);
// So must the list of the largest group that is formed.
const _: () = assert!(MAX_PEERS * (MAX_NAME_BYTES + 5) + 64 < MAX_PACKET_BYTES);
// So must a status of the largest run: peers with their places in rings, groups, waits.
const _: () = assert!(
    MAX_PEERS * (2 * 16 + MAX_HOST_BYTES + MAX_NAME_BYTES + MAX_FIGURES_BYTES + 80 + 64)
        + MAX_STATUS_WAITS * (MAX_TEXT_BYTES + 16)
        + MAX_TRUSTED_SEEDERS * (MAX_NAME_BYTES + 4)
        + 256
        < MAX_PACKET_BYTES
);
// So must what is known of rates.
const _: () = assert!(MAX_RATES * 16 + MAX_PEERS * (16 + 4 + MAX_NAME_BYTES) + 256 < MAX_PACKET_BYTES);
// So must the question whom a peer reaches of all others, and the longest answer.
const _: () = assert!(MAX_PEERS * (16 + MAX_HOST_BYTES + MAX_ADDRESSES_BYTES + 16) + 64 < MAX_PACKET_BYTES);
const _: () = assert!(2 * MAX_PEERS * (16 + MAX_TEXT_BYTES + 16) + 64 < MAX_PACKET_BYTES);
const _: () = assert!(APPEND_BYTES < MAX_PACKET_BYTES);
// A client that reads slowly is not dropped for one large packet behind another.
const _: () = assert!(MAX_CLIENT_QUEUE_BYTES >= 2 * MAX_PACKET_BYTES);
// The longest list of a group that is formed fits, and a beat of somebody who waits.
const _: () = assert!(MAX_PEERS * (MAX_NAME_BYTES + 5) + 64 < MAX_FORMING_PACKET_BYTES);
const _: () = assert!(3 * MAX_EDGES_OF_PEER * 40 + MAX_FIGURES_BYTES + 256 < MAX_WAITING_PACKET_BYTES);
// So does a request for a part of a tensor, with the longest key.
const _: () = assert!(MAX_KEY_BYTES + 64 < MAX_STATE_PACKET_BYTES);
const _: () = assert!(MAX_FIRST_PACKET_BYTES <= MAX_WAITING_PACKET_BYTES);
const _: () = assert!(MAX_LARGE_PACKETS_BYTES >= 2 * MAX_PACKET_BYTES);
const _: () = assert!(DEFAULT_BEAT_INTERVAL_MS * 4 < DEFAULT_PEER_TIMEOUT_MS);
const _: () = assert!(DEFAULT_EDGE_TIMEOUT_MS + DEFAULT_DIAL_TIMEOUT_MS < DEFAULT_PEER_TIMEOUT_MS);
const _: () = assert!(DEFAULT_DIAL_TIMEOUT_MS < DEFAULT_RING_TIMEOUT_MS);
const _: () = assert!(DEVICE_PATIENCE_MS < BUSY_PATIENCE_MS);
