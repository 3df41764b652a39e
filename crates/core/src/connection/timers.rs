//! The timers of a connection, as times that the owner's clock will reach.

use crate::time::Time;

/// What may fall due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Timer {
    /// Loss detection or probe timeout (RFC 9002 §6).
    LossDetection,
    /// An acknowledgement held back.
    AckDelay,
    /// The pacer's next quantum.
    Pacing,
    /// Silence for too long (RFC 9000 §10.1).
    Idle,
    /// A PING against silence.
    KeepAlive,
    /// The handshake takes too long.
    Handshake,
    /// The keys before the last update are dropped (RFC 9001 §6.5).
    KeyDiscard,
    /// Closing or draining is over (RFC 9000 §10.2).
    Close,
    /// The validation of a path, or the end of one (RFC 9000 §8.2.4).
    Path,
    /// The path's size is looked for, though nothing is sent.
    PathSize,
    /// A server from which data is expected has gone quiet.
    Quiet,
    /// Nothing has happened for a while: memory that is not in use is given back.
    Shed,
}

const COUNT: usize = 12;

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
        Self::PathSize,
        Self::Quiet,
        Self::Shed,
    ];
}

/// When each timer falls due.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: [Option<Time>; COUNT],
}

impl Timers {
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

    /// The earliest time that falls due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.iter().flatten().min().copied()
    }

    /// Stops `timer` if it is due at `now`, and says so.
    pub(crate) fn take_due(&mut self, timer: Timer, now: Time) -> bool {
        let due = self.due[timer as usize].is_some_and(|time| time <= now);
        if due {
            self.due[timer as usize] = None;
        }
        due
    }
}
