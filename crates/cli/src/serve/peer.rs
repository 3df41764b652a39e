//! The other end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::metrics::{Metrics, Protocol};
use super::watch::Activity;

/// The other end of a connection, for as long as any part of it exists.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) activity: Arc<Activity>,
    pub(crate) metrics: Arc<Metrics>,
    /// Its share of the connections that may be open at a time.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

impl Peer {
    /// Counts as a connection until it is dropped.
    pub(crate) fn new(
        address: SocketAddr,
        protocol: Protocol,
        metrics: Arc<Metrics>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        metrics.opened(protocol);
        Self {
            address,
            protocol,
            activity: Arc::new(Activity::new()),
            metrics,
            _permit: permit,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.metrics.closed(self.protocol);
    }
}
