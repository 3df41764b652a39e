//! What happened on connections, as a line of `name=value` words for each event: for the runner's
//! logs, and for `interop/matrix`, which has no packet captures.

use squall::{
    ConnectionClosed, ConnectionInfo, EarlyDataAnswered, Events, HandshakeCompleted, KeysUpdated,
    PathChanged, VersionChanged,
};

/// Prints events to standard output.
pub(crate) struct Facts;

impl Events for Facts {
    fn retry_received(&self, connection: &ConnectionInfo) {
        println!("squall: connection={} retry_received", connection.number);
    }

    fn version_changed(&self, connection: &ConnectionInfo, event: &VersionChanged) {
        println!(
            "squall: connection={} version_changed from={:#x} to={:#x}",
            connection.number, event.from, event.to
        );
    }

    fn early_data_answered(&self, connection: &ConnectionInfo, event: &EarlyDataAnswered) {
        println!(
            "squall: connection={} early_data_answered accepted={}",
            connection.number, event.accepted
        );
    }

    fn handshake_completed(&self, connection: &ConnectionInfo, event: &HandshakeCompleted) {
        println!(
            "squall: connection={} handshake_completed version={:#x} resumed={}",
            connection.number, event.version, event.resumed
        );
    }

    fn path_changed(&self, connection: &ConnectionInfo, event: &PathChanged) {
        println!(
            "squall: connection={} path_changed remote={} failed={}",
            connection.number,
            event.remote,
            event.failed.is_some()
        );
    }

    fn keys_updated(&self, connection: &ConnectionInfo, event: &KeysUpdated) {
        println!(
            "squall: connection={} keys_updated by_peer={}",
            connection.number, event.by_peer
        );
    }

    fn connection_closed(&self, connection: &ConnectionInfo, event: &ConnectionClosed) {
        let stats = &event.stats;
        println!(
            "squall: connection={} closed key_updates={} migrations={} paths_validated={} \
             ecn_capable={} packets_lost={} reason={:?}",
            connection.number,
            stats.key_updates,
            stats.migrations,
            stats.paths_validated,
            stats.ecn_capable,
            stats.packets_lost,
            event.reason.to_string()
        );
    }
}
