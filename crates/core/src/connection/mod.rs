//! One QUIC connection: its parts, and how it begins.
//!
//! ```text
//!            a run of datagrams                        a bundle of datagrams
//!                   │ receive                                 ▲ transmit
//!   split · unprotect · number · open · frames · settle       allow · plan · write · seal · settle
//!                   │                                         │
//!        handshake  spaces  paths  streams  datagrams  duties  clock      ← the parts
//!                   │                                         ▲
//!                   └── events ──►  the application  ── verbs ┘
//! ```
//!
//! | where | what |
//! |---|---|
//! | `verbs`, `close` | what an owner calls |
//! | `receive`, `transmit` | the two trips; the table in each `mod.rs` says where each step is |
//! | `establish`, `migration`, `timeout` | what the handshake, moves and time do to all parts |
//! | `parts`, `handshake` | the parts: they take plain data, and none of them names `Connection` |
//! | `start`, `stats` | what a connection begins with, and what it counts |
//!
//! Two parts lie on lower floors: streams (`crate::stream`) and datagrams (`crate::datagram`).

mod close;
mod establish;
mod handshake;
mod migration;
mod parts;
mod receive;
mod start;
mod stats;
#[cfg(test)]
mod tests;
mod timeout;
mod transmit;
mod verbs;

use std::sync::Arc;

use squall_wire::Side;

use crate::config::TransportConfig;
use crate::datagram::Datagrams;
use crate::event::EndpointEvent;
use crate::space::SpaceId;
use crate::stream::Streams;
use crate::time::Time;
use crate::trace::Trace;
use close::CloseFrame;
pub use close::Closing;
use handshake::parameters::declared;
pub use migration::Move;
use parts::clock::{Clock, Timer};
use parts::duties::Duties;
use parts::endpoint::EndpointLink;
use parts::handshake::{Attempt, Handshake};
use parts::log::Log;
use parts::paths::{Paths, first_path};
use parts::spaces::Spaces;
use start::TlsStart;
pub(crate) use start::{Accepted, Opening, Role, Start};
pub use stats::Stats;

/// The state of the connection (RFC 9000 §7, §10).
#[derive(Debug)]
enum State {
    /// Until TLS is done.
    Handshaking,
    /// TLS is done.
    Established,
    /// Packets that still arrive are answered with our CONNECTION_CLOSE (RFC 9000 §10.2.1).
    Closing(Box<CloseFrame>),
    /// The peer has closed: nothing more is sent (RFC 9000 §10.2.2).
    Draining,
    /// Nothing is left to do; the owner may forget the connection.
    Drained,
}

/// A QUIC connection in either role, without I/O, clock or locks.
///
/// After `receive`, `on_timeout` or any other method, the owner polls the events, calls `transmit`
/// until it returns nothing, and reads `next_timeout` once.
// The fields lie in memory in this order (decision 58). What every packet needs is together, here
// and in each part: with thousands of connections, none of it is in the caches when a connection's
// turn comes.
#[repr(C)]
pub struct Connection {
    log: Log,
    side: Side,
    /// Bytes between the beginning of the packet number and the stream data, in the packets of the
    /// last group if bulk data filled it; otherwise 0.
    run_skips: u8,
    state: State,
    config: Arc<TransportConfig>,
    duties: Duties,
    handshake: Handshake,
    clock: Clock,
    streams: Streams,
    datagrams: Datagrams,
    stats: Stats,
    paths: Paths,
    spaces: Spaces,
    endpoint: EndpointLink,
}

impl Connection {
    /// A connection before its first packet.
    ///
    /// # Errors
    /// If rustls refuses a client's configuration.
    pub(crate) fn new(start: Start, now: Time) -> Result<Self, squall_tls::Error> {
        let (side, config, mut rng) = (start.role.side(), start.config, start.rng);
        let (version, grease, initial_dcid) = (start.version, start.grease, start.initial_dcid);
        let params = declared(&config, start.local_id, start.fixed_bit);
        let begun = match start.role {
            Role::Client(opening) => {
                TlsStart::client(opening, version, initial_dcid, params, &config, grease)?
            }
            Role::Server(accepted) => {
                TlsStart::server(accepted, params, &config, &start.ids, &mut rng, grease)
            }
        };
        let (path, id) = (start.path, begun.original_dcid);
        let active = first_path(path, side, begun.validated, &config, &mut rng);
        let peer_scid = (side == Side::Server).then_some(start.remote_id);
        let attempt = Attempt::new(version, initial_dcid, peer_scid, begun.restart, begun.token);
        let known = begun.validated.then(|| path.remote.ip());
        let trace = Trace::new(side, path.remote, id);
        let mut connection = Self {
            side,
            run_skips: 0,
            state: State::Handshaking,
            handshake: Handshake::new(side, version, id, begun.tls, attempt),
            spaces: Spaces::new(&config, &mut rng),
            paths: Paths::new(side, active, start.local_id, start.remote_id),
            streams: Streams::new(side, &config),
            datagrams: Datagrams::default(),
            duties: Duties::new(&config),
            clock: Clock::new(&config, now),
            endpoint: EndpointLink::new(start.ids, start.tokens, rng, start.fixed_bit, known),
            log: Log::new(trace, now),
            stats: Stats::default(),
            config,
        };
        if let Some(id) = begun.preferred_id {
            connection.paths.local_ids.issue_preferred(id);
            let event = EndpointEvent::AddId(id);
            connection.endpoint.events.push_back(event);
        }
        let keys = begun.first_keys.map_or_else(
            || connection.handshake.initial_keys(version),
            |keys| keys.into_pair().into(),
        );
        connection.spaces[SpaceId::Initial].keys = Some(keys);
        let patience = now + connection.config.handshake_timeout;
        connection.clock.set(Timer::Handshake, Some(patience));
        connection.restart_idle_timer(now);
        if side == Side::Client {
            connection.offer_early_data();
            connection.advance_handshake(now);
        }
        Ok(connection)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("side", &self.side)
            .field("path", &self.paths.active.path)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
