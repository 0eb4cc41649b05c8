//! Sockets and their threads: listeners, queued sockets, packet streams and the multiplexed data link.
