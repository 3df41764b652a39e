//! Everything that depends on time: timers, silence, and consecutive probe timeouts.

use std::time::Duration;

use crate::config::TransportConfig;
use crate::time::Time;

/// The most often that a probe timeout doubles.
pub(crate) const MAX_BACKOFF: u32 = 10;
/// Probe timeouts of silence from a server that is expected to send data, before a client probes,
/// and the shortest such time.
const QUIET_PROBE_TIMEOUTS: u32 = 3;
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// Silence after which unused memory is freed: longer than a viewer of a film waits for the next
/// segment. Reallocating the records of its packets for each segment took a twentieth of the CPU.
const SHED_AFTER: Duration = Duration::from_secs(4);

/// The longest time for which a timer of silence is put off. A worker reads the contents of a
/// socket's buffer in less.
const PUT_OFF: Duration = Duration::from_millis(350);
/// How long, after that, no timer is put off unless an acknowledgement arrives: this way, a worker
/// that never finds its socket empty still repairs losses.
const PUT_OFF_REST: Duration = Duration::from_secs(3);

/// The timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Timer {
    /// Loss detection or probe timeout (RFC 9002 §6).
    LossDetection,
    /// A delayed acknowledgement.
    AckDelay,
    /// The pacer's next quantum.
    Pacing,
    /// The connection has been silent for too long (RFC 9000 §10.1).
    Idle,
    /// A PING keeps the connection alive.
    KeepAlive,
    /// The handshake takes too long.
    Handshake,
    /// The keys before the last update are dropped (RFC 9001 §6.5).
    KeyDiscard,
    /// Closing or draining is over (RFC 9000 §10.2).
    Close,
    /// The validation of a path, or the end of one (RFC 9000 §8.2.4).
    Path,
    /// A server that is expected to send data has gone quiet.
    Quiet,
    /// Nothing has happened for a while: unused memory is freed.
    Shed,
}

const COUNT: usize = 11;

impl Timer {
    /// All timers.
    pub(crate) const ALL: [Self; COUNT] = [
        Self::LossDetection,
        Self::AckDelay,
        Self::Pacing,
        Self::Idle,
        Self::KeepAlive,
        Self::Handshake,
        Self::KeyDiscard,
        Self::Close,
        Self::Path,
        Self::Quiet,
        Self::Shed,
    ];
}

/// The timers of a connection, and the values that they are derived from. Times are on the owner's
/// clock.
#[derive(Debug)]
pub(crate) struct Clock {
    due: [Option<Time>; COUNT],
    /// The smaller of both ends' idle timeouts; zero means none.
    pub(crate) idle_timeout: Duration,
    keep_alive: Option<Duration>,
    keep_alive_with_streams: bool,
    /// When a packet that restarts the idle timer was last received or sent.
    last_active: Time,
    /// Whether an ack-eliciting packet was sent since the last one was received (RFC 9000 §10.1).
    eliciting_since_receipt: bool,
    /// Probe timeouts that expired in a row (RFC 9002 §6.2.1).
    pub(crate) pto_count: u32,
    /// Until when timers of silence were last put off.
    put_off_until: Option<Time>,
    /// Clients: when the server last sent something ack-eliciting, and the probes sent since.
    server_heard: Time,
    quiet_probes: u32,
}

impl Clock {
    /// A clock of a connection that begins at `now`.
    pub(crate) fn new(config: &TransportConfig, now: Time) -> Self {
        Self {
            due: [None; COUNT],
            idle_timeout: config.max_idle_timeout,
            keep_alive: config.keep_alive,
            keep_alive_with_streams: config.keep_alive_with_streams,
            last_active: now,
            eliciting_since_receipt: false,
            pto_count: 0,
            put_off_until: None,
            server_heard: now,
            quiet_probes: 0,
        }
    }

    // ---- timers ---------------------------------------------------------------------------------

    /// Whether a timer runs.
    #[inline]
    pub(crate) const fn is_set(&self, timer: Timer) -> bool {
        self.due[timer as usize].is_some()
    }

    /// Sets or stops a timer.
    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, due: Option<Time>) {
        self.due[timer as usize] = due;
    }

    /// Stops all timers.
    pub(crate) fn clear(&mut self) {
        self.due = [None; COUNT];
    }

    /// The earliest time at which a timer falls due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.iter().flatten().min().copied()
    }

    /// Stops `timer` if it is due at `now`; returns whether it was.
    pub(crate) fn take_due(&mut self, timer: Timer, now: Time) -> bool {
        let due = self.due[timer as usize].is_some_and(|time| time <= now);
        if due {
            self.due[timer as usize] = None;
        }
        due
    }

    /// Puts off a timer of silence that is due at `now`, because what ends the silence may be
    /// waiting to be read. Returns false if it has been put off for long enough.
    pub(crate) fn put_off(&mut self, timer: Timer, now: Time) -> bool {
        let may_begin = |until: Time| now >= until + PUT_OFF_REST;
        if self.put_off_until.is_none_or(may_begin) {
            self.put_off_until = Some(now + PUT_OFF);
        }
        let until = self.put_off_until.filter(|until| now < *until);
        if until.is_some() {
            self.set(timer, until);
        }
        until.is_some()
    }

    /// Until when timers are put off.
    pub(crate) fn put_off_until(&self, now: Time) -> Option<Time> {
        self.put_off_until.filter(|until| now < *until)
    }

    /// Everything that had arrived has been read: timers that were put off are due.
    pub(crate) fn end_put_off(&mut self, now: Time) {
        if let Some(until) = self.put_off_until(now) {
            self.put_off_until = Some(now);
            for due in self.due.iter_mut().filter(|due| **due == Some(until)) {
                *due = Some(now);
            }
        }
    }

    // ---- silence --------------------------------------------------------------------------------

    /// Applies the peer's idle timeout: the smaller of both counts, and zero means none (RFC 9000
    /// §10.1).
    pub(crate) fn limit_idle_timeout(&mut self, theirs: Duration) {
        if self.idle_timeout.is_zero() {
            self.idle_timeout = theirs;
        } else if !theirs.is_zero() {
            self.idle_timeout = self.idle_timeout.min(theirs);
        }
    }

    /// Silence starts over at `now` (RFC 9000 §10.1).
    pub(crate) fn restart_idle(&mut self, now: Time, probe_timeout: Duration, established: bool) {
        self.last_active = now;
        if !self.is_set(Timer::Shed) {
            self.set(Timer::Shed, Some(now + self.rest_begins_after()));
        }
        // RFC 9000 §10.1: at least three probe timeouts, so that lost packets can be repaired.
        let timeout = self.idle_timeout.max(3 * probe_timeout);
        let due = (!self.idle_timeout.is_zero()).then(|| now + timeout);
        self.set(Timer::Idle, due);
        let with_streams = self.keep_alive_with_streams && !self.idle_timeout.is_zero();
        let while_used = with_streams.then(|| self.idle_timeout / 2);
        if let Some(interval) = self.keep_alive.or(while_used).filter(|_| established) {
            self.set(Timer::KeepAlive, Some(now + interval));
        }
    }

    /// Whether a PING keeps a silent connection alive now; `in_use`: there are streams other than
    /// background ones.
    pub(crate) const fn keeps_alive(&self, in_use: bool) -> bool {
        in_use || self.keep_alive.is_some()
    }

    /// The probe timeout starts over without backoff: something new was acknowledged (RFC 9002
    /// §6.2.1), or keys were dropped.
    pub(crate) const fn reset_probe_timeout(&mut self) {
        self.pto_count = 0;
        self.put_off_until = None;
    }

    /// A packet was received and opened.
    pub(crate) const fn on_received(&mut self) {
        self.eliciting_since_receipt = false;
    }

    /// An ack-eliciting packet is sent; returns whether it is the first since the last receipt,
    /// which also restarts the idle timer (RFC 9000 §10.1).
    #[inline]
    pub(crate) const fn on_eliciting_sent(&mut self) -> bool {
        !std::mem::replace(&mut self.eliciting_since_receipt, true)
    }

    /// Whether the connection has been silent for long enough to free memory. The timer is moved
    /// when it fires, not with every run.
    pub(crate) fn is_at_rest(&mut self, now: Time) -> bool {
        let due = self.last_active + self.rest_begins_after();
        if now < due {
            self.set(Timer::Shed, Some(due));
        }
        now >= due
    }

    fn rest_begins_after(&self) -> Duration {
        match self.idle_timeout {
            Duration::ZERO => SHED_AFTER,
            idle => SHED_AFTER.min(idle / 2),
        }
    }

    /// When a silent connection that the peer's flow control blocks repeats its BLOCKED frame, in
    /// time before the idle timeout (RFC 9000 §4.1). `None`: there is no idle timeout.
    pub(crate) fn blocked_again_at(&self) -> Option<Time> {
        let idle = self.idle_timeout;
        (!idle.is_zero()).then(|| self.last_active + idle / 2)
    }

    // ---- a server that has gone quiet -----------------------------------------------------------

    /// A client has received something ack-eliciting from the server, or the acknowledgement of its
    /// own data (`soon`: an answer may follow). `expects`: the server may have data to send.
    #[inline]
    pub(crate) fn on_server_heard(
        &mut self,
        now: Time,
        probe_timeout: Duration,
        expects: bool,
        soon: bool,
    ) {
        self.server_heard = now;
        self.quiet_probes = 0;
        // A running timer is moved when it fires, not with every run.
        if expects && (soon || !self.is_set(Timer::Quiet)) {
            let due = self.quiet_until(probe_timeout);
            let running = self.due[Timer::Quiet as usize];
            let due = running.map_or(due, |running| running.min(due));
            self.set(Timer::Quiet, Some(due));
        }
    }

    /// How long the server may be quiet before the next probe: a few probe timeouts, doubled each
    /// time up to a limit, and constant after that.
    fn quiet_until(&self, probe_timeout: Duration) -> Time {
        let patience = (QUIET_PROBE_TIMEOUTS * probe_timeout).max(LEAST_PATIENCE);
        let beyond = self.quiet_probes.saturating_sub(MAX_BACKOFF) + 1;
        self.server_heard + patience * (1 << self.quiet_probes.min(MAX_BACKOFF)) * beyond
    }

    /// Whether a client that expects data probes for it now; sets the timer again.
    ///
    /// A client that only receives learns of a change of its address only through silence, because
    /// the server sends to the old one. A PING shows the server where the client is (RFC 9000
    /// §9.2). Probes stop after half of the idle timeout: they must not keep an otherwise idle
    /// connection alive.
    pub(crate) fn probes_for_data(&mut self, now: Time, probe_timeout: Duration) -> bool {
        let idle = self.idle_timeout;
        if !idle.is_zero() && now - self.server_heard > idle / 2 {
            return false;
        }
        let probes = self.quiet_until(probe_timeout) <= now;
        self.quiet_probes += u32::from(probes);
        let due = self.quiet_until(probe_timeout);
        self.set(Timer::Quiet, Some(due));
        probes
    }
}
