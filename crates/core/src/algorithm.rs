//! Congestion control as the configuration names it: a built-in algorithm, or a controller supplied
//! by the application.

use std::time::Duration;

use crate::time::Time;

/// How the congestion window reacts to acknowledgements and losses.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// The algorithm specified in RFC 9002 §7.
    NewReno,
    /// RFC 9438, with the slow start of HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// BBR version 3 (draft-ietf-ccwg-bbr): a model of the path instead of losses. It paces,
    /// whatever `TransportConfig::pacing` says.
    Bbr,
}

impl CongestionAlgorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NewReno, Self::Cubic, Self::Bbr];
}

/// Makes [`CongestionController`]s: one for each path of each connection.
///
/// ```
/// use squall_core::{AckedBundle, CongestionController, CongestionControllerFactory, Time};
///
/// /// Sends at a fixed rate, whatever the network says: for links without other traffic.
/// struct FixedRate {
///     bytes_per_second: u64,
///     window: u64,
/// }
///
/// impl CongestionController for FixedRate {
///     fn window(&self) -> u64 {
///         self.window
///     }
///
///     fn pacing_rate(&self) -> Option<u64> {
///         Some(self.bytes_per_second)
///     }
///
///     fn on_acked(&mut self, _now: Time, acked: &AckedBundle) {
///         // Twice what the path holds, so that the rate is the limit.
///         let nanos = u128::from(self.bytes_per_second) * acked.rtt.smoothed.as_nanos();
///         self.window = (2 * nanos / 1_000_000_000) as u64;
///     }
/// }
///
/// #[derive(Debug)]
/// struct FixedRates {
///     bytes_per_second: u64,
/// }
///
/// impl CongestionControllerFactory for FixedRates {
///     fn new_controller(&self, max_datagram: u16) -> Box<dyn CongestionController> {
///         Box::new(FixedRate {
///             bytes_per_second: self.bytes_per_second,
///             window: 10 * u64::from(max_datagram),
///         })
///     }
/// }
///
/// let rates = std::sync::Arc::new(FixedRates { bytes_per_second: 5_000_000 });
/// let config = squall_core::TransportConfig::default().congestion_controller(Some(rates));
/// # drop(config);
/// ```
pub trait CongestionControllerFactory: Send + Sync + std::fmt::Debug {
    /// A controller for a new path whose datagrams have up to `max_datagram` bytes.
    ///
    /// A connection starts with one path. Another path starts over when a peer moves to another
    /// address (RFC 9000 §9.4); a change of only the peer's port keeps the controller.
    fn new_controller(&self, max_datagram: u16) -> Box<dyn CongestionController>;
}

/// The congestion controller of one path (RFC 9002 §7), supplied by the application.
///
/// It sees bundles and runs of acknowledgements, never single packets, so it is called a few times
/// for every 64 packets. [`window`](Self::window), [`pacing_rate`](Self::pacing_rate)
/// and [`is_slow_start`](Self::is_slow_start) are read after each of the other calls.
///
/// All methods run on the connection's worker, with the connection locked: they must not block, nor
/// use the connection. The transport keeps the window at two datagrams or more (RFC 9002 §7.2), and
/// limits memory on its own. If a method panics, NewReno takes over on that path, from the initial
/// window.
pub trait CongestionController: Send {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Bytes per second at which packets leave. `None`: the rate follows from the window and the
    /// round-trip time (RFC 9002 §7.7), unless `TransportConfig::pacing` is off.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// Whether the window still doubles every round trip. The pacer then leaves it more room.
    fn is_slow_start(&self) -> bool {
        false
    }

    /// A bundle of `bytes` was sent; `in_flight` includes it.
    fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        let _ = (now, bytes, in_flight);
    }

    /// A run of acknowledgements arrived.
    fn on_acked(&mut self, now: Time, acked: &AckedBundle);

    /// Packets were declared lost (RFC 9002 §6.1). Returns whether a new reduction of the window
    /// begins with them. If all packets lost since turn out to have arrived,
    /// [`on_spurious_loss`](Self::on_spurious_loss) reports it.
    ///
    /// Losses of packets that were sent before the window was last reduced should not reduce it
    /// again (RFC 9002 §7.3.2).
    fn on_lost(&mut self, now: Time, lost: &LostBundle) -> bool {
        let _ = (now, lost);
        false
    }

    /// The peer received packets marked with ECN-CE; the newest packet reported along with them was
    /// sent at `newest_sent` (RFC 9002 §7.1).
    fn on_marked(&mut self, now: Time, newest_sent: Time) {
        let _ = (now, newest_sent);
    }

    /// Packets of `bytes` in all that were reported as lost have arrived. `all`: so has everything
    /// that caused the last reduction, so it can be undone (RFC 9438 §4.9.2). Returns whether a
    /// reduction was undone.
    fn on_spurious_loss(&mut self, bytes: u64, all: bool) -> bool {
        let _ = (bytes, all);
        false
    }

    /// Everything sent over a long time was lost (RFC 9002 §7.6.2). Called after
    /// [`on_lost`](Self::on_lost) for the same packets.
    fn on_persistent_congestion(&mut self) {}

    /// Datagrams of the path now have up to `max_datagram` bytes.
    fn on_max_datagram(&mut self, max_datagram: u16) {
        let _ = max_datagram;
    }
}

/// A run of acknowledgements: all that the ACK frames of one received bundle newly acknowledge.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AckedBundle {
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// When the newest of their packets was sent.
    pub newest_sent: Time,
    /// Bytes still in flight.
    pub in_flight: u64,
    /// Whether the window was not full when the packets were sent: then they prove nothing about it
    /// (RFC 9002 §7.8).
    pub app_limited: bool,
    /// Round-trip times, with the sample of this run.
    pub rtt: RttEstimate,
}

/// Packets that were declared lost together.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LostBundle {
    /// Bytes lost.
    pub bytes: u64,
    /// Number of ranges of consecutive packet numbers among them.
    pub ranges: u32,
    /// When the newest of them was sent.
    pub newest_sent: Time,
    /// Round-trip times.
    pub rtt: RttEstimate,
}

/// What is known about a path's round-trip time (RFC 9002 §5).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RttEstimate {
    /// The last sample, before the peer's acknowledgement delay is subtracted.
    pub latest: Duration,
    /// The moving average.
    pub smoothed: Duration,
    /// The mean deviation.
    pub variance: Duration,
    /// The smallest sample.
    pub min: Duration,
}
