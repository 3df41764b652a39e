//! A connection attempt, and what the application may decide about it.

use std::future::IntoFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use squall_core::{CloseReason, ServerConfig};
use squall_wire::{ConnectionId, Path};
use tokio::sync::oneshot;

use crate::config::check_server;
use crate::connection::{Connecting, Connection};
use crate::worker::{Command, Offer, Shared};

/// A connection attempt, before any cryptography. Await it or [`accept`](Self::accept) it,
/// [`refuse`](Self::refuse) it, or [`ignore`](Self::ignore) it. Dropping it ignores it.
pub struct Incoming {
    offer: Option<Box<Offer>>,
    shared: Arc<Shared>,
}

impl Incoming {
    /// An attempt that arrived at this worker.
    pub(crate) fn new(shared: Arc<Shared>, offer: Box<Offer>) -> Self {
        Self {
            shared,
            offer: Some(offer),
        }
    }

    /// The worker at which it arrived.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether a token has validated the client's address (RFC 9000 §8.1).
    #[must_use]
    pub fn remote_address_validated(&self) -> bool {
        (self.offer.as_ref()).is_some_and(|offer| offer.incoming.remote_address_validated())
    }

    /// Whether [`retry`](Self::retry) is possible: a client follows only one Retry.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        (self.offer.as_ref()).is_some_and(|offer| offer.incoming.may_retry())
    }

    /// Requires the client to validate its address (RFC 9000 §8.1.2); the client returns as a new
    /// attempt. If the client has already followed a Retry, the attempt is refused.
    pub fn retry(mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared.command_to(offer.life, Command::Retry { offer });
        }
    }

    /// The address from which the attempt came; see
    /// [`remote_address_validated`](Self::remote_address_validated).
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.offer
            .as_ref()
            .map_or_else(|| ([0, 0, 0, 0], 0).into(), |offer| offer.run.path.remote)
    }

    /// The local address at which the attempt arrived. `None` if the system does not report it.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.offer.as_ref().and_then(|offer| offer.run.path.local)
    }

    /// The destination connection id of the client's very first packet, before any Retry (RFC 9000
    /// §7.3). qlogs are named after it.
    #[must_use]
    pub fn original_destination_id(&self) -> ConnectionId {
        (self.offer.as_ref()).map_or(ConnectionId::EMPTY, |offer| {
            offer.incoming.original_destination_id()
        })
    }

    /// Starts the handshake.
    pub fn accept(self) -> Connecting {
        self.decide(None)
    }

    /// Starts the handshake with a configuration other than the endpoint's, for example one chosen
    /// by the client's address.
    ///
    /// # Errors
    /// The configuration is invalid (`InvalidInput`, with the reason); the attempt is ignored.
    pub fn accept_with(self, config: impl Into<Arc<ServerConfig>>) -> io::Result<Connecting> {
        let config = config.into();
        check_server(&config)?;
        Ok(self.decide(Some(config)))
    }

    fn decide(mut self, config: Option<Arc<ServerConfig>>) -> Connecting {
        let (reply, answer) = oneshot::channel();
        let path = Path {
            remote: self.remote_address(),
            local: self.local_ip(),
        };
        if let Some(offer) = self.offer.take() {
            let life = offer.life;
            let command = Command::Accept {
                offer,
                config,
                reply,
            };
            // If the worker has ended, the reply is dropped and the future reports it.
            self.shared.command_to(life, command);
        }
        Connecting::new(answer, path)
    }

    /// Refuses the attempt with CONNECTION_REFUSED (RFC 9000 §20.1).
    pub fn refuse(mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared
                .command_to(offer.life, Command::Refuse { offer });
        }
    }

    /// Drops the attempt without an answer, as if no packet had arrived.
    pub fn ignore(self) {
        drop(self);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(offer) = self.offer.take() {
            (self.shared).command_to(offer.life, Command::Ignore(offer.key()));
        }
    }
}

impl IntoFuture for Incoming {
    type Output = Result<Connection, CloseReason>;
    type IntoFuture = Connecting;

    fn into_future(self) -> Connecting {
        self.accept()
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("remote_address", &self.remote_address())
            .finish_non_exhaustive()
    }
}
