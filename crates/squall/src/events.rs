//! Events of an endpoint and its connections, for logs, metrics and alarms: the types that
//! [`Events`] names, and the subscribers.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use squall_core::{
    CloseReason, Congestion, EarlyDataAnswered, EndpointCounts, HandshakeCompleted,
    HandshakeConfirmed, KeysUpdated, MtuChanged, Observation, PathChanged, Refusal, Stats,
    VersionChanged,
};
use squall_wire::{ConnectionId, Side};

/// Receives the events of an endpoint; set it with [`Builder::events`](crate::Builder::events).
/// Every method does nothing by default.
///
/// There is no event per packet: each is a rare change, and costs an endpoint without subscribers
/// one branch. What happens per packet is counted in [`Stats`] and in
/// [`EndpointStats`](crate::EndpointStats).
///
/// # How methods are called
/// On the thread of the worker where the event happened, within the same turn, and in order for
/// each connection. No lock is held: a method may use the endpoint and its connections.
///
/// - **A method that blocks holds up its worker**, and all connections on it. Hand long work to
///   another thread, for example through a channel.
/// - **A method that panics** loses this event, and nothing else: the panic is caught, counted in
///   [`EndpointStats::event_panics`](crate::EndpointStats::event_panics) and logged as a warning,
///   the other subscribers receive the event, and later events are reported as before. In a build
///   with `panic = "abort"` the process ends.
///
/// ```
/// use squall::{ConnectionClosed, ConnectionInfo, Events, HandshakeCompleted};
///
/// struct Log;
///
/// impl Events for Log {
///     fn handshake_completed(&self, connection: &ConnectionInfo, event: &HandshakeCompleted) {
///         println!("{}: connected after {:?}", connection.remote, event.duration);
///     }
///
///     fn connection_closed(&self, connection: &ConnectionInfo, event: &ConnectionClosed) {
///         println!("{}: {}", connection.remote, event.reason);
///     }
/// }
/// ```
#[expect(unused_variables, reason = "the names belong to the documentation")]
pub trait Events: Send + Sync + 'static {
    /// A connection begins: a client's, or a server's after the attempt was accepted.
    fn connection_started(&self, connection: &ConnectionInfo) {}

    /// A client follows a Retry from its server (RFC 9000 §8.1.2).
    fn retry_received(&self, connection: &ConnectionInfo) {}

    /// The handshake continues in another QUIC version (RFC 9368).
    fn version_changed(&self, connection: &ConnectionInfo, event: &VersionChanged) {}

    /// The server has accepted or rejected the client's early data. Reported at both ends, if early
    /// data was offered.
    fn early_data_answered(&self, connection: &ConnectionInfo, event: &EarlyDataAnswered) {}

    /// TLS is done (RFC 9001 §4.1.1).
    fn handshake_completed(&self, connection: &ConnectionInfo, event: &HandshakeCompleted) {}

    /// The handshake is confirmed (RFC 9001 §4.1.2).
    fn handshake_confirmed(&self, connection: &ConnectionInfo, event: &HandshakeConfirmed) {}

    /// The connection moved to another path, or failed to (RFC 9000 §9).
    fn path_changed(&self, connection: &ConnectionInfo, event: &PathChanged) {}

    /// The keys were updated (RFC 9001 §6).
    fn keys_updated(&self, connection: &ConnectionInfo, event: &KeysUpdated) {}

    /// The path turned out to carry larger packets, or no longer does.
    fn mtu_changed(&self, connection: &ConnectionInfo, event: &MtuChanged) {}

    /// The congestion window was reduced: at most once per round trip.
    fn congestion(&self, connection: &ConnectionInfo, event: &Congestion) {}

    /// The connection ended. The last event of a connection; each has one.
    fn connection_closed(&self, connection: &ConnectionInfo, event: &ConnectionClosed) {}

    /// A connection attempt was refused. At most 64 of these are reported per worker and turn, so
    /// that a flood of attempts does not cause a flood of events; [`datagrams_unrouted`] counts
    /// them all.
    ///
    /// [`datagrams_unrouted`]: Self::datagrams_unrouted
    fn attempt_refused(&self, worker: usize, event: &Refusal) {}

    /// Datagrams that belong to no connection were answered or dropped. Reported at most once per
    /// worker and turn, with the counts since the last report.
    fn datagrams_unrouted(&self, worker: usize, event: &DatagramsUnrouted) {}

    /// A worker ended early, see [`Endpoint::worker_ended`](crate::Endpoint::worker_ended). Its
    /// connections have been reported as closed.
    fn worker_ended(&self, event: &WorkerEnded) {}
}

/// Which connection an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Numbers the endpoint's connections in the order in which they began, from 1.
    pub number: u64,
    /// The worker that the connection lives on.
    pub worker: usize,
    /// Which side of the connection this is.
    pub side: Side,
    /// The peer's address at the time of the event.
    pub remote: SocketAddr,
    /// The destination connection id of the client's very first packet, which both ends know. qlogs
    /// are named after it.
    pub original_destination_id: ConnectionId,
}

/// The end of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionClosed {
    /// Why it ended.
    pub reason: CloseReason,
    /// Time since the connection began at this end.
    pub duration: Duration,
    /// The connection's counters. Packets that still arrive or leave while it closes are missing.
    pub stats: Stats,
}

/// How datagrams that belong to no connection were handled, counted since the worker's last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramsUnrouted {
    /// Answers sent and withheld, by kind.
    pub counts: EndpointCounts,
    /// Runs dropped because they belong to no connection.
    pub runs_discarded: u64,
    /// Runs dropped because the worker that they belong to had too many waiting.
    pub forwards_dropped: u64,
    /// Connection attempts dropped because the accept queue was full.
    pub incoming_dropped: u64,
}

/// A worker that ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerEnded {
    /// The worker's index.
    pub worker: usize,
    /// Why it ended, as one line.
    pub reason: String,
    /// Connections that ended with it, including closing ones.
    pub connections: u64,
}

/// All subscribers of an endpoint.
#[derive(Clone, Default)]
pub(crate) struct Subscribers(Vec<Arc<dyn Events>>);

impl Subscribers {
    pub(crate) fn add(&mut self, events: Arc<dyn Events>) {
        self.0.push(events);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls all of them; returns the messages of those that panicked.
    pub(crate) fn call(&self, call: &dyn Fn(&dyn Events)) -> Vec<String> {
        let mut panics = Vec::new();
        for events in &self.0 {
            // A panic can break only the subscriber's own state: ours is lent to it just for
            // reading.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| call(&**events))) {
                panics.push(panic_message(payload.as_ref()));
                // Its destructor is the application's, too.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            }
        }
        panics
    }
}

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} subscribers", self.0.len())
    }
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("no message").to_owned()
}

/// Something to report.
#[derive(Debug)]
pub(crate) enum Report {
    Started(ConnectionInfo),
    Observed(ConnectionInfo, Observation),
    Closed(ConnectionInfo, Box<ConnectionClosed>),
    Refused(usize, Refusal),
    Unrouted(usize, DatagramsUnrouted),
    WorkerEnded(WorkerEnded),
}

impl Report {
    /// Calls the matching method.
    pub(crate) fn tell(&self, events: &dyn Events) {
        match self {
            Self::Started(info) => events.connection_started(info),
            Self::Observed(info, observation) => tell(events, info, observation),
            Self::Closed(info, event) => events.connection_closed(info, event),
            Self::Refused(worker, event) => events.attempt_refused(*worker, event),
            Self::Unrouted(worker, event) => events.datagrams_unrouted(*worker, event),
            Self::WorkerEnded(event) => events.worker_ended(event),
        }
    }
}

fn tell(events: &dyn Events, info: &ConnectionInfo, observation: &Observation) {
    match observation {
        Observation::RetryReceived => events.retry_received(info),
        Observation::VersionChanged(event) => events.version_changed(info, event),
        Observation::EarlyDataAnswered(event) => events.early_data_answered(info, event),
        Observation::HandshakeCompleted(event) => events.handshake_completed(info, event),
        Observation::HandshakeConfirmed(event) => events.handshake_confirmed(info, event),
        Observation::PathChanged(event) => events.path_changed(info, event),
        Observation::KeysUpdated(event) => events.keys_updated(info, event),
        Observation::MtuChanged(event) => events.mtu_changed(info, event),
        Observation::Congestion(event) => events.congestion(info, event),
        // The end is reported with the counters; this version of the core has no other.
        _ => {}
    }
}
